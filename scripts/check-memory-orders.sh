#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Each atomic access names its order, and each order its reason: `pairs with ...` or
# `relaxed: why`, in the three lines before it or on its own.
. "$(dirname "$0")/common.sh"
if [ $# -gt 0 ]; then
    files=("$@")
else
    mapfile -t files < <(tracked 'prov/*.cc' 'prov/*.h' 'prov/*.inl' 'include/*.h' 'fabtests/*.cc' \
        'fabtests/*.h' 'util/*.cc' 'util/*.h')
fi
bad=0
awk 'FNR == 1 { ok = 0 }
     /[Pp]airs with|relaxed:/ { ok = FNR + 3 }
     /memory_order(_|::)/ && FNR > ok {
         print FILENAME ":" FNR ": order without its reason"
         bad = 1
     }
     END { exit bad }' "${files[@]}" || bad=1
# A statement is read to its end, as the order may be on a later line than the call.
awk 'FNR == 1 { text = "" }
     { line = $0; sub(/\/\/.*/, "", line) }
     text == "" && line ~ /(\.|->)(load\(\)|store\(|exchange\(|fetch_(add|sub|or|and|xor)\(|compare_exchange_(weak|strong)\(|test_and_set\()|atomic_(thread|signal)_fence\(/ {
         text = " "
         at = FNR
     }
     text != "" {
         text = text line
         if (line ~ /[;{]/) {
             if (text !~ /order/) {
                 print FILENAME ":" at ": atomic access without an order"
                 bad = 1
             }
             text = ""
         }
     }
     END { exit bad }' "${files[@]}" || bad=1
verdict 'each memory order is named and has its reason' $bad
