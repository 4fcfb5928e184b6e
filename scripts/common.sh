# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What the check scripts share. Source it; the working directory becomes the root of the tree.
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

# tracked PATTERN... : the files of the project that match, whether in a checkout or a tarball.
tracked() {
    if [ -e .git ]; then
        git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
            [ -f "$file" ] && echo "$file"
        done
    else
        local pattern
        for pattern in "$@"; do
            find . -type f -name "${pattern##*/}" -path "./$pattern" -not -path './build*' |
                sed 's|^\./||'
        done
    fi | sort -u
}

# compile_flags : what the build tree compiles with. RVT_BUILDDIR names it, build is the default.
compile_flags() {
    local file=${RVT_BUILDDIR:-build}/compile_flags.txt
    if [ ! -r "$file" ]; then
        echo "no $file; configure a build tree and set RVT_BUILDDIR to it" >&2
        return 1
    fi
    cat "$file"
}

# compile COMMAND... : lets the compilers that it starts take memory in large pieces, of large pages where the
# kernel has them: clang needs a sixth less time, where the host of a virtual machine has to learn of each page.
compile() { GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864 "$@"; }

# need PROGRAM PACKAGE : ends the script when the program is missing.
need() {
    command -v "$1" > /dev/null && return
    echo "$1 is required (Debian package $2)" >&2
    exit 1
}

# verdict NAME BAD : one line that says how the check ended; its status ends the script.
verdict() {
    if [ "$2" -eq 0 ]; then echo "ok - $1"; else echo "not ok - $1"; fi
    exit "$2"
}
