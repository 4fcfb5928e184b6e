// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether acknowledgements wait for an application that mostly comes back.
#include "core/ack_hold.h"

#include <cstdint>

#include "common/check.h"

using rvt::core::AckHold;
using rvt::core::SendHold;

namespace {

constexpr std::uint64_t kStaysUs = AckHold::kStaysUs;

/// An application that gets messages whose senders wait.
struct Application {
    AckHold hold;
    std::uint64_t now_us = 1'000'000;

    /// A message comes. Returns: whether the acknowledgement is held.
    bool hear() {
        const bool is_held = hold.may_hold();
        hold.note_turn([this] { return now_us; });
        return is_held;
    }
    void poll(std::uint64_t us_later) {
        now_us += us_later;
        hold.note_poll([this] { return now_us; });
    }
    void reply(std::uint64_t us_later) {
        now_us += us_later;
        hold.note_reply([this] { return now_us; });
    }
    /// A message comes, and the application polls once more, so long after it. Returns: as hear().
    bool poll_after(std::uint64_t us) {
        const bool is_held = hear();
        poll(us);
        return is_held;
    }
    /// Stays until an acknowledgement is held. Returns: how many were not.
    int not_held() {
        int count = 0;
        while (!poll_after(kStaysUs)) {
            ++count;
        }
        return count;
    }
};

}  // namespace

Test(ack_hold, who_has_stayed_eight_times_is_waited_for) {
    Application application;
    RVT_EQ(application.not_held(), 8);
    RVT_EQ(application.poll_after(SendHold::kMostUs - 1), true);
    RVT_EQ(application.poll_after(SendHold::kMostUs), true);
    RVT_EQ(application.poll_after(kStaysUs), false);
}

Test(ack_hold, who_never_comes_back_soon_is_never_waited_for) {
    Application application;
    for (int time = 0; time < 1000; ++time) {
        RVT_EQ(application.poll_after(SendHold::kMostUs), false);
    }
}

// It waits for something else, and has it.
Test(ack_hold, who_polls_a_few_times_and_computes_is_never_waited_for) {
    Application application;
    for (int time = 0; time < 1000; ++time) {
        RVT_EQ(application.hear(), false);
        for (std::uint64_t us = 1; us < kStaysUs; ++us) {
            application.poll(1);
        }
        application.poll(200);
    }
}

Test(ack_hold, who_stays_for_some_messages_and_computes_is_not_waited_for_again) {
    Application application;
    for (int step = 0; step < 100; ++step) {
        for (int message = 0; message < 20; ++message) {
            const bool is_held = application.poll_after(kStaysUs);
            RVT_EQ(is_held && step > 0, false);
        }
        application.poll_after(1000);
    }
}

Test(ack_hold, who_replies_at_once_and_computes_is_waited_for) {
    Application application;
    for (int time = 0; time < 100; ++time) {
        RVT_EQ(application.hear(), time >= 8);
        application.reply(1);
        application.poll(200);
    }
}

Test(ack_hold, who_replies_late_is_never_waited_for) {
    Application application;
    for (int time = 0; time < 100; ++time) {
        RVT_EQ(application.hear(), false);
        application.reply(SendHold::kMostUs);
    }
}

Test(ack_hold, what_was_lost_has_to_be_saved_first) {
    Application application;
    application.not_held();
    for (const int lost_us : {100, 1000, 300}) {
        RVT_EQ(application.poll_after(static_cast<std::uint64_t>(lost_us)), true);
        const int saved_us = 3 * application.not_held();
        RVT_ASSERT(saved_us > lost_us - 10 && saved_us < lost_us + 10);
    }
}

Test(ack_hold, who_is_interrupted_now_and_then_is_waited_for) {
    Application application;
    application.not_held();
    for (int time = 0; time < 50; ++time) {
        RVT_EQ(application.poll_after(50), true);
        for (int message = 0; message < 30; ++message) {
            application.poll_after(kStaysUs);
        }
    }
}

Test(ack_hold, messages_that_come_all_the_time_count_as_one_in_10_us) {
    Application application;
    std::uint64_t not_held = 0;
    for (; !application.poll_after(1); ++not_held) {
    }
    RVT_EQ(not_held, 8 * kStaysUs);
}

Test(ack_hold, what_a_poll_takes_is_not_counted) {
    Application application;
    application.not_held();
    for (int time = 0; time < 3; ++time) {
        RVT_EQ(application.hold.may_hold(), true);
        application.now_us += 1000;
        RVT_EQ(application.poll_after(kStaysUs), true);
    }
}
