#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# clang-tidy with the checks of .clang-tidy, and clang's analysis of which lock guards what. Takes
# files, else looks at all C++ sources but rdm_ops_spin.cc, which instantiates once more what rdm_ops_owner.cc
# does, and Criterion's tests: in what its macros expand to, few checks make sense, and they take longest.
. "$(dirname "$0")/common.sh"
need clang-tidy-14 clang-tidy-14
flags=$(compile_flags) || exit 2
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(tracked '*.cc' | grep -vE '^prov/rvt/(test/|rdm_ops_spin\.cc$)'); fi
tidy() {
    local out
    # shellcheck disable=SC2086
    if ! out=$(compile clang-tidy-14 --quiet "$1" -- $flags -Wthread-safety -Wzero-as-null-pointer-constant 2> /dev/null); then
        echo "$out"
        echo "$1: clang-tidy objects"
        return 1
    fi
}
export -f tidy compile
export flags
bad=0
printf '%s\n' "${files[@]}" | grep . | xargs -r -d '\n' -n 1 -P 2 bash -c 'tidy "$1" || exit 1' _ || bad=1
verdict 'clang-tidy has no objection, and sees each lock held where it must be' $bad
