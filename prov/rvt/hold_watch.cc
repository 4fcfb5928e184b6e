// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hold_watch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "wire_watch.h"

namespace rvt {
namespace {

/// How long it takes to set the timer for as long as messages are held, in microseconds: a tenth of
/// one on most processors, but 14 on a virtual one where the processor's own timer belongs to a
/// hypervisor. The least of a few times, as the thread may be interrupted. Leaves it unset.
std::uint64_t cost_to_set_us(int timer) noexcept {
    using Clock = std::chrono::steady_clock;
    constexpr int kTimes = 4;
    itimerspec soon{};
    soon.it_value.tv_nsec = static_cast<long>(core::SendHold::kMostUs) * 1000;
    auto least = Clock::duration::max();
    for (int time = 0; time < kTimes; ++time) {
        const Clock::time_point before = Clock::now();
        timerfd_settime(timer, 0, &soon, nullptr);
        least = std::min(least, Clock::now() - before);
    }
    const itimerspec never{};
    timerfd_settime(timer, 0, &never, nullptr);
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(least).count());
}

}  // namespace

HoldWatch::~HoldWatch() {
    device_.send_hold().use_timer(-1, 0);
    unwatch();  // before the descriptor is gone
}

util::Status HoldWatch::start() {
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!timer_.is_open()) {
        return errno;
    }
    const std::uint64_t cost_us = cost_to_set_us(timer_.get());
    // Each time that it expires: nobody has to read it.
    const util::Status watched = watch(timer_.get(), EPOLLIN | EPOLLET);
    if (watched.is_ok()) {
        device_.send_hold().use_timer(timer_.get(), cost_us);
    }
    return watched;
}

void HoldWatch::on_ready(std::uint32_t /*events*/) {
    if (device_.send_hold().is_overdue(device_.now_us()) && !wire_.send_held()) {
        device_.send_hold().set_timer();
    }
}

}  // namespace rvt
