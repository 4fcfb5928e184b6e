// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory for tables of many small records.
#pragma once

#include <cstddef>
#include <cstdlib>

#include <sys/mman.h>

#include "util/cpu.h"

namespace rvt::util {

inline constexpr std::size_t kHugePage = 2u << 20;

/// Memory aligned to a cache line; std::free() gives it back. Large tables ask for huge pages: they
/// are read at random, and each miss of the TLB costs as much as one of the cache.
inline void* allocate_table(std::size_t bytes) noexcept {
    if (bytes < kHugePage) {
        return std::aligned_alloc(kCacheLine, (bytes + kCacheLine - 1) & -kCacheLine);
    }
    bytes = (bytes + kHugePage - 1) & -kHugePage;
    void* table = std::aligned_alloc(kHugePage, bytes);
    if (table != nullptr) {
        madvise(table, bytes, MADV_HUGEPAGE);  // only a hint: without them it works as well
    }
    return table;
}

}  // namespace rvt::util
