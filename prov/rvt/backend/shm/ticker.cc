// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When the control thread takes over, and when it rests.
#include "backend/shm/ticker.h"

#include <algorithm>

#include <sys/epoll.h>

#include "util/fork_guard.h"

namespace rvt::shm {
namespace {

constexpr std::chrono::milliseconds kTick{1};  // design: "after 1 ms without a poll"
// An armed endpoint needs no look; this is for news of polling that got lost.
constexpr std::chrono::milliseconds kMaxRest{1000};
constexpr int kMaxRounds = 8;  // of progress before others on this thread get their turn

}  // namespace

void Ticker::start(int wake_fd) {
    wake_fd_ = wake_fd;
    if (has_auto_progress_) {
        watch_application();
    }
}

void Ticker::kick(bool is_polling) {
    if (!is_polling) {
        take_over();
    } else if (!has_timer() || only_sends_) {
        look_again();
    }
}

void Ticker::look_again() {
    only_sends_ = false;
    last_count_ = user_.poll_count();
    set_timer(Clock::now() + kTick);
}

void Ticker::note_connected() {
    if (has_auto_progress_ || is_armed_) {
        return;  // all is looked after
    }
    is_newly_connected_ = true;
    look_for_sends();
}

/// For who is connected anew. While there is a timer for something else, that comes first: whether
/// the application has polled since, only the next look tells.
void Ticker::look_for_sends() {
    if (is_newly_connected_ && !has_timer()) {
        is_newly_connected_ = false;
        only_sends_ = true;
        rest_ = kTick;
        last_count_ = user_.poll_count();
        set_timer(Clock::now() + rest_);
    }
}

void Ticker::note_polling(bool has_sleepers) {
    has_sleepers_ = (has_sleepers_ || has_sleepers) && !has_auto_progress_;
    watch_application();
}

void Ticker::on_ready([[maybe_unused]] std::uint32_t events) {
    if (is_armed_) {
        take_over();
    }
}

void Ticker::on_timer() {
    const std::uint64_t count = user_.poll_count();
    if (count != last_count_) {
        has_sleepers_ = has_sleepers_ && user_.has_sleepers();
        watch_application();
        look_for_sends();
    } else if (is_armed_ && has_auto_progress_) {
        rest();
    } else if (only_sends_) {
        send_for_application();
    } else {
        take_over();
    }
}

void Ticker::watch_application() {
    disarm();
    only_sends_ = false;
    last_count_ = user_.poll_count();
    if (has_auto_progress_ || has_sleepers_) {
        set_timer(Clock::now() + kTick);
    }
}

void Ticker::send_for_application() {
    const util::ForkRelease release;
    is_newly_connected_ = false;
    only_sends_ = user_.control_send();
    if (only_sends_) {
        rest_ = std::min(rest_ * 2, kMaxRest);
        set_timer(Clock::now() + rest_);
    }
}

void Ticker::take_over() {
    // Progress may take long, and does not concern a fork.
    const util::ForkRelease release;
    disarm();
    cancel_timer();  // it may be for sends alone, which are among what is done now
    only_sends_ = is_newly_connected_ = false;
    last_count_ = user_.poll_count();
    const Clock::time_point begin = Clock::now();
    for (int round = 0; round < kMaxRounds; ++round) {
        if (!user_.control_progress()) {
            watch_application();
            return look_again();
        }
        if (user_.control_arm() && (has_sleepers_ ? leave_to_sleepers() : arm())) {
            rest_ = kTick;
            return rest();
        }
    }
    // Work is left that does not end: much of it, or some that waits for a peer to make room. Look
    // again at once only when this look was well spent.
    const Clock::time_point now = Clock::now();
    set_timer(now - begin >= kTick ? now : now + kTick);
}

/// Notices the next write to the descriptor, or the last one if nobody has read it. Only then:
/// while the application sleeps on it, this thread must not wake with it, often on the same core.
bool Ticker::arm() {
    is_armed_ = watch(wake_fd_, EPOLLIN | EPOLLONESHOT).is_ok();
    return is_armed_;
}

/// Peers wake them from now on.
bool Ticker::leave_to_sleepers() noexcept {
    has_sleepers_ = false;
    user_.control_disarm();
    return true;
}

void Ticker::disarm() noexcept {
    if (is_armed_) {
        is_armed_ = false;
        user_.control_disarm();  // else peers would believe that they are heard
        unwatch();
    }
}

void Ticker::rest() {
    rest_ = std::min(rest_ * 2, kMaxRest);
    if (has_auto_progress_) {
        set_timer(Clock::now() + rest_);
    }
}

}  // namespace rvt::shm
