// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether a wait polls for a while before it sleeps, and how long.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include <sched.h>

namespace rvt::util {

/// What a queue or counter has learned of its waits. To sleep and be woken takes two switches of
/// context, and a core that went idle meanwhile comes back late: several microseconds, tens in a
/// guest. What comes sooner, such as the answer to a request, is better polled for. Where polling
/// was in vain, the next waits sleep at once: 1, then 3, 7, ... at most kMostSkipped. While it
/// polls it yields the core now and then, for the case that who is waited for needs that very core.
///
/// Threads: any; several at a time may miscount, which does no harm.
class BusyPoll {
  public:
    static constexpr std::uint32_t kMostSkipped = 63;
    static constexpr std::chrono::microseconds kFirstYield{2};  // then after twice, four times, ...

    /// @param window  How long a wait polls, at most; 0: it does not.
    explicit BusyPoll(std::chrono::microseconds window) noexcept : window_(window) {}

    /// One wait. Threads: the one that waits.
    class Wait {
      public:
        explicit Wait(BusyPoll& owner) noexcept : owner_(owner) {}

        /// Asked after each look that found nothing, without locks. Returns: whether to look again
        /// at once.
        bool goes_on() noexcept {
            const auto now = std::chrono::steady_clock::now();
            if (state_ == State::kBegins) {
                state_ = owner_.is_worthwhile() ? State::kPolls : State::kSleeps;
                begin_ = now;
                look_after_ = std::min<std::chrono::nanoseconds>(kFirstYield, owner_.window_);
            }
            if (state_ == State::kPolls && now - begin_ >= look_after_) {
                go_on_or_give_up(now - begin_);
            }
            return state_ == State::kPolls;
        }
        /// What was waited for is there.
        void succeed() noexcept {
            if (state_ == State::kPolls) {
                owner_.learn(true);
            }
        }

      private:
        enum class State : std::uint8_t { kBegins, kPolls, kSleeps };

        [[gnu::cold]] void go_on_or_give_up(std::chrono::nanoseconds polled) noexcept {
            if (polled >= owner_.window_) {
                owner_.learn(false);
                state_ = State::kSleeps;
            } else {
                look_after_ = std::min<std::chrono::nanoseconds>(2 * look_after_, owner_.window_);
                sched_yield();
            }
        }

        BusyPoll& owner_;
        State state_ = State::kBegins;
        std::chrono::steady_clock::time_point begin_;
        std::chrono::nanoseconds look_after_{};  // for what is due; since begin_
    };

  private:
    bool is_worthwhile() noexcept {
        // relaxed: a number that only makes waits poll more often or less.
        const std::uint32_t left = left_to_skip_.load(std::memory_order_relaxed);
        if (left != 0) {
            left_to_skip_.store(left - 1, std::memory_order_relaxed);
        }
        return left == 0 && window_.count() != 0;
    }

    void learn(bool was_worthwhile) noexcept {
        // relaxed: as above.
        const std::uint32_t skipped = skipped_.load(std::memory_order_relaxed);
        const std::uint32_t next = was_worthwhile ? 0 : std::min(2 * skipped + 1, kMostSkipped);
        skipped_.store(next, std::memory_order_relaxed);       // relaxed: as above
        left_to_skip_.store(next, std::memory_order_relaxed);  // relaxed: as above
    }

    const std::chrono::microseconds window_;
    std::atomic<std::uint32_t> skipped_{0};  // after the latest wait that polled in vain
    std::atomic<std::uint32_t> left_to_skip_{0};
};

}  // namespace rvt::util
