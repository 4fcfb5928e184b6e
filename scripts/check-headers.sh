#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Each header compiles alone, so that the order of includes never matters. (Those of MPI programs
# want MPI's own compiler wrapper.)
. "$(dirname "$0")/common.sh"
flags=$(compile_flags) || exit 2
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(tracked '*.h' | grep -v '^fabtests/mpi/'); fi
alone() {
    # shellcheck disable=SC2086
    echo "#include \"$PWD/$1\"" | ${CXX:-g++} $flags -fsyntax-only -x c++ - || {
        echo "$1: does not compile alone"
        return 1
    }
}
export -f alone
export flags
bad=0
printf '%s\n' "${files[@]}" | grep . | xargs -r -d '\n' -n 1 -P 2 bash -c 'alone "$1" || exit 1' _ || bad=1
verdict 'each header compiles alone' $bad
