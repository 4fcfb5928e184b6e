// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/fail.h"

#include <rdma/fi_errno.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include <unistd.h>

namespace fab {
namespace {

char* last_words = nullptr;
std::size_t last_words_size = 0;

/// _exit, not exit: a rank that gave up must not run the provider's destructors.
[[noreturn]] void leave(int code, const char* text) {
    if (last_words != nullptr) {
        std::snprintf(last_words, last_words_size, "%s", text);
    } else {
        std::fprintf(stderr, "%s\n", text);
    }
    _exit(code);
}

const char* base_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash == nullptr ? path : slash + 1;
}

}  // namespace

void set_last_words(char* text, std::size_t size) {
    last_words = text;
    last_words_size = size;
}

void fail_at(const char* file, int line, const char* format, ...) {
    char reason[400];
    va_list args;
    va_start(args, format);
    std::vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    char text[512];
    std::snprintf(text, sizeof text, "%s:%d: %s", base_name(file), line, reason);
    leave(kExitFail, text);
}

void skip(const char* format, ...) {
    char reason[400];
    va_list args;
    va_start(args, format);
    std::vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    leave(kExitSkip, reason);
}

void peer_gone() {
    leave(kExitPeerGone, "the other rank ended first");
}

void fail_fi(const char* file, int line, const char* what, long rc) {
    fail_at(file, line, "%s gave %ld (%s)", what, rc, fi_strerror(static_cast<int>(-rc)));
}

void fail_equal(const char* file, int line, const char* what, std::int64_t got,
                std::int64_t expected) {
    fail_at(file, line, "%s: got %lld, expected %lld", what, static_cast<long long>(got),
            static_cast<long long>(expected));
}

}  // namespace fab
