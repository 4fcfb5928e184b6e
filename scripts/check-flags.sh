#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# A configure without options, as users call it and no stage of the tests, compiles each source with the flags of the
# tree. Nothing is compiled here.
. "$(dirname "$0")/common.sh"
root=$PWD
place=$(mktemp -d) || exit 2
trap 'rm -r "$place"' EXIT
cd "$place" || exit 2
"$root/configure" --quiet > log 2>&1 || { cat log; exit 2; }
make -n all > commands || exit 2
bad=0
grep -qE -- ' -c .*\.cc$' commands || { echo 'make compiles nothing'; bad=1; }
! grep -E -- ' -c .*\.cc$' commands | grep -v -- ' -std=c++20 ' | sed 's/^/without -std=c++20: /' | grep . || bad=1
verdict 'each source has the flags of the tree, whatever configure was asked' $bad
