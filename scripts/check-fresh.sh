#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs one of the two commands of the README, ./quickstart if none is named, on a Debian 12 that has nothing
# but its base: whether the lists of packages name all that it wants. Takes what git knows of this tree.
#
#   check-fresh.sh [COMMAND...]
. "$(dirname "$0")/set-up.sh"
in_root=("$rvt_root/scripts/debian-root")

if ! "${in_root[@]}" 12 > /dev/null; then
    echo '############################################################'
    echo '# SKIPPED: no Debian 12 here, the set-up was NOT tried on  #'
    echo '# a fresh one                                              #'
    echo '############################################################'
    exit 77
fi
[ $# -gt 0 ] || set -- ./quickstart
sentence="$* sets a fresh Debian 12 up and succeeds there"
# shellcheck disable=SC2016
if git ls-files -z | tar --null -T - -cf - |
    "${in_root[@]}" --copy 12 bash -c 'mkdir /rvt && tar -C /rvt --no-same-owner -xf - && cd /rvt && "$@"' _ "$@"; then
    echo "ok - $sentence"
else
    echo "not ok - $sentence"
    exit 1
fi
