#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# clang's analysis of which lock guards what, over every source of the provider.
. "$(dirname "$0")/common.sh"
need clang++-14 clang-14
flags=$(compile_flags) || exit 2
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(tracked 'prov/*.cc'); fi
bad=0
# shellcheck disable=SC2086
printf '%s\n' "${files[@]}" | grep -v '^prov/rvt/test/' |
    xargs -r -d '\n' -n 1 -P 2 clang++-14 $flags -fsyntax-only -Wthread-safety -Werror || bad=1
verdict 'clang sees each lock held where it must be' $bad
