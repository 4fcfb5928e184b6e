#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What the provider shows to the process that loads it: one symbol, all its own needs met.
: "${RVT_BUILDDIR:=$PWD}"
lib=$RVT_BUILDDIR/prov/rvt/.libs/librvt-fi.so
bad=0
check() {  # check SENTENCE COMMAND...
    local sentence=$1
    shift
    if "$@"; then echo "ok - $sentence"; else echo "not ok - $sentence" && bad=1; fi
}
exports_only_its_entry() {
    local seen
    seen=$(readelf --dyn-syms --wide "$lib" |
        awk '$5 != "LOCAL" && $7 != "UND" && $8 != "" && $1 ~ /^[0-9]+:$/ { print $8 }')
    [ "$seen" = fi_prov_ini ] || { echo "exported: $seen" && return 1; }
}
binds_at_once() { LD_BIND_NOW=1 fi_info -l | grep -qx 'rvt:'; }
stays_loaded() { readelf --dynamic --wide "$lib" | grep -q NODELETE; }
brings_its_cxx() { ! readelf --dynamic --wide "$lib" | grep -E 'NEEDED.*(libstdc\+\+|libgcc_s)'; }
has_no_text_relocation() { ! readelf --dynamic --wide "$lib" | grep -q TEXTREL; }
instrumented() { readelf --syms --wide "$lib" | grep -qE '__(asan|tsan)_init'; }
versioned() {  # nothing of libfabric that changed its version from 1.17 to 2
    ! readelf --dyn-syms --wide "$lib" | grep -E ' fi_(getinfo|freeinfo|dupinfo)(@|$)'
}

check 'the provider exports fi_prov_ini alone' exports_only_its_entry
check 'the provider stays loaded until the process ends' stays_loaded
check 'the provider has no text relocation' has_no_text_relocation
check 'the provider calls nothing that libfabric 1 and 2 version differently' versioned
if ! instrumented; then
    check 'the provider loads with every symbol bound at once' binds_at_once
    check 'the provider brings its own C++ run-time' brings_its_cxx
fi
exit $bad
