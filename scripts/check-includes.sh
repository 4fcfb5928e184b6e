#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Includes are the architecture: which layer may see which. Files directly in prov/rvt put the
# layers together and see all of them.
. "$(dirname "$0")/common.sh"
bad=0
report() {
    [ -z "$1" ] && return
    echo "$1"
    bad=1
}
may_see() {
    case $1 in
        util) echo 'util|rvt' ;;
        protocol) echo 'util|protocol|rvt' ;;
        core) echo 'util|protocol|core|rvt' ;;
        hmem) echo 'util|core|rvt|hmem' ;;
        ofi) echo 'util|core|rvt|hmem|ofi' ;;
        backend/*) echo "util|protocol|core|rvt|$1" ;;
    esac
}
may_include() {  # may_include FILES-GLOB ALLOWED
    tracked "$1/*" | grep -E '\.(cc|h|inl)$' | xargs -r -d '\n' grep -HnE '^ *# *include "' |
        grep -vE "\"($2)/"
}
for dir in util protocol core hmem ofi prov/rvt/backend/*/; do
    dir=${dir#prov/rvt/} && dir=${dir%/}
    report "$(may_include "prov/rvt/$dir" "$(may_see "$dir")")"
done
report "$(may_include include/rvt 'rvt')"
# Headers of rdma-core are for its backend alone.
report "$(tracked 'prov/rvt/protocol/*' 'prov/rvt/core/*' 'prov/rvt/backend/*' 'include/rvt/*' | xargs -r -d '\n' grep -HnE '^ *# *include <(rdma|infiniband)/' |
    grep -vE '^prov/rvt/backend/verbs/[^:]*:[0-9]+:#include <(infiniband/verbs|rdma/rdma_cma)\.h>')"
report "$(tracked 'prov/rvt/*' 'include/*' | grep -E '\.(cc|h|inl)$' | xargs -r -d '\n' grep -HnE '^ *# *include "\.\.?/')"
verdict 'each layer includes what it may see' $bad
