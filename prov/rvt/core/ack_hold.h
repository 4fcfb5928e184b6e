// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Acknowledgements that somebody waits for, and that leave with a reply if the application has one:
// whether they may wait for it.
//
// Who gets a message mostly replies, or polls for the next one, and an acknowledgement by itself is
// saved. Who has all that it waits for, and computes, keeps the sender waiting for what it could
// have had at once, until the control thread takes over. So the time that is saved and the time
// that is lost are added up, as they are or would be: they wait while the first is more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/send_hold.h"

namespace rvt::core {

/// Threads: any. Of two that call at a time one may not be heeded.
class AckHold {
  public:
    /// So long an acknowledgement waits for an application that polls, in microseconds.
    static constexpr std::uint64_t kStaysUs = 10;

    /// An acknowledgement is due to somebody who waits for it. Returns: whether it may be held.
    bool may_hold() noexcept {
        // relaxed: here and below, nothing else goes with these times and counts.
        is_asked_.store(true, std::memory_order_relaxed);
        return credit_us_.load(std::memory_order_relaxed) >= kEnoughUs;  // relaxed: s.a.
    }
    /// A poll that has brought something is over: it is the application's turn.
    /// @param now_us  Tells the time. Mostly it is not asked.
    template <class Clock>
    void note_turn(Clock now_us) noexcept {
        if (!is_asked_.load(std::memory_order_relaxed)) [[likely]] {  // relaxed: s.a.
            return;
        }
        is_asked_.store(false, std::memory_order_relaxed);  // relaxed: s.a.
        const std::uint64_t now = now_us();
        if (since_us_.load(std::memory_order_relaxed) == kNone) {  // relaxed: s.a.
            since_us_.store(now, std::memory_order_relaxed);       // relaxed: s.a.
        }
        last_us_.store(now, std::memory_order_relaxed);  // relaxed: s.a.
    }
    /// The application polls, or another thread does in its stead.
    template <class Clock>
    void note_poll(Clock now_us) noexcept {
        // relaxed: s.a.
        const std::uint64_t since_us = since_us_.load(std::memory_order_relaxed);
        if (since_us == kNone) [[likely]] {
            return;
        }
        const std::uint64_t now = now_us();
        if (now - since_us >= kStaysUs || is_late(now)) {
            settle(now);
        } else {
            last_us_.store(now, std::memory_order_relaxed);  // relaxed: s.a.
        }
    }
    /// Acknowledgements leave behind a reply, or would, or one leaves in it.
    template <class Clock>
    void note_reply(Clock now_us) noexcept {
        if (since_us_.load(std::memory_order_relaxed) != kNone) [[unlikely]] {  // relaxed: s.a.
            settle(now_us());
        }
    }

  private:
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    // What one by itself costs, and what is lost when the control thread takes over.
    static constexpr std::int64_t kSavedUs = 3;
    static constexpr std::int64_t kMostUs = 1500;
    static constexpr std::int64_t kEnoughUs = 8 * kSavedUs;

    /// So long after the last poll an application is taken to be busy elsewhere.
    [[nodiscard]] bool is_late(std::uint64_t now_us) const noexcept {
        // relaxed: s.a.
        return now_us - last_us_.load(std::memory_order_relaxed) >= SendHold::kMostUs;
    }
    /// The acknowledgement leaves, or would: behind the last poll, or when that is late.
    void settle(std::uint64_t now_us) noexcept {
        since_us_.store(kNone, std::memory_order_relaxed);  // relaxed: s.a.
        // relaxed: s.a.
        const std::uint64_t away_us = now_us - last_us_.load(std::memory_order_relaxed);
        const std::int64_t gain_us =
            is_late(now_us) ? -static_cast<std::int64_t>(std::min<std::uint64_t>(away_us, kMostUs))
                            : kSavedUs;
        // relaxed: s.a.
        const std::int64_t before = credit_us_.load(std::memory_order_relaxed);
        // relaxed: s.a.
        credit_us_.store(std::clamp(before + gain_us, -kMostUs, kMostUs),
                         std::memory_order_relaxed);
    }

    std::atomic<bool> is_asked_{false};           // in the poll that is under way
    std::atomic<std::uint64_t> since_us_{kNone};  // it has been the application's turn
    std::atomic<std::uint64_t> last_us_{0};       // poll since then
    std::atomic<std::int64_t> credit_us_{0};      // saved by waiting, less what was lost
};

}  // namespace rvt::core
