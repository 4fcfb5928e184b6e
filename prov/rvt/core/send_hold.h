// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets and frames that are held for the next poll while others are under way, so that several
// messages leave in one packet, or in one system call: for how long, and who lets them go.
//
// Mostly the application polls at once. Where it has not come back soon, one of the last times, a
// timer is set whenever a message begins to be held. Of an application that has always come back
// and now computes, what is held leaves with its next post, or when the control thread takes over.
//
// On a virtual processor a timer may take as long to set as it is set for, and as long again when
// it expires. That alone would keep the application from coming back in time, for ever. Where it is
// so, nothing is held of an application that has not come back soon.
//
// Where to send takes longer than all that, a message is held for as long as it takes: of several
// that are posted one after the other, it would not have left much sooner by itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rvt::core {

/// Threads: any. Of two that call at a time one may not be heeded.
class SendHold {
  public:
    /// Nothing is to be held for longer, in microseconds, where sending is quick; and where it is
    /// not.
    static constexpr std::uint64_t kMostUs = 20;
    static constexpr std::uint64_t kMostSlowUs = 1000;

    /// What limits the time now.
    [[nodiscard]] std::uint64_t most_us() const noexcept {
        // relaxed: here and below, nothing else goes with these times and counts.
        return most_us_.load(std::memory_order_relaxed);
    }
    /// So long has it taken to send something. Of two times the shorter is believed: a thread may
    /// have been interrupted.
    void note_cost(std::uint64_t us) noexcept {
        // relaxed: s.a.
        const std::uint64_t before = cost_us_.exchange(us, std::memory_order_relaxed);
        most_us_.store(std::clamp(std::min(before, us), kMostUs, kMostSlowUs),
                       std::memory_order_relaxed);
    }

    /// @param timer  A timerfd(2), which expires most_us() after a message has begun to be held.
    ///               Who watches it asks is_overdue(), and sends. -1: there is none any more.
    /// @param cost_us  How long it takes to set it.
    void use_timer(int timer, std::uint64_t cost_us) noexcept {
        timer_cost_us_.store(cost_us, std::memory_order_relaxed);  // relaxed: s.a.
        // relaxed: a number, of something that exists.
        timer_.store(timer, std::memory_order_relaxed);
    }

    /// A message is posted behind others. Returns: whether it may be held.
    /// @param now_us  Tells the time. Most calls do not ask.
    template <class Clock>
    bool may_hold(Clock now_us) noexcept {
        // relaxed: s.a.
        const std::uint32_t posts = posts_.load(std::memory_order_relaxed);
        const bool is_trusted = soon_.load(std::memory_order_relaxed) == kTimes;  // relaxed: s.a.
        posts_.store(posts + 1, std::memory_order_relaxed);                       // relaxed: s.a.
        if (!is_trusted && is_timer_slow()) {
            last_us_.store(now_us(), std::memory_order_relaxed);  // relaxed: s.a.
            return false;
        }
        if (posts == 0) {
            since_us_.store(now_us(), std::memory_order_relaxed);  // relaxed: s.a.
            last_us_.store(since_us_, std::memory_order_relaxed);  // relaxed: s.a.
            if (!is_trusted) {
                set_timer();
            }
            return true;
        }
        return (is_trusted && posts % kPostsPerLook != 0) || !look(now_us());
    }
    /// What is held for one peer has left behind a post. It may take long to send: the application
    /// has not been away meanwhile.
    /// @param now_us  Tells the time. Most calls do not ask.
    template <class Clock>
    void note_left(Clock now_us) noexcept {
        if (is_asked()) {
            last_us_.store(now_us(), std::memory_order_relaxed);  // relaxed: s.a.
        }
    }
    /// Whether something may be held.
    [[nodiscard]] bool is_asked() const noexcept {
        return posts_.load(std::memory_order_relaxed) != 0;  // relaxed: s.a.
    }
    /// Has the timer expire most_us() from now.
    [[gnu::cold]] void set_timer() const noexcept;
    /// Everything that is held leaves from now on, with a poll of the application or another's.
    /// It is to be told before it takes time to send.
    /// @param now_us  Tells the time. Where nothing is held it is not asked.
    template <class Clock>
    void note_poll(Clock now_us) noexcept {
        if (!is_asked()) {
            return;
        }
        // relaxed: s.a.
        const bool is_soon = now_us() - last_us_.load(std::memory_order_relaxed) < most_us();
        const std::uint32_t before = soon_.load(std::memory_order_relaxed);  // relaxed: s.a.
        // relaxed: s.a.
        soon_.store(is_soon ? std::min(before + 1, kTimes) : 0, std::memory_order_relaxed);
        posts_.store(0, std::memory_order_relaxed);  // relaxed: s.a.
    }
    /// Whether something has been held for too long: the next posts are not trusted to be followed
    /// by a poll.
    [[nodiscard]] bool is_overdue(std::uint64_t now_us) noexcept {
        // relaxed: s.a.
        const std::uint64_t since_us = since_us_.load(std::memory_order_relaxed);
        if (!is_asked() || now_us < since_us + most_us()) {
            return false;
        }
        last_us_.store(since_us, std::memory_order_relaxed);  // relaxed: s.a.
        return true;
    }

  private:
    static constexpr std::uint32_t kTimes = 8;
    static constexpr std::uint32_t kPostsPerLook = 8;
    static constexpr std::uint64_t kMostTimerCosts = 4;  // in the time for which it is set

    [[nodiscard]] bool is_timer_slow() const noexcept {
        // relaxed: s.a.
        return timer_cost_us_.load(std::memory_order_relaxed) * kMostTimerCosts > most_us();
    }
    /// Returns: whether what is held has to leave with the message at hand.
    bool look(std::uint64_t now_us) noexcept {
        last_us_.store(now_us, std::memory_order_relaxed);  // relaxed: s.a.
        // relaxed: s.a.
        const bool is_due = now_us - since_us_.load(std::memory_order_relaxed) > most_us();
        if (is_due) {
            since_us_.store(now_us, std::memory_order_relaxed);  // relaxed: s.a.
        }
        return is_due;
    }

    std::atomic<std::uint64_t> since_us_{0};  // the oldest that is held, as of the last look
    std::atomic<std::uint64_t> last_us_{0};   // the newest
    std::atomic<std::uint64_t> most_us_{kMostUs};
    std::atomic<std::uint64_t> cost_us_{0};  // of what was sent last
    std::atomic<std::uint32_t> posts_{0};    // since the last poll
    std::atomic<std::uint32_t> soon_{0};     // times in a row that a poll came soon, up to kTimes
    std::atomic<int> timer_{-1};
    std::atomic<std::uint64_t> timer_cost_us_{0};
};

}  // namespace rvt::core
