#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Debian 13's clients, over Open MPI 5 and libfabric 2.x, with the library that was built for libfabric
# 1.17. Wants a build tree of Debian 12 in RVT_BUILDDIR.
build=$(cd "${RVT_BUILDDIR:-build}" && pwd) || exit 2
. "$(dirname "$0")/set-up.sh"
in_root=("$rvt_root/scripts/debian-root" 13)

if ! root=$("${in_root[@]}"); then
    echo '############################################################'
    echo '# SKIPPED: no Debian 13 here, rvt was NOT tried with its   #'
    echo '# Open MPI 5                                               #'
    echo '############################################################'
    exit 77
fi
place=/tmp/rvt-$$
trap 'rm -rf "$root$place"' EXIT
mkdir -p "$root$place/fabtests" &&
    cp -r "$rvt_root/fabtests/clients" "$rvt_root/fabtests/mpi" "$root$place/fabtests/" &&
    cp "$build/prov/rvt/.libs/librvt-fi.so" "$root$place/" || exit 1

bad=0
for client in run-openmpi 'run-hpcc -n 2' run-netpipe 'run-mpi4py-bench -n 4'; do
    # shellcheck disable=SC2086
    "${in_root[@]}" env FI_PROVIDER_PATH="$place" "$place"/fabtests/clients/$client || bad=1
done
exit $bad
