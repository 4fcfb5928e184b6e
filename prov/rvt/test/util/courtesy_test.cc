// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When polling in vain yields: this program brings its own sched_yield(2), which counts, and takes
// as long as the test says.
#include "util/courtesy.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "common/check.h"

using rvt::util::Courtesy;

namespace {

unsigned yields = 0;
std::chrono::microseconds yield_takes{0};

/// Polls in vain. Returns: how many polls it took until one yielded.
unsigned polls_until_yield(Courtesy& courtesy) {
    for (unsigned polls = 1; polls < 1'000'000; ++polls) {
        if (courtesy.is_due(false)) {
            courtesy.yield();
            return polls;
        }
    }
    return 0;
}

}  // namespace

extern "C" int sched_yield() noexcept {
    __atomic_fetch_add(&yields, 1, __ATOMIC_RELAXED);  // other tests have threads that yield
    const auto end = std::chrono::steady_clock::now() + yield_takes;
    while (std::chrono::steady_clock::now() < end) {
    }
    return 0;
}

Test(courtesy, polling_in_vain_yields_at_last) {
    Courtesy courtesy;
    const unsigned before = yields;  // the test's framework yields, too
    const unsigned polls = polls_until_yield(courtesy);
    RVT_NE(polls, 0);
    RVT_EQ(yields - before, 1);
}

Test(courtesy, who_finds_something_does_not_yield) {
    Courtesy courtesy;
    for (unsigned polls = 0; polls < 1'000'000; ++polls) {
        const bool is_due = courtesy.is_due(polls % (Courtesy::kLeastPatience / 2) == 0);
        RVT_EQ(is_due, false);
    }
}

Test(courtesy, short_turns_of_others_make_it_yield_sooner) {
    Courtesy courtesy;
    const unsigned at_first = polls_until_yield(courtesy);
    yield_takes = std::chrono::microseconds(20);
    unsigned least = at_first;
    for (int i = 0; i < 100; ++i) {
        least = std::min(least, polls_until_yield(courtesy));
    }
    RVT_EQ(least, Courtesy::kLeastPatience);
}

Test(courtesy, who_takes_whole_slices_is_not_asked_in_more_often) {
    Courtesy courtesy;
    yield_takes = std::chrono::milliseconds(5);
    const unsigned at_first = polls_until_yield(courtesy);
    for (int i = 0; i < 10; ++i) {
        const unsigned polls = polls_until_yield(courtesy);
        RVT_ASSERT(polls >= at_first);
    }
}
