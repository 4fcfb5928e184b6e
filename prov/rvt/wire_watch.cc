// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When the control thread looks at the wire, and when it acts.
#include "wire_watch.h"

#include <algorithm>
#include <optional>

#include <sys/epoll.h>

#include "core/device.h"
#include "util/fork_guard.h"

namespace rvt {
namespace {

using std::chrono::milliseconds;

// After so long without a poll the owner is taken to be busy elsewhere.
constexpr milliseconds kPatience{1};
// How often it is looked whether it polls, at least while packets come, while a NIC carries all,
// which answers by itself, and while something is due some time. Each look interrupts who polls on
// that processor: where nothing is due at all each pause is twice the one before, up to the most.
constexpr milliseconds kMostPause{4};
constexpr milliseconds kNicPause{20};
constexpr milliseconds kQuietPause{50};
constexpr milliseconds kMostQuietPause{16 * kQuietPause};
constexpr milliseconds kTrimPause{50};
constexpr milliseconds kTurn{1};  // before other handlers of the thread have theirs

}  // namespace

util::Status WireWatch::watch_holds(core::Device& device) {
    holds_ = std::make_unique<HoldWatch>(thread(), wire_, device);
    return holds_->start();
}

util::Status WireWatch::start() {
    pause_ = kQuietPause;
    set_timer(Clock::now() + pause_);
    return watch_once(wire_.wire_fd(), EPOLLIN);
}

void WireWatch::leave_to_watch() noexcept {
    if (!rearm().is_ok()) [[unlikely]] {
        is_hot_.store(true, std::memory_order_relaxed);  // relaxed: a hint; tried again when quiet
    }
}

void WireWatch::on_ready(std::uint32_t) {
    is_hot_.store(true, std::memory_order_relaxed);  // relaxed: a hint to the owner
    wire_.wire_is_ready();
    pause_ = kPatience;
    if (is_owner_away_ && wire_.owner_polls() == last_count_) {
        take_over();
        return;
    }
    is_owner_away_ = false;
    last_count_ = wire_.owner_polls();
    set_timer(Clock::now() + pause_);
}

void WireWatch::on_timer() {
    const std::uint64_t count = wire_.owner_polls();
    const bool owner_polls = count != last_count_;
    last_count_ = count;
    trim();
    const bool is_due = wire_.wire_due_us() <= wire_.wire_now_us();
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
        wire_.trim_wire();
    }
}

void WireWatch::rest() {
    // relaxed: a hint.
    if (is_hot_.load(std::memory_order_relaxed)) {
        pause_ = std::clamp(2 * pause_, kPatience, wire_.is_left_to_nic() ? kNicPause : kMostPause);
    } else {
        const bool is_any_due = wire_.wire_due_us() != core::Device::kNever;
        pause_ = std::clamp(2 * pause_, kQuietPause, is_any_due ? kQuietPause : kMostQuietPause);
    }
    set_timer(Clock::now() + pause_);
}

/// The next packet calls this thread again, at once as long as the owner is away; what is due meets
/// it at the end of a pause. The wire stays hot for the owner unless it is quiet.
void WireWatch::leave_for_owner() {
    is_owner_away_ = true;
    leave_to_watch();
    rest();
}

void WireWatch::take_over() {
    // Progress may take long, and does not concern a fork.
    const util::ForkRelease release;
    const Clock::time_point end = Clock::now() + kTurn;
    is_hot_.store(true, std::memory_order_relaxed);  // relaxed: until a poll finds it quiet
    std::optional<util::BusyPoll::Wait> silence(busy_poll_);
    std::uint64_t traffic = wire_.wire_traffic_us();
    do {
        if (wire_.owner_polls() != last_count_) {
            last_count_ = wire_.owner_polls();
            is_owner_away_ = false;
            rest();
            return;  // the owner is back
        }
        if (!wire_.poll_for_owner()) {
            rest();
            return;  // it was interrupted, perhaps on this processor
        }
        // relaxed: cleared by this thread, or by the owner.
        if (!is_hot_.load(std::memory_order_relaxed)) {
            leave_for_owner();
            return;
        }
        if (const std::uint64_t latest = wire_.wire_traffic_us(); latest != traffic) {
            traffic = latest;
            silence->succeed();
            silence.emplace(busy_poll_);
        } else if (!silence->goes_on() && wire_.let_go()) {
            leave_for_owner();
            return;
        }
    } while (Clock::now() < end);
    set_timer(Clock::now());
}

}  // namespace rvt
