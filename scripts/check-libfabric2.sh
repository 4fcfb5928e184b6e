#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# One binary for libfabric 1.17 and 2.x: what was built with the one loads and works under the
# other, both ways, and the tests pass under 2.x; those that libfabric has a part in: below the layer
# ofi nobody knows it. Wants a build tree of Debian 12 in RVT_BUILDDIR.
build=$(cd "${RVT_BUILDDIR:-build}" && pwd) || exit 2
. "$(dirname "$0")/set-up.sh"
in_root=("$rvt_root/scripts/debian-root" 13)
bad=0

if ! root=$("${in_root[@]}"); then
    echo '############################################################'
    echo '# SKIPPED: no Debian 13 here, rvt was NOT tried under 2.x  #'
    echo '############################################################'
    exit 77
fi
place=/tmp/rvt-$$
mkdir -p "$root$place" || exit 1
headers=$(mktemp -d)
trap 'rm -rf "$root$place" "$headers"' EXIT

check() {  # check SENTENCE COMMAND...
    local sentence=$1
    shift
    if "$@"; then echo "ok - $sentence"; else echo "not ok - $sentence" && bad=1; fi
}

works_under_2() {
    cp "$build/prov/rvt/.libs/librvt-fi.so" "$rvt_root/scripts/set-up.sh" "$root$place/" &&
        "${in_root[@]}" env FI_PROVIDER_PATH="$place" LD_BIND_NOW=1 fi_info -p rvt -t FI_EP_RDM &&
        "${in_root[@]}" env FI_PROVIDER_PATH="$place" bash -c ". $place/set-up.sh && pingpong -c"
}

# The tarball is asked all that `make distcheck` asks; with the tests of the layer ofi.
passes_its_tests_under_2() {
    local tests='prov/rvt/test/ofi_tests prov/rvt/test/msg_tests'
    (cd "$build" && make -s dist) && tar -C "$root$place" --strip-components=1 --no-same-owner \
        -xzf "$build"/rvt-*.tar.gz || return
    "${in_root[@]}" env RVT_RESULTS= bash -c "mkdir $place/build && cd $place/build &&
        ../configure --quiet CXXFLAGS=-O0 &&
        make -s -j$(nproc) distcheck VERBOSE=1 TESTS='$tests' check_PROGRAMS='$tests' \
            DISTCHECK_CONFIGURE_FLAGS='--enable-debug --enable-unity CXXFLAGS=-O0'"
}

# The core, which knows nothing of libfabric, is that of the build tree.
works_under_1_built_with_2() {
    local core=prov/rvt/librvt-core.la
    cp -r "$root/usr/include/rdma" "$headers/"
    mkdir -p "$headers/build" && cd "$headers/build" &&
        "$rvt_root/configure" --quiet --enable-unity CXXFLAGS=-O0 LIBFABRIC_CFLAGS="-isystem $headers" LIBFABRIC_LIBS=-lfabric \
            > /dev/null && mkdir -p prov/rvt/.libs && cp "$build/$core" prov/rvt/ &&
        cp "$build/prov/rvt/.libs/librvt-core.a" prov/rvt/.libs/ &&
        make -s precompile && make -s -j"$(nproc)" -o "$core" prov/rvt/librvt-fi.la || return
    export FI_PROVIDER_PATH=$headers/build/prov/rvt/.libs
    LD_BIND_NOW=1 fi_info -p rvt -t FI_EP_RDM && pingpong -c
}

check 'what was built with libfabric 1.17 works under 2.x' works_under_2
check 'what was built with headers of 2.x works under libfabric 1.17' works_under_1_built_with_2
check 'the tarball builds with libfabric 2.x, passes its tests, installs and uninstalls' \
    passes_its_tests_under_2
exit $bad
