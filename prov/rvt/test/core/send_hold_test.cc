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
    hold.note_poll([] { return kBegin; });
    RVT_ASSERT(hold.may_hold([] { return kBegin; }));
    std::uint64_t now = kBegin;
    while (hold.may_hold([&] { return now; })) {
        RVT_ASSERT(++now < kBegin + 100'000);
    }
    return now - 1 - kBegin;
}

}  // namespace

Test(send_hold, messages_are_held_for_20_us_or_as_long_as_sending_takes) {
    struct Step {
        std::uint64_t cost_us;
        std::uint64_t held_us;
    };
    SendHold hold;
    RVT_EQ(held_us(hold), 20u);
    // Of two times the shorter counts: a thread may have been interrupted.
    for (const Step& step : {Step{1, 20},
                             {900, 20},
                             {2, 20},
                             {150, 20},
                             {130, 130},
                             {140, 130},
                             {5, 20},
                             {50'000, 20},
                             {50'000, 1000}}) {
        hold.note_cost(step.cost_us);
        RVT_EQ(hold.most_us(), step.held_us);
        RVT_EQ(held_us(hold), step.held_us);
    }
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

/// A window of messages, and a poll so long behind the last. Returns: how many were held.
static int window_held(SendHold& hold, std::uint64_t& now_us, std::uint64_t poll_us) {
    int held = 0;
    for (int post = 0; post < 20; ++post) {
        held += hold.may_hold([&] { return ++now_us; }) ? 1 : 0;
    }
    hold.note_poll([&] { return now_us += poll_us; });
    return held;
}

Test(send_hold, where_a_timer_is_slow_nothing_is_held_of_who_came_late) {
    std::uint64_t now = 1'000'000;
    SendHold hold;
    hold.use_timer(-1, SendHold::kMostUs / 4 + 1);
    for (int time = 0; time < 3; ++time) {
        for (int soon = 0; soon < 8; ++soon) {
            RVT_EQ(window_held(hold, now, 19), 0);
        }
        RVT_EQ(window_held(hold, now, 19), 20);
        RVT_EQ(window_held(hold, now, 20), 20);
    }
}

Test(send_hold, a_timer_is_worth_a_quarter_of_what_it_limits) {
    std::uint64_t now = 1'000'000;
    SendHold hold;
    hold.use_timer(-1, SendHold::kMostUs / 4);
    RVT_EQ(window_held(hold, now, 20), 20);
    hold.use_timer(-1, 100);
    RVT_EQ(window_held(hold, now, 20), 0);
    hold.note_cost(400);
    hold.note_cost(400);
    RVT_EQ(window_held(hold, now, 400), 20);
}
