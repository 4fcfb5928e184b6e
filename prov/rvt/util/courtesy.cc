// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The yield, and what its length tells.
#include "util/courtesy.h"

#include <sched.h>

#include <algorithm>

namespace rvt::util {
namespace {

// A yield that nobody used takes less than about 2 us; one that a busy process used, until it was
// interrupted, more than about 1 ms.
const std::uint64_t kUnusedTicks = ticks_of_ns(1'700);
const std::uint64_t kSliceTicks = ticks_of_ns(830'000);

}  // namespace

void Courtesy::yield() noexcept {
    const std::uint64_t start = cpu_ticks();
    sched_yield();
    const std::uint64_t took = cpu_ticks() - start;
    // Short turns are those of processes that yield as well: they wait for each other, the sooner
    // the better. A process that computes would take all it is given, whenever we ask.
    const bool is_shared = took > kUnusedTicks && took < kSliceTicks;
    // relaxed: as in is_due().
    const std::uint32_t patience = patience_.load(std::memory_order_relaxed);
    const std::uint32_t next = is_shared ? patience / 2 : patience * 2;
    patience_.store(std::clamp(next, kLeastPatience, kMostPatience), std::memory_order_relaxed);
    // relaxed: as above.
    polls_.store(0, std::memory_order_relaxed);
}

}  // namespace rvt::util
