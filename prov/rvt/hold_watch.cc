// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hold_watch.h"

#include <cerrno>
#include <cstdint>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "wire_watch.h"

namespace rvt {

HoldWatch::~HoldWatch() {
    device_.send_hold().use_timer(-1);
    unwatch();  // before the descriptor is gone
}

util::Status HoldWatch::start() {
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!timer_.is_open()) {
        return errno;
    }
    // Each time that it expires: nobody has to read it.
    const util::Status watched = watch(timer_.get(), EPOLLIN | EPOLLET);
    if (watched.is_ok()) {
        device_.send_hold().use_timer(timer_.get());
    }
    return watched;
}

void HoldWatch::on_ready(std::uint32_t /*events*/) {
    if (device_.send_hold().is_overdue(device_.now_us()) && !wire_.send_held()) {
        device_.send_hold().set_timer();
    }
}

}  // namespace rvt
