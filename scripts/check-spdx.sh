#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Every file states its licence on its first line, or on the second after #!.
. "$(dirname "$0")/common.sh"
line='SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only'
bad=0
while read -r file; do
    case $file in LICENSE | .gitignore | .clang-* | */.clang-* | .editorconfig | *.svg | compile_flags.txt.in | *.png | *.csv | *.pcapng) continue ;; esac
    if ! head -n 2 "$file" | grep -qF "$line"; then
        echo "$file: no licence line"
        bad=1
    fi
done < <(tracked '*')
verdict 'every file states its licence' $bad
