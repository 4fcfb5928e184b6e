// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Learning which way of moving a large message is the fastest.
#include "core/rd_method.h"

#include "common/check.h"

using rvt::core::RdMethod;
using rvt::core::RdMethodChooser;

namespace {

constexpr RdMethodChooser::Mask kAllMethods = RdMethodChooser::bit(RdMethod::kPipeline) |
                                              RdMethodChooser::bit(RdMethod::kDirect) |
                                              RdMethodChooser::bit(RdMethod::kSplit);
constexpr std::uint64_t kBytes = 64 * 1024;

/// A machine on which each method has its cost, in ticks for a transfer.
struct Machine {
    std::uint64_t cost[static_cast<unsigned>(RdMethod::kCount)];
    RdMethodChooser chooser;

    RdMethod transfer(RdMethodChooser::Mask allowed = kAllMethods) {
        const RdMethod method = chooser.choose(kBytes, allowed);
        chooser.learn(kBytes, method, cost[static_cast<unsigned>(method)]);
        return method;
    }
    /// How many of `count` transfers went by `method`.
    int count(RdMethod method, int count, RdMethodChooser::Mask allowed = kAllMethods) {
        int by_it = 0;
        for (int i = 0; i < count; ++i) {
            by_it += transfer(allowed) == method ? 1 : 0;
        }
        return by_it;
    }
};

}  // namespace

