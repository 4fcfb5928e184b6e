#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Every file of a checkout is in the tarball that `make dist` left in RVT_BUILDDIR.
. "$(dirname "$0")/common.sh"
if [ ! -e .git ]; then
    echo 'a tarball has nothing to be compared with'
    exit 77
fi
packed=$(tar -tzf "${RVT_BUILDDIR:-build}"/rvt-*.tar.gz | sed 's|^[^/]*/||') || exit 2
missing=$(git ls-files | grep -vE '^(\.ci/.*|\.editorconfig|(.*/)?\.gitignore)$' |
    grep -vxF "$packed")
[ -z "$missing" ] || echo "not in the tarball: $missing"
bad=0
[ -z "$missing" ] || bad=1
verdict 'the tarball holds every file of the tree' $bad
