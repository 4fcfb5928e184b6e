#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The form of .clang-format. Takes files, else looks at all; --fix rewrites them.
. "$(dirname "$0")/common.sh"
need clang-format-14 clang-format-14
fix=no
if [ "$1" = --fix ]; then fix=yes && shift; fi
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(tracked '*.cc' '*.h' '*.inl' '*.c'); fi
bad=0
# All at once first: to start for each file takes ten times as long as to look at it.
clang-format-14 --dry-run -Werror "${files[@]}" 2> /dev/null && verdict 'the form is that of .clang-format' 0
for file in "${files[@]}"; do
    clang-format-14 --dry-run -Werror "$file" 2> /dev/null && continue
    if [ $fix = yes ]; then
        clang-format-14 -i "$file" || bad=1
    else
        clang-format-14 "$file" | diff -u --label "$file" --label formatted "$file" - | head -n 20
        echo "$file: run scripts/check-format.sh --fix $file"
        bad=1
    fi
done
verdict 'the form is that of .clang-format' $bad
