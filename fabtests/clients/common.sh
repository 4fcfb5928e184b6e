# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What the scripts of this folder share: their options, how a job of Open MPI is started over a
# provider of libfabric, and how a result is reported. Source it.
#
# Options of every script (the environment variable that gives the default in brackets):
#   -p PROVIDER  run over this provider [FI_PROVIDER, or rvt]
#   -d DIR       where the provider's library is [FI_PROVIDER_PATH]
#   -n RANKS     numbers of ranks, one list in quotes [RVT_CLIENT_RANKS, or what the script says]
#   -t SECONDS   time limit of each job [RVT_CLIENT_LIMIT_S, or 120]
# RVT_CLIENT_HOSTS names the hosts on which ranks take turns, as mpirun's --host does, and RVT_CLIENT_AGENT
# what starts commands there; they are those of fabtests/hosts. Without the first all are on this one.
# RVT_CLIENT_DIR is where jobs run, a folder that those hosts share, RVT_CLIENT_PROGRAMS where programs of
# ours are that have been compiled, and RVT_CLIENT_LOG a file that gets what every job prints.
#
# Each job is reported by a line `ok - ...` or `not ok - ...`, the latter with the end of what the
# job printed. Exit status: 0 if all are ok, 1 if not, 77 if the client is not installed.
# shellcheck shell=bash

clients_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mpi_dir=$clients_dir/../mpi
failed=0

usage() {
    echo "usage: $(basename "$0") [-p PROVIDER] [-d DIR] [-n 'RANKS...'] [-t SECONDS]" >&2
    exit 2
}

# start "RANKS..." "$@" : reads the options, makes the scratch directory $scratch.
start() {
    local option OPTIND=1
    ranks=${RVT_CLIENT_RANKS:-$1}
    limit_s=${RVT_CLIENT_LIMIT_S:-120}
    shift
    while getopts p:d:n:t: option; do
        case $option in
            p) FI_PROVIDER=$OPTARG ;;
            d) FI_PROVIDER_PATH=$(cd "$OPTARG" && pwd) || exit 2 ;;
            n) ranks=$OPTARG ;;
            t) limit_s=$OPTARG ;;
            *) usage ;;
        esac
    done
    [ $# -lt $OPTIND ] || usage
    export FI_PROVIDER=${FI_PROVIDER:-rvt}
    [ -z "${FI_PROVIDER_PATH:-}" ] || export FI_PROVIDER_PATH
    scratch=$(mktemp -d -p "${RVT_CLIENT_DIR:-${TMPDIR:-/tmp}}") || exit 2
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# need PROGRAM PACKAGE : a client that is not installed is no failure of the provider.
need() {
    command -v "$1" > /dev/null && return
    echo "$(basename "$0"): $1 is not installed (Debian package $2)"
    exit 77
}

# compile NAME : an MPI program of ours, $scratch/NAME from fabtests/mpi/NAME.c.
compile() {
    if [ -n "${RVT_CLIENT_PROGRAMS:-}" ]; then
        ln -s "$RVT_CLIENT_PROGRAMS/$1" "$scratch/$1" || exit 2
        return
    fi
    need mpicc libopenmpi-dev
    mpicc -std=gnu11 -O2 -pthread -Wall -Wextra -o "$scratch/$1" "$mpi_dir/$1.c" || exit 2
}

# has_network : whether this host has an IPv4 address that is neither loopback nor link-local.
has_network() { hostname -I | tr ' ' '\n' | grep -F . | grep -qv '^169\.254\.'; }

# mpi RANKS [ARGUMENT...] : an Open MPI job under the time limit, its output in $scratch/log.
mpi() {
    local n=$1 options=() name status
    shift
    [ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
    if [ -n "${RVT_CLIENT_HOSTS:-}" ]; then
        options+=(--host "$RVT_CLIENT_HOSTS" --map-by node --mca mpi_yield_when_idle 1
            --bind-to none --mca plm_rsh_agent "${RVT_CLIENT_AGENT:-$clients_dir/../hosts/host-agent}")
    elif [ "$n" -gt "$(nproc)" ]; then
        options+=(--oversubscribe --mca mpi_yield_when_idle 1)
    fi
    for name in FI_PROVIDER FI_PROVIDER_PATH LD_LIBRARY_PATH; do
        [ -z "${!name:-}" ] || options+=(-x "$name")
    done
    # Every FI_* and RVT variable of the caller reaches the ranks. Open MPI's mtl asks every provider to
    # reach other hosts too; without a network rvt has to be told to say so, see fi_rvt(7).
    [ -n "${FI_RVT_HOST_REMOTE:-}" ] || has_network || export FI_RVT_HOST_REMOTE=1
    while read -r name; do
        options+=(-x "$name")
    done < <(compgen -e | grep -E '^FI_(LOG|RVT|TCP|SHM)_')
    (cd "$scratch" && exec timeout --foreground -k 5 "$limit_s" mpirun "${options[@]}" \
        -n "$n" "$@") > "$scratch/log" 2>&1 < /dev/null
    status=$?
    [ -z "${RVT_CLIENT_LOG:-}" ] || cat "$scratch/log" >> "$RVT_CLIENT_LOG"
    return $status
}

# over_provider RANKS [ARGUMENT...] : every message goes through the provider, or the job fails.
over_provider() {
    local n=$1
    shift
    mpi "$n" --mca pml cm --mca mtl ofi --mca opal_common_ofi_provider_include "$FI_PROVIDER" "$@"
}

# has_osc_pt2pt : whether this Open MPI has one-sided as active messages over the mtl; from 5 on none has.
has_osc_pt2pt() { ompi_info --parsable | grep -q '^mca:osc:pt2pt:'; }

# one_sided RANKS [ARGUMENT...] : puts, gets and atomics are those of the provider.
one_sided() {
    local n=$1
    shift
    mpi "$n" --mca pml ob1 --mca btl ofi,self --mca btl_ofi_mode 2 --mca osc rdma \
        --mca osc_rdma_btls ofi --mca opal_common_ofi_provider_include "$FI_PROVIDER" "$@"
}

# over_shared_memory RANKS [ARGUMENT...] : Open MPI's own transport, to compare with.
over_shared_memory() {
    local n=$1
    shift
    mpi "$n" --mca pml ob1 --mca btl vader,self "$@"
}

# report STATUS NAME [WHY] : the line of one job.
report() {
    local status=$1 name=$2 why=${3:-}
    if [ "$status" -eq 0 ]; then
        echo "ok - $name"
        return
    fi
    failed=1
    [ -n "$why" ] || why="exit status $status"
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || why="not done after $limit_s s"
    echo "not ok - $name: $why"
    tail -n 30 "$scratch/log" | sed 's/^/    /'
}

# report_lines STATUS NAME : the lines of a program that reports for itself; one more if it died.
report_lines() {
    local status=$1 name=$2
    grep -E '^(not )?ok - ' "$scratch/log"
    if [ "$status" -ne 0 ]; then
        report "$status" "$name"
    elif ! grep -qE '^ok - ' "$scratch/log"; then
        report 1 "$name" 'it reported nothing'
    fi
}

finish() { exit "$failed"; }
