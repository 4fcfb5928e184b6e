#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Each header compiles alone, so that the order of includes never matters. One that its own source
# includes first does, or clang-tidy, which knows no precompiled header, would object. (Those of MPI
# programs want MPI's own compiler wrapper.)
. "$(dirname "$0")/common.sh"
flags=$(compile_flags) || exit 2
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(tracked '*.h' | grep -v '^fabtests/mpi/'); fi
is_first_of_its_source() {
    local source=${1%.h}.cc
    [[ $1 != prov/rvt/test/* ]] && [ -f "$source" ] &&
        grep -m 1 '^ *# *include' "$source" | grep -qF "/$(basename "$1")\""
}
alone() {
    is_first_of_its_source "$1" && return
    # shellcheck disable=SC2086
    echo "#include \"$PWD/$1\"" | ${CXX:-g++} $flags -fsyntax-only -x c++ - || {
        echo "$1: does not compile alone"
        return 1
    }
}
export -f alone is_first_of_its_source
export flags
bad=0
printf '%s\n' "${files[@]}" | grep . | xargs -r -d '\n' -n 1 -P 2 bash -c 'alone "$1" || exit 1' _ || bad=1
verdict 'each header compiles alone' $bad
