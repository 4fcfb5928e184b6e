// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Makes the start of a test cheap. Criterion starts a program for each test, and each time also
// libgit2, which it shows differences of texts with, and which brings fourteen libraries to talk to
// servers with: a third of what a test of the core costs. This is a library by the same name, in
// which no two texts differ.

#define RVT_EXPORT extern "C" [[gnu::visibility("default")]]

/// As of libgit2: how often it has been called.
RVT_EXPORT int git_libgit2_init() {
    return 1;
}

/// As of libgit2: how many calls of git_libgit2_init() are left.
RVT_EXPORT int git_libgit2_shutdown() {
    return 0;
}

/// As of libgit2, but calls nobody back: no difference, and no error.
RVT_EXPORT int git_diff_buffers(...) {
    return 0;
}
