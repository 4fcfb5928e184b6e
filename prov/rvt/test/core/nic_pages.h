// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory for tests of what NICs do with it.
#pragma once

#include <algorithm>
#include <cstddef>

#include <sys/mman.h>
#include <sys/uio.h>

namespace rvt::test {

inline constexpr std::size_t kPagesBytes = 256u << 10;

/// Memory of the application.
struct Pages {
    explicit Pages(char filled, std::size_t length = kPagesBytes, int flags = MAP_PRIVATE)
        : bytes(length),
          memory(static_cast<char*>(
              mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0))) {
        std::fill_n(memory, bytes, filled);
    }
    ~Pages() { munmap(memory, bytes); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    iovec part(std::size_t begin, std::size_t length) const { return {memory + begin, length}; }
    iovec all() const { return part(0, bytes); }
    bool is(char what, std::size_t begin, std::size_t end) const {
        return std::all_of(memory + begin, memory + end, [what](char c) { return c == what; });
    }
    bool is(char what) const { return is(what, 0, bytes); }

    const std::size_t bytes;
    char* const memory;
};

}  // namespace rvt::test
