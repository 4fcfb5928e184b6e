#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What configure tells: where the provider goes, what was found, and, where it stops, which package is missing.
# Nothing is compiled but what configure tries.
. "$(dirname "$0")/common.sh"
root=$PWD
place=$(mktemp -d) || exit 2
trap 'rm -r "$place"' EXIT
cd "$place" || exit 2
bad=0
complain() {
    echo "$*"
    bad=1
}

# A pkg-config that does not know the package $hidden.
cat > but-one << 'END'
#!/bin/sh
case " $* " in *" $hidden "*) exit 1 ;; esac
exec pkg-config "$@"
END
chmod +x but-one

# start NAME [VARIABLE=VALUE]... [OPTION]... : configures a build tree NAME; its output is in NAME.log.
start() {
    local name=$1 variables=()
    shift
    while [[ $1 == [a-zA-Z]*=* ]]; do variables+=("$1") && shift; done
    mkdir "$name" && cd "$name" && env "${variables[@]}" "$root/configure" --quiet "$@" > "../$name.log" 2>&1
    echo $? > "../$name.status"
}
ended_well() { [ "$(cat "$1.status")" -eq 0 ]; }
# table NAME : the table at the end of what it said.
table() { sed -n '/^rvt [0-9.]*$/,$p' "$1.log"; }
# expect_row NAME TITLE TEXT : the table has one row of that title, whose text begins so.
expect_row() {
    local title
    title=$(printf '  %-14s ' "$2")
    table "$1" | grep "^${title}[^ ]" > row
    [ "$(wc -l < row)" -eq 1 ] || { complain "configure has no row for $2" && return; }
    grep -qE "^$title$3" row || complain "the row for $2 does not say $3: $(cat row)"
}
# expect_folder NAME FOLDER : make install puts the provider there, and the table says so.
expect_folder() {
    expect_row "$1" 'provider goes to' "$2 *\$"
    make -s -n -C "$1" DESTDIR=/staged install-providerLTLIBRARIES | grep -qF "'/staged$2'" ||
        complain "make install does not put the provider into $2"
}
# expect_refusal NAME PACKAGE : it stopped and named that package, which debian-packages knows.
expect_refusal() {
    ! ended_well "$1" || complain "configure goes on without $2"
    grep -q "error: .* required.*(Debian package $2)\$" "$1.log" ||
        complain "configure does not name $2: $(tail -n 1 "$1.log")"
    grep -q "^$2  *build\$" "$root/scripts/debian-packages" || complain "debian-packages has no $2"
}

start chosen --with-providerdir=/some/where &
start least hidden=criterion PKG_CONFIG="$place/but-one" --prefix=/some &
start nowhere --without-providerdir &
for hidden in libfabric hwloc libisal; do start "no-$hidden" hidden=$hidden PKG_CONFIG="$place/but-one" & done
start no-pkg-config PKG_CONFIG=false &
start no-compiler CXX=false &
wait

ended_well chosen && ended_well least || { cat chosen.log least.log && exit 2; }
expect_folder chosen /some/where
expect_row chosen libfabric "$(pkg-config --modversion libfabric) "
for title in hwloc ISA-L criterion MPI UCX libibverbs librdmacm 'clang 14' build; do expect_row chosen "$title" ''; done
! table chosen | tail -n +2 | grep -vE '^(  |$)' || complain 'the table is not the end of what configure says'
table chosen | grep -q ' set FI_PROVIDER_PATH=/some/where$' || complain 'nothing is said of FI_PROVIDER_PATH'

expect_folder least /some/lib/libfabric
expect_row least criterion 'not found \(libcriterion-dev\)'

! ended_well nowhere && grep -q 'error: --with-providerdir wants a directory$' nowhere.log ||
    complain 'configure goes on without a directory for the provider'
expect_refusal no-libfabric libfabric-dev
expect_refusal no-hwloc libhwloc-dev
expect_refusal no-libisal libisal-dev
expect_refusal no-pkg-config pkg-config
expect_refusal no-compiler g++
verdict 'configure tells where the provider goes, what it found, and which package is missing' $bad
