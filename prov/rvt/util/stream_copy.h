// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of pieces of a transfer that is larger than the cache, which memcpy() cannot know. All
// others are best left to memcpy(): measured from 1 KiB to 64 MiB between two cores of a Xeon with
// AVX-512, no loop of ours and no "rep movsb" beat it.
#pragma once

#include <cstddef>
#include <cstring>

#include "util/cpu.h"

namespace rvt::util {

namespace detail {

[[gnu::cold]] bool is_streamed(std::size_t total) noexcept;
[[gnu::cold]] void copy_past_cache(void* to, const void* from, std::size_t n) noexcept;

}  // namespace detail

/// Transfers below this go through the cache whatever else is known of them, in bytes.
inline constexpr std::size_t kLeastStreamed = 32u << 20;

/// Copies one piece of a transfer of `total` bytes to one destination.
///
/// When the whole will not stay in the cache, the piece goes past it (where the processor has
/// AVX-512, which alone gained by it) and is ordered before every store that follows: a flag may be
/// raised at once.
RVT_ALWAYS_INLINE void copy_stream(void* to, const void* from, std::size_t n,
                                   std::size_t total) noexcept {
    if (total >= kLeastStreamed && detail::is_streamed(total)) [[unlikely]] {
        detail::copy_past_cache(to, from, n);
        return;
    }
    std::memcpy(to, from, n);
}

}  // namespace rvt::util
