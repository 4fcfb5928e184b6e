// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How long what waits for company is held.
#include "core/send_hold.h"

#include <cstdint>

#include "common/check.h"

using rvt::core::SendHold;

namespace {

/// One message has begun to be held. Returns: how long others behind it are held, too.
std::uint64_t held_us(SendHold& hold) {
    constexpr std::uint64_t kBegin = 1'000'000;
    hold.note_poll(kBegin);
    RVT_ASSERT(hold.may_hold([] { return kBegin; }));
    std::uint64_t now = kBegin;
    while (hold.may_hold([&] { return now; })) {
        RVT_ASSERT(++now < kBegin + 100'000);
    }
    return now - 1 - kBegin;
}

}  // namespace

Test(send_hold, messages_are_held_for_20_us) {
    SendHold hold;
    RVT_EQ(held_us(hold), 20u);
}

Test(send_hold, where_sending_is_quick_they_are_held_no_less) {
    SendHold hold;
    hold.note_cost(1);
    hold.note_cost(1);
    RVT_EQ(held_us(hold), 20u);
}

Test(send_hold, where_sending_takes_longer_they_are_held_as_long_as_it_takes) {
    SendHold hold;
    hold.note_cost(150);
    hold.note_cost(130);
    RVT_EQ(held_us(hold), 130u);
    RVT_EQ(hold.most_us(), 130u);
    hold.note_cost(5);
    RVT_EQ(held_us(hold), 20u);
}

Test(send_hold, a_thread_that_was_interrupted_once_does_not_count) {
    SendHold hold;
    hold.note_cost(2);
    hold.note_cost(900);
    RVT_EQ(held_us(hold), 20u);
    hold.note_cost(2);
    RVT_EQ(held_us(hold), 20u);
}

Test(send_hold, a_millisecond_is_the_most) {
    SendHold hold;
    hold.note_cost(50'000);
    hold.note_cost(50'000);
    RVT_EQ(held_us(hold), 1000u);
}

Test(send_hold, what_is_held_is_overdue_behind_that_time) {
    SendHold hold;
    hold.note_cost(200);
    hold.note_cost(200);
    std::uint64_t now = 1'000'000;
    RVT_ASSERT(hold.may_hold([&] { return now; }));
    RVT_EQ(hold.is_overdue(now + 199), false);
    RVT_EQ(hold.is_overdue(now + 200), true);
}
