#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The main job as tests: discovery, fi_pingpong, an Open MPI job of two ranks.
. "$(dirname "$0")/set-up.sh"
use_build build
bad=0
check() {  # check SENTENCE COMMAND...
    local sentence=$1
    shift
    if "$@"; then echo "ok - $sentence"; else echo "not ok - $sentence" && bad=1; fi
}
check 'fi_info finds rvt' fi_info -p rvt
check 'fi_info shows the attributes of rvt' fi_info -p rvt -v
check 'fi_pingpong passes every size and checks what arrives' pingpong -S all -c
check 'an Open MPI job of two ranks runs over rvt' mpi_run 2 build/fabtests/mpi/mpi_pingpong
exit $bad
