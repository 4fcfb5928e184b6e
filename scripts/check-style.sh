#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# All checks of the tree's form, cheap ones first. Takes names of checks, else runs all.
. "$(dirname "$0")/common.sh"
[ $# -gt 0 ] || set -- spdx words shell includes memory-orders flags configure format headers tidy
bad=0
for check in "$@"; do
    "scripts/check-$check.sh" || bad=1
done
exit $bad
