// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which waits poll before they sleep.
#include "util/busy_poll.h"

#include "common/check.h"

using rvt::util::BusyPoll;

namespace {

constexpr std::chrono::microseconds kShort{1};
constexpr std::chrono::microseconds kEndless = std::chrono::hours(1);

/// A wait for what does not come. Returns: whether it polled.
bool wait_in_vain(BusyPoll& waits) {
    BusyPoll::Wait wait(waits);
    bool has_polled = false;
    while (wait.goes_on()) {
        has_polled = true;
    }
    return has_polled;
}

/// Returns: how many waits sleep at once before one that polls, in vain.
unsigned waits_that_sleep_at_once(BusyPoll& waits) {
    unsigned count = 0;
    while (!wait_in_vain(waits)) {
        ++count;
    }
    return count;
}

}  // namespace

Test(busy_poll, without_a_window_waits_sleep_at_once) {
    BusyPoll waits(std::chrono::microseconds(0));
    RVT_ASSERT(!wait_in_vain(waits));
    RVT_ASSERT(!wait_in_vain(waits));
}

Test(busy_poll, who_has_slept_does_not_poll_in_the_same_wait_again) {
    BusyPoll waits(kShort);
    BusyPoll::Wait wait(waits);
    while (wait.goes_on()) {
    }
    RVT_ASSERT(!wait.goes_on());
}

Test(busy_poll, waits_that_poll_in_vain_become_rare) {
    BusyPoll waits(kShort);
    RVT_EQ(waits_that_sleep_at_once(waits), 0);
    RVT_EQ(waits_that_sleep_at_once(waits), 1);
    RVT_EQ(waits_that_sleep_at_once(waits), 3);
    RVT_EQ(waits_that_sleep_at_once(waits), 7);
    for (int i = 0; i < 8; ++i) {
        waits_that_sleep_at_once(waits);
    }
    RVT_EQ(waits_that_sleep_at_once(waits), BusyPoll::kMostSkipped);
}

Test(busy_poll, waits_poll_on_where_that_pays) {
    BusyPoll waits(kEndless);
    for (int i = 0; i < 3; ++i) {
        BusyPoll::Wait wait(waits);
        RVT_ASSERT(wait.goes_on());
        wait.succeed();
    }
}

Test(busy_poll, what_is_there_at_the_first_look_says_nothing) {
    BusyPoll waits(kShort);
    RVT_EQ(waits_that_sleep_at_once(waits), 0);
    RVT_EQ(waits_that_sleep_at_once(waits), 1);
    BusyPoll::Wait(waits).succeed();
    RVT_EQ(waits_that_sleep_at_once(waits), 3);
}
