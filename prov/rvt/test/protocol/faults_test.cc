// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Fault plans: what a text says, and that the same seed gives the same faults.
#include "protocol/faults.h"

#include "common/check.h"

using namespace rvt;
using namespace rvt::protocol;

Test(faults, a_plan_is_read_from_its_text) {
    const auto plan =
        parse_faults("drop=1%,duplicate=0.5%,reorder=100%,delay=0.0001%:250us,seed=7");
    RVT_OK(plan);
    const FaultPlan wanted{.drop = 10'000,
                           .duplicate = 5'000,
                           .reorder = 1'000'000,
                           .delay = 1,
                           .delay_us = 250,
                           .seed = 7};
    RVT_ASSERT(plan.value() == wanted);
}

Test(faults, no_text_is_no_fault) {
    RVT_ASSERT(parse_faults("").value() == FaultPlan{});
}

Test(faults, what_cannot_be_read_is_refused) {
    for (const char* text :
         {"drop", "drop=", "drop=1", "drop=x%", "drop=-1%", "drop=101%", "drop=nan%", "drop=1%:5us",
          "delay=1%:5", "delay=1%:0us", "lose=1%", "seed=", "seed=x"}) {
        RVT_EQ(parse_faults(text), EINVAL);
        RVT_ASSERT(unknown_fault(text) == text);
    }
}

Test(faults, the_first_part_that_cannot_be_read_is_found) {
    RVT_ASSERT(unknown_fault("drop=1%,lose=1%,seed=x") == "lose=1%");
    RVT_ASSERT(unknown_fault("drop=1%,seed=7").empty());
}

Test(faults, happen_about_as_often_as_the_plan_says) {
    FaultInjector injector(
        {.drop = 100'000, .corrupt = 1'000'000, .delay = 1'000'000, .delay_us = 9});
    int dropped = 0;
    for (int i = 0; i < 10'000; ++i) {
        const Fault fault = injector.next();
        dropped += fault.is_dropped ? 1 : 0;
        RVT_ASSERT(fault.is_corrupted && !fault.is_duplicated && fault.overtaken_by == 0);
        RVT_ASSERT(fault.delay_us >= 1 && fault.delay_us <= 9);
    }
    cr_assert(dropped >= 800 && dropped <= 1200, "%d of 10000 dropped", dropped);
}

Test(faults, the_same_seed_gives_the_same_faults) {
    FaultInjector a({.drop = 500'000, .seed = 3});
    FaultInjector b({.drop = 500'000, .seed = 3});
    FaultInjector other({.drop = 500'000, .seed = 4});
    bool differs = false;
    for (int i = 0; i < 100; ++i) {
        const bool dropped = a.next().is_dropped;
        RVT_EQ(b.next().is_dropped, dropped);
        differs = differs || other.next().is_dropped != dropped;
    }
    RVT_ASSERT(differs);
}