Test(rd_method, what_is_fastest_is_used_for_nearly_all) {
    for (unsigned best = 0; best < 3; ++best) {
        Machine machine{{3000, 3000, 3000}, {}};
        machine.cost[best] = 2000;
        machine.count(RdMethod::kPipeline, 1000);
        RVT_ASSERT(machine.count(static_cast<RdMethod>(best), 10'000) > 9500);
    }
}

Test(rd_method, only_what_is_allowed_is_used) {
    Machine machine{{1000, 2000, 3000}, {}};
    machine.count(RdMethod::kPipeline, 1000);
    const auto two = static_cast<RdMethodChooser::Mask>(kAllMethods &
                                                        ~RdMethodChooser::bit(RdMethod::kPipeline));
    RVT_EQ(machine.count(RdMethod::kPipeline, 1000, two), 0);
    const RdMethodChooser::Mask one = RdMethodChooser::bit(RdMethod::kSplit);
    RVT_EQ(machine.count(RdMethod::kSplit, 1000, one), 1000);
}

Test(rd_method, an_interruption_is_not_taken_for_a_slow_method) {
    Machine machine{{3000, 2000, 3000}, {}};
    machine.count(RdMethod::kPipeline, 1000);
    for (int i = 0; i < 10; ++i) {
        machine.chooser.learn(kBytes, RdMethod::kDirect, 1'000'000'000);
        RVT_ASSERT(machine.count(RdMethod::kDirect, 1000) > 900);
    }
}

Test(rd_method, transfers_that_end_in_bunches_are_judged_by_their_sum) {
    // The first of each bunch of 16 takes the time of all.
    const auto by_pipeline = [](std::uint64_t cost) {
        Machine machine{{0, 3000, 3500}, {}};
        int count = 0;
        for (int i = 0; i < 20'000; ++i) {
            machine.cost[0] = i % 16 == 0 ? 16 * cost : 0;
            const bool is_it = machine.transfer() == RdMethod::kPipeline;
            count += is_it && i >= 10'000 ? 1 : 0;
        }
        return count;
    };
    RVT_ASSERT(by_pipeline(2500) > 9000);
    RVT_ASSERT(by_pipeline(3500) < 1000);
}

Test(rd_method, a_block_is_not_judged_by_part_of_a_bunch) {
    // Large transfers, of which two are a block, by fours: of each the first takes the time of all.
    constexpr std::uint64_t kLarge = 4 << 20;
    constexpr std::uint64_t kCosts[] = {3000, 2500, 2000};
    RdMethodChooser chooser;
    int by_fastest = 0;
    for (int bunch = 0; bunch < 1000; ++bunch) {
        RdMethod methods[4];
        for (RdMethod& method : methods) {
            method = chooser.choose(kLarge, kAllMethods);
            by_fastest += method == RdMethod::kSplit ? 1 : 0;
        }
        for (unsigned i = 0; i < 4; ++i) {
            const std::uint64_t cost = kCosts[static_cast<unsigned>(methods[i])];
            chooser.learn(kLarge, methods[i], i == 0 ? 4 * cost : 1, i == 3);
        }
    }
    RVT_ASSERT(by_fastest > 3200);
}

Test(rd_method, what_becomes_faster_is_noticed) {
    Machine machine{{2000, 4000, 3000}, {}};
    machine.count(RdMethod::kPipeline, 10'000);
    machine.cost[1] = 1000;
    machine.count(RdMethod::kDirect, 40'000);
    RVT_ASSERT(machine.count(RdMethod::kDirect, 1000) > 900);
}

Test(rd_method, a_method_is_not_judged_by_what_it_finds_in_no_cache) {
    // What comes first after another method takes three times as long.
    Machine machine{{2000, 1500, 3000}, {}};
    RdMethod last = RdMethod::kCount;
    int since_change = 0;
    const auto count_pipeline = [&](int count) {
        int by_pipeline = 0;
        for (int i = 0; i < count; ++i) {
            const RdMethod method = machine.chooser.choose(kBytes, kAllMethods);
            since_change = method == last ? since_change + 1 : 0;
            last = method;
            const std::uint64_t factor = since_change < 16 ? 3 : 1;
            machine.chooser.learn(kBytes, method,
                                  factor * machine.cost[static_cast<unsigned>(method)]);
            by_pipeline += method == RdMethod::kPipeline ? 1 : 0;
        }
        return by_pipeline;
    };
    RVT_ASSERT(count_pipeline(10'000) < 1000);
    machine.cost[1] = 2600;
    count_pipeline(20'000);
    RVT_ASSERT(count_pipeline(10'000) > 9000);
}

Test(rd_method, a_slow_beginning_does_not_count) {
    // A pair moves to its large rings only after the first transfers through them.
    Machine machine{{40'000, 3000, 2500}, {}};
    machine.count(RdMethod::kPipeline, 30);
    machine.cost[0] = 2000;
    machine.count(RdMethod::kPipeline, 500);
    RVT_ASSERT(machine.count(RdMethod::kPipeline, 2000) > 1600);
}

Test(rd_method, what_is_much_slower_is_hardly_tried) {
    Machine machine{{1000, 3000, 3500}, {}};
    machine.count(RdMethod::kPipeline, 10'000);
    RVT_ASSERT(machine.count(RdMethod::kPipeline, 100'000) > 99'000);
}

Test(rd_method, what_is_out_of_the_question_is_given_up_at_once) {
    // Many processes on few cores: who copies by turns waits for the kernel's scheduler each time.
    Machine machine{{900'000, 40'000, 500'000}, {}};
    RVT_ASSERT(machine.count(RdMethod::kDirect, 200) > 100);
    RVT_ASSERT(machine.count(RdMethod::kDirect, 1000) > 950);
}

Test(rd_method, two_interruptions_do_not_end_what_settles) {
    Machine machine{{10'000, 12'000, 13'000}, {}};
    for (int i = 0; i < 100; ++i) {
        const RdMethod method = machine.transfer();
        if (i == 50 || i == 60) {
            machine.chooser.learn(kBytes, method, 10'000'000);
        }
    }
    machine.count(RdMethod::kPipeline, 500);
    RVT_ASSERT(machine.count(RdMethod::kPipeline, 1000) > 800);
}

Test(rd_method, what_is_not_always_allowed_is_learned_all_the_same) {
    Machine machine{{3000, 3500, 1000}, {}};
    const auto two =
        static_cast<RdMethodChooser::Mask>(kAllMethods & ~RdMethodChooser::bit(RdMethod::kSplit));
    int by_split = 0;
    for (int i = 0; i < 20'000; ++i) {
        machine.transfer(i % 8 == 0 ? two : kAllMethods);
        by_split += machine.transfer() == RdMethod::kSplit && i >= 10'000 ? 1 : 0;
    }
    RVT_ASSERT(by_split > 5000);
}

Test(rd_method, sizes_are_learned_apart) {
    RdMethodChooser chooser;
    const auto run = [&](std::uint64_t bytes, RdMethod fast) {
        int by_it = 0;
        for (int i = 0; i < 3000; ++i) {
            const RdMethod method = chooser.choose(bytes, kAllMethods);
            chooser.learn(bytes, method, method == fast ? bytes : 2 * bytes);
            by_it += method == fast ? 1 : 0;
        }
        return by_it;
    };
    for (int round = 0; round < 3; ++round) {
        const int small = run(8 * 1024, RdMethod::kPipeline);
        const int large = run(8 << 20, RdMethod::kSplit);
        RVT_ASSERT(round == 0 || (small > 2700 && large > 2700));
    }
}
