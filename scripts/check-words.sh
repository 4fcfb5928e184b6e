#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Nothing unfinished, no path of one person's machine, no host of a package archive; and each file that a document
# names is there, for readers of manual pages also where things are installed.
. "$(dirname "$0")/common.sh"
bad=0
search() {  # search WHAT PATTERN
    local hits
    hits=$(tracked '*' | grep -vxF -e scripts/check-words.sh -e LICENSE | xargs -d '\n' grep -nIE "$2")
    [ -z "$hits" ] && return
    echo "$1:"
    echo "$hits"
    bad=1
}
search 'unfinished' '\b(TODO|FIXME|XXX|HACK)\b'
search 'path of one machine' '(^|[^[:alnum:]._$)}*-])/(home|root|work)(/|\b)'
search 'host of an archive' '(deb|security|ftp)\.(debian|ubuntu)\.|archive\.ubuntu|pypi\.org'
search 'blank at the end of a line' '[[:blank:]]+$'
# A name may begin within the tree, as hmem/cuda.cc or cuda.cc do.
files=$(tracked '*' | sed 's|^|/|')
while IFS=: read -r page line name; do
    grep -qE -- "/${name//./\\.}\$" <<< "$files" && continue
    echo "no such file: $page:$line: $name"
    bad=1
done < <(tracked 'docs/*.md' 'man/*' CONTRIBUTING.md |
    xargs grep -noHE '\b[[:alnum:]_./-]+\.(cc|h|inc|inl|md|py|sh)\b')
installed=$(sed -nE '/^dist_(doc|docs)_DATA/,/[^\\]$/p' Makefile.am)
while IFS=: read -r page line name; do
    grep -qw -- "$name" <<< "$installed" && continue
    echo "not installed: $page:$line: $name"
    bad=1
done < <(tracked 'man/*' | xargs grep -noHE '[[:alnum:]/-]+\.md\b')
verdict 'no word that does not belong here' $bad
