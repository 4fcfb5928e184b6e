# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What the commands at the root of the tree share: packages, build, the environment of a program.
# Source it; the working directory becomes the root of the tree.
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
rvt_root=$PWD

say() { printf '\n==== %s\n' "$*"; }
fail() {
    echo "$0: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        echo "root is needed for: $*" >&2
        return 1
    fi
}

# install_packages SET... : installs from scripts/debian-packages what is not there yet. On other systems
# the user has to: configure names what is missing.
install_packages() {
    local set missing=()
    if ! command -v dpkg-query > /dev/null; then
        echo 'not a Debian system: nothing is installed; scripts/debian-packages names what is wanted'
        return
    fi
    for set in "$@"; do
        while read -r package; do
            dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed ||
                missing+=("$package")
        done < <(awk -v set="$set" '$2 == set { print $1 }' scripts/debian-packages)
    done
    [ ${#missing[@]} -eq 0 ] && return
    echo "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "${missing[@]}"
}

jobs() { nproc; }

# build_in DIR [CONFIGURE-ARGUMENT...] : configures once, builds always; RVT_TARGETS, if not all. A directory that
# somebody else has configured first stays his.
build_in() {
    local dir=$1
    shift
    [ -x configure ] && [ configure -nt configure.ac ] && [ Makefile.in -nt Makefile.am ] ||
        ./autogen.sh || return
    mkdir -p "$dir"
    (
        cd "$dir" || exit
        [ ! -e config.status ] || [ -e .configured ] ||
            fail "./$dir was configured by hand; build in another directory, or remove this one"
        if [ ! -e config.status ] || [ "$(cat .configured 2> /dev/null)" != "$*" ]; then
            echo unfinished > .configured
            "$rvt_root/configure" --quiet "$@" || exit
            echo "$*" > .configured
        fi
        # shellcheck disable=SC2086
        compile make -s precompile && compile make -s -j"$(jobs)" $RVT_TARGETS
    )
}

# build_fuzzed TARGET... : builds them in build-asan, whose tests and fuzzers show what AddressSanitizer
# and UBSan object to. By clang, which has libFuzzer; so each of the two compilers builds everything.
build_fuzzed() {
    RVT_TARGETS=$* build_in build-asan --enable-asan --enable-ubsan --enable-fuzzer --enable-unity --enable-werror \
        CC=clang-14 CXX=clang++-14 'CXXFLAGS=-O1 -g1'
}

# use_build DIR : programs that are started from now on find this provider and no other.
use_build() {
    export FI_PROVIDER_PATH=$rvt_root/$1/prov/rvt/.libs FI_PROVIDER=rvt
}

# free_port : a TCP port of this host that nobody listens on.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        listens_on "$port" || break
    done
    echo "$port"
}
listens_on() { grep -qiE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$1") [0-9A-F]+:0000 0A" /proc/net/tcp*; }

# pingpong [OPTION...] : libfabric's own fi_pingpong over rvt, its two ends on this host.
pingpong() {
    local port server status
    port=$(free_port)
    timeout 60 fi_pingpong -p rvt -e rdm -B "$port" "$@" > /dev/null &
    server=$!
    until listens_on "$port"; do
        kill -0 "$server" 2> /dev/null || break
        read -rt 0.05 _ < <(:)
    done
    timeout 60 fi_pingpong -p rvt -e rdm -P "$port" "$@" 127.0.0.1
    status=$?
    [ $status -eq 0 ] || kill "$server" 2> /dev/null
    wait "$server" && return $status
}

# has_network : whether an endpoint gets an address that other hosts may reach: neither loopback nor
# link-local. Asks the system, not rvt, whose answer the jobs are to show.
has_network() { hostname -I | tr ' ' '\n' | grep -v '^169\.254\.' | grep -q .; }

# mpi_run RANKS PROGRAM [ARGUMENT...] : an Open MPI job of which every message goes over rvt.
mpi_run() {
    local ranks=$1 options=()
    shift
    [ "$(id -u)" -eq 0 ] && options+=(--allow-run-as-root)
    [ "$ranks" -gt "$(nproc)" ] && options+=(--oversubscribe --mca mpi_yield_when_idle 1)
    # Open MPI's mtl asks every provider to reach other hosts too; see README.md.
    has_network || options+=(-x FI_RVT_HOST_REMOTE=1)
    timeout "${RVT_MPI_LIMIT_S:-300}" mpirun "${options[@]}" -n "$ranks" \
        -x FI_PROVIDER -x FI_PROVIDER_PATH --mca pml cm --mca mtl ofi "$@"
}
