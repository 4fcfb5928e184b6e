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
