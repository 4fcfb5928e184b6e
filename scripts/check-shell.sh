#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Every script passes shellcheck.
. "$(dirname "$0")/common.sh"
need shellcheck shellcheck
bad=0
tracked '*' | while read -r file; do
    head -c 64 "$file" | head -n 1 | grep -qE '^#!.*\b(ba)?sh$' && echo "$file"
done | xargs -r -d '\n' shellcheck --severity=warning --external-sources --source-path=SCRIPTDIR || bad=1
verdict 'shellcheck has no objection' $bad
