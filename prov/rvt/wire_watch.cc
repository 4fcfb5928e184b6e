// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When the control thread looks at the wire, and when it acts.
#include "wire_watch.h"

#include <algorithm>

#include <sys/epoll.h>

#include "core/device.h"
#include "util/fork_guard.h"

namespace rvt {
namespace {

using std::chrono::milliseconds;

// After so long without a poll the owner is taken to be busy elsewhere.
constexpr milliseconds kPatience{1};
// How often it is looked whether it polls, at least while packets come, and at least at all.
constexpr milliseconds kMostPause{4};
constexpr milliseconds kQuietPause{50};
constexpr milliseconds kTrimPause{50};
constexpr milliseconds kTurn{1};  // before other handlers of the thread have theirs

}  // namespace

util::Status WireWatch::start() {
    const int fd = flows_.device().ops().wake_fd(flows_.device());
    set_timer(Clock::now() + kQuietPause);
    return watch(fd, EPOLLIN | EPOLLONESHOT);
}

void WireWatch::leave_to_watch() noexcept {
    rearm(EPOLLIN | EPOLLONESHOT);
}

void WireWatch::on_ready(std::uint32_t) {
    is_hot_.store(true, std::memory_order_relaxed);  // relaxed: a hint to the owner
    last_count_ = user_.poll_count();
    pause_ = kPatience;
    set_timer(Clock::now() + pause_);
}

void WireWatch::on_timer() {
    const std::uint64_t count = user_.poll_count();
    const bool owner_polls = count != last_count_;
    last_count_ = count;
    trim();
    const bool is_due = flows_.next_due_us() <= flows_.device().now_us();
    // relaxed: a hint.
    const bool is_hot = is_hot_.load(std::memory_order_relaxed);
    if (owner_polls || (!is_hot && !is_due)) {
        if (is_due) {
            is_hot_.store(true, std::memory_order_relaxed);  // relaxed: a hint to the owner
        }
        rest();
        return;
    }
    take_over();
}

void WireWatch::trim() {
    const Clock::time_point now = Clock::now();
    if (now >= next_trim_) {
        next_trim_ = now + kTrimPause;
        flows_.trim();
    }
}

void WireWatch::rest() {
    // relaxed: a hint.
    const bool is_hot = is_hot_.load(std::memory_order_relaxed);
    pause_ = is_hot ? std::clamp(2 * pause_, kPatience, kMostPause) : kQuietPause;
    set_timer(Clock::now() + pause_);
}

void WireWatch::take_over() {
    // Progress may take long, and does not concern a fork.
    const util::ForkRelease release;
    const Clock::time_point end = Clock::now() + kTurn;
    is_hot_.store(true, std::memory_order_relaxed);  // relaxed: until a poll finds it quiet
    do {
        if (user_.poll_count() != last_count_) {
            last_count_ = user_.poll_count();
            rest();
            return;  // the owner is back
        }
        if (has_auto_progress_ && user_.control_progress()) {
            last_count_ = user_.poll_count();  // that was us
        } else {
            flows_.poll_for_owner();
        }
        // relaxed: cleared by this thread, or by the owner.
        if (!is_hot_.load(std::memory_order_relaxed)) {
            leave_to_watch();
            rest();
            return;
        }
    } while (Clock::now() < end);
    set_timer(Clock::now());
}

}  // namespace rvt
