#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# clang-tidy with the checks of .clang-tidy, and clang's analysis of which lock guards what. Takes
# files, else looks at all C++ sources but rdm_ops_spin.cc, which instantiates once more what rdm_ops_owner.cc
# does, and Criterion's tests: in what its macros expand to, few checks make sense, and they take longest.
. "$(dirname "$0")/common.sh"
need clang-tidy-14 clang-tidy-14
flags=$(compile_flags) || exit 2
tidy() {
    local out
    # shellcheck disable=SC2086
    if ! out=$(compile clang-tidy-14 --quiet "$1" -- $flags -Wthread-safety -Wzero-as-null-pointer-constant 2> /dev/null); then
        echo "$out"
        echo "$1: clang-tidy objects"
        return 1
    fi
}
# tidy_all FILE... : two at a time.
tidy_all() { printf '%s\n' "$@" | grep . | xargs -r -d '\n' -n 1 -P 2 bash -c 'tidy "$1" || exit 1' _; }
# tidy_in FOLDER COUNT FILE... : the same with the configuration of the folder, which may have one of its own, as so
# many sources, or some more where their names leave no choice: headers, which each check reads, take longest.
tidy_in() {
    local place status i together=() unfit
    place=$(mktemp -d) || return
    for ((i = 0; i < $2; i++)); do together+=("$place/in/$i.cc"); done
    while ! unfit=$(scripts/unity "${together[@]}" -- "${@:3}" 2>&1); do
        [ "$i" -lt $(($2 * 2)) ] || { echo "$unfit"; rm -r "$place"; return 1; }
        together+=("$place/in/$i.cc")
        i=$((i + 1))
    done
    cp .clang-tidy "$place/" && cp "$1/.clang-tidy" "$place/in/" &&
        tidy_all "${together[@]}"
    status=$?
    rm -r "$place"
    return $status
}
export -f tidy compile
export flags
bad=0
if [ $# -gt 0 ]; then
    tidy_all "$@" || bad=1
else
    mapfile -t provider < <(tracked 'prov/*.cc' | grep -vE '^prov/rvt/(test/|rdm_ops_spin\.cc$)')
    mapfile -t programs < <(tracked 'fabtests/*.cc')
    mapfile -t others < <(tracked '*.cc' | grep -vE '^(prov|fabtests)/')
    tidy_in . 20 "${provider[@]}" || bad=1
    tidy_in fabtests 30 "${programs[@]}" || bad=1
    tidy_all "${others[@]}" || bad=1
fi
verdict 'clang-tidy has no objection, and sees each lock held where it must be' $bad
