// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "core/send_hold.h"

#include <sys/timerfd.h>

namespace rvt::core {

/// One that cannot be set leaves the message to the next poll.
void SendHold::set_timer() const noexcept {
    const int timer = timer_.load(std::memory_order_relaxed);  // relaxed: see use_timer()
    if (timer >= 0) {
        itimerspec when{};
        when.it_value.tv_nsec = static_cast<long>(most_us()) * 1000;
        [[maybe_unused]] const int set = timerfd_settime(timer, 0, &when, nullptr);
    }
}

}  // namespace rvt::core
