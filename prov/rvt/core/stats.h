// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What a device counts. Each thread counts in a line of its own; a reader adds the lines up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "util/cpu.h"

namespace rvt::core {

enum class Stat : std::uint8_t {
    kMessagesSent,
    kBytesSent,
    kMessagesReceived,
    kBytesReceived,
    kLoopMessages,    // of those sent, within this device
    kRnrNaks,         // sent: no receive was posted
    kRequestNaks,     // sent: invalid request or one that is too long
    kAccessNaks,      // sent: memory that the peer may not use
    kDrops,           // UC and UD messages that went nowhere, and requests out of order
    kFlushed,         // work requests completed because their queue is in error
    kRetries,         // work requests started again after a receiver was not ready
    kBadSegments,     // segments from peers that made no sense
    kBadPackets,      // packets likewise
    kDuplicates,      // packets that had come before
    kSequenceErrors,  // packets that came before those in front of them
    kTimeouts,        // no answer for so long that the oldest packet was sent again
    // Of the application's memory at NICs (core/reg_cache.h):
    kRegionsFound,    // it was registered already
    kRegionsKept,     // it was registered, to stay so
    kRegionsOnce,     // it was registered for one use
    kRegionsDropped,  // of those kept, for want of room
    kRegionsStale,    // of those kept, since the memory has changed
};
inline constexpr std::size_t kStats = 21;
const char* to_string(Stat stat) noexcept;

/// field       | written by                        | read by | order
/// lines_[i]   | thread number i, i < kThreadLines | sum()   | relaxed
/// lines_.back | all further threads               | sum()   | relaxed, read-modify-write
class Stats {
  public:
    /// Cost: a load and a store to a line that nobody else writes.
    void add(Stat stat, std::uint64_t n = 1) noexcept { add_of(thread_number(), stat, n); }
    /// A message of so many bytes.
    void add_sent(std::uint64_t bytes) noexcept {
        const unsigned thread = thread_number();
        add_of(thread, Stat::kMessagesSent, 1);
        add_of(thread, Stat::kBytesSent, bytes);
    }

    /// Threads: any. Counts of other threads may be a moment old.
    [[nodiscard]] std::uint64_t sum(Stat stat) const noexcept;

  private:
    static constexpr unsigned kThreadLines = 32;
    struct alignas(util::kCacheLine) Line {
        std::array<std::atomic<std::uint64_t>, kStats> cells{};
    };

    void add_of(unsigned thread, Stat stat, std::uint64_t n) noexcept {
        auto& cell = lines_[thread].cells[static_cast<std::size_t>(stat)];
        if (thread < kThreadLines) [[likely]] {
            // relaxed: counts order nothing, and this line has one writer.
            cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
        } else {
            // relaxed: counts order nothing.
            cell.fetch_add(n, std::memory_order_relaxed);
        }
    }
    /// A number of the calling thread's own until its thread storage ends, at most kThreadLines.
    static unsigned thread_number() noexcept;

    std::array<Line, kThreadLines + 1> lines_{};
};

/// Those counts of packets that went wrong, or came again, which are not 0, as "drops 1, timeouts
/// 2".
std::string describe_losses(const Stats& stats);

}  // namespace rvt::core
