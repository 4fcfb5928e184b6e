// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When a caller that polls in vain lets others run. With more spinning processes than cores, who is
// waited for cannot answer before the one that waits leaves the core; many applications never do.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/cpu.h"

namespace rvt::util {

/// Counts polls that found nothing. After many in a row the caller yields its core, which costs
/// little then; the number adapts to whether others have used it.
///
/// Threads: any; several at a time may miscount, which does no harm.
class Courtesy {
  public:
    static constexpr std::uint32_t kLeastPatience = 64;
    static constexpr std::uint32_t kMostPatience = 2048;

    /// Notes a poll. Returns: whether yield() is due, which the caller does without its locks.
    RVT_ALWAYS_INLINE bool is_due(bool has_found) noexcept {
        // relaxed: a number that only makes yields rarer or more frequent.
        const std::uint32_t polls = has_found ? 0 : polls_.load(std::memory_order_relaxed) + 1;
        polls_.store(polls, std::memory_order_relaxed);
        // relaxed: as above.
        return polls >= patience_.load(std::memory_order_relaxed);
    }

    /// Lets another thread have the core, and learns from how long that took.
    [[gnu::cold]] void yield() noexcept;

  private:
    std::atomic<std::uint32_t> polls_{0};
    std::atomic<std::uint32_t> patience_{kMostPatience / 2};
};

}  // namespace rvt::util
