// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Unexpected messages: which one a receive takes, in short and in long queues.
#include "core/match_unexpected_queue.h"

#include "common/check.h"
#include "common/seeds.h"
#include "core/match_model.h"

#include <numeric>
#include <random>
#include <vector>

#include <malloc.h>

using namespace rvt;
using namespace rvt::core;
using rvt::test::MatchRecord;

namespace {

using Queue = UnexpectedQueue<MatchRecord>;

struct Face {
    static constexpr bool kQueuesReceives = false;
    Queue queue;
    bool push(MatchRecord* m) { return queue.push(m->tag, m->source, m).is_ok(); }
    MatchRecord* match(const MatchRecord& r) { return queue.match(r.tag, r.ignore, r.source); }
    MatchRecord* peek(const MatchRecord& r) { return queue.peek(r.tag, r.ignore, r.source); }
};

void walk(const test::MatchWalk& walk) {
    test::MatchWalker<Face>(walk).run();
}

// Messages with tags 0, 1, ... from peer 7.
std::vector<MatchRecord> messages(std::uint64_t count) {
    std::vector<MatchRecord> records(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        records[i] = {.tag = i, .source = 7};
    }
    return records;
}

void push_all(Queue& queue, std::vector<MatchRecord>& records) {
    for (MatchRecord& each : records) {
        RVT_ASSERT(queue.push(each.tag, each.source, &each).is_ok());
    }
}

std::vector<std::uint32_t> shuffled(std::uint32_t count) {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    return order;
}

constexpr std::uint32_t kHuge = 100000;

}  // namespace

Test(match_unexpected_queue, empty_queue_matches_nothing) {
    Queue queue;
    RVT_ASSERT(queue.match(0, ~0ull, kAnySourceId) == nullptr);
    RVT_ASSERT(queue.peek(0, ~0ull, kAnySourceId) == nullptr);
    RVT_ASSERT(queue.is_empty());
}

Test(match_unexpected_queue, oldest_fitting_message_is_taken) {
    Queue queue;
    std::vector<MatchRecord> m = {
        {.tag = 2, .source = 1}, {.tag = 1, .source = 2}, {.tag = 1, .source = 1}};
    push_all(queue, m);
    RVT_ASSERT(queue.match(1, 0, 1) == &m[2]);
    RVT_ASSERT(queue.match(0, 0xf, kAnySourceId) == &m[0]);
    RVT_ASSERT(queue.match(1, 0, kAnySourceId) == &m[1]);
    RVT_ASSERT(queue.is_empty());
}

Test(match_unexpected_queue, peeked_message_stays_until_removed) {
    Queue queue;
    std::vector<MatchRecord> m = messages(3);
    push_all(queue, m);
    RVT_ASSERT(queue.peek(1, 0, 7) == &m[1]);
    RVT_ASSERT(queue.peek(1, 0, kAnySourceId) == &m[1]);
    queue.remove(&m[1]);
    RVT_ASSERT(queue.peek(1, 0, 7) == nullptr);
    RVT_EQ(queue.size(), 2);
}

Test(match_unexpected_queue, untagged_queue_compares_sources_only) {
    UnexpectedQueue<MatchRecord, false> queue;
    std::vector<MatchRecord> m(300);
    for (std::uint32_t i = 0; i < m.size(); ++i) {
        m[i].source = i % 30;
        RVT_ASSERT(queue.push(i, m[i].source, &m[i]).is_ok());
    }
    RVT_ASSERT(queue.match(12345, 0, 20) == &m[20]);
    RVT_ASSERT(queue.match(12345, 0, 20) == &m[50]);
    RVT_ASSERT(queue.match(12345, 0, kAnySourceId) == &m[0]);
}

Test(match_unexpected_queue, becomes_long_and_short_again) {
    Queue queue;
    std::vector<MatchRecord> m = messages(200);
    push_all(queue, m);
    RVT_ASSERT(queue.is_long());
    for (std::uint32_t i = 0; i < 195; ++i) {
        RVT_ASSERT(queue.match(i, 0, 7) == &m[i]);
    }
    RVT_ASSERT(not(queue.is_long()));
    RVT_ASSERT(queue.match(199, 0, 7) == &m[199]);
    RVT_ASSERT(queue.match(195, 0, 7) == &m[195]);
}

Test(match_unexpected_queue, huge_queue_answers_in_any_order) {
    Queue queue;
    std::vector<MatchRecord> m = messages(kHuge);
    push_all(queue, m);
    for (const std::uint32_t i : shuffled(kHuge)) {
        RVT_ASSERT(queue.match(i, 0, i % 2 == 0 ? 7 : kAnySourceId) == &m[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_unexpected_queue, huge_queue_answers_masked_receives_newest_first) {
    constexpr std::uint64_t kHighBits = 0xffffull << 48;
    Queue queue;
    std::vector<MatchRecord> m = messages(kHuge);
    push_all(queue, m);
    for (std::uint32_t i = kHuge; i-- > 0;) {
        RVT_ASSERT(queue.match(i | (0x1234ull << 48), kHighBits, 7) == &m[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_unexpected_queue, messages_of_a_huge_queue_can_be_removed_in_any_order) {
    Queue queue;
    std::vector<MatchRecord> m(kHuge, MatchRecord{.tag = 9, .source = 1});
    push_all(queue, m);
    RVT_ASSERT(queue.match(8, 0, 1) == nullptr);  // now there are two indexes
    RVT_ASSERT(queue.match(8, 0, kAnySourceId) == nullptr);
    for (const std::uint32_t i : shuffled(kHuge)) {
        queue.remove(&m[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_unexpected_queue, memory_goes_back_when_a_huge_queue_is_empty) {
    Queue queue;
    std::vector<MatchRecord> m = messages(kHuge);
    push_all(queue, m);
    for (std::uint32_t i = kHuge; i-- > 0;) {
        RVT_ASSERT(queue.match(i, 0, 7) == &m[i]);
    }
    RVT_EQ(queue.memory(), 0);
}

Test(match_unexpected_queue, steady_traffic_allocates_nothing) {
    Queue queue;
    std::vector<MatchRecord> m = messages(700);
    std::size_t after_warm_up = 0;
    for (int round = 0; round < 20; ++round) {
        push_all(queue, m);
        for (std::uint32_t i = 700; i-- > 0;) {
            queue.match(i, 0, 7);
        }
        if (round == 0) {
            after_warm_up = mallinfo2().uordblks;
        }
        RVT_EQ(mallinfo2().uordblks, after_warm_up);
    }
}

Test(match_unexpected_queue, new_kind_of_question_displaces_an_old_one) {
    Queue queue;
    std::vector<MatchRecord> m = messages(100);
    push_all(queue, m);
    // Each mask is a kind of its own; far more of them than indexes, each asked often enough to
    // drive another out.
    for (std::uint64_t mask = 0; mask < 24; ++mask) {
        for (int i = 0; i < 300; ++i) {
            RVT_ASSERT(queue.peek(95, mask << 32, 7) == &m[95]);
        }
    }
    queue.remove(&m[95]);
    for (std::uint64_t mask = 0; mask < 24; ++mask) {
        RVT_ASSERT(queue.peek(95, mask << 32, 7) == nullptr);
    }
}

Test(match_unexpected_queue, bursts_behind_messages_that_nobody_asks_for_are_found) {
    Queue queue;
    std::vector<MatchRecord> stuck = messages(100);
    std::vector<MatchRecord> burst(41);
    push_all(queue, stuck);
    for (std::uint64_t round = 1; round < 500; ++round) {
        // The last of a burst waits for the next one, so that the queue cannot simply forget its
        // end.
        MatchRecord& last = burst[40 * (round % 2)];
        const std::uint64_t first_tag = round * 100;
        const std::uint32_t source = round % 8 == 0 ? kAnySourceId : 7;
        for (std::uint64_t i = 1; i < 40; ++i) {
            burst[i] = {.tag = first_tag + i, .source = 7};
            RVT_ASSERT(queue.push(burst[i].tag, 7, &burst[i]).is_ok());
        }
        last = {.tag = first_tag, .source = 7};
        RVT_ASSERT(queue.push(last.tag, 7, &last).is_ok());
        if (round > 1) {
            RVT_ASSERT(queue.match(first_tag - 100, 0, 7) == &burst[40 - 40 * (round % 2)]);
        }
        for (const std::uint32_t i : shuffled(39)) {
            RVT_ASSERT(queue.match(first_tag + 1 + i, 0, source) == &burst[1 + i]);
        }
    }
    RVT_EQ(queue.size(), 101);
}

/// Room for more is made without a question in between: nobody has told the index of the growth.
Test(match_unexpected_queue, index_that_was_not_asked_while_the_queue_grew_keeps_its_messages) {
    Queue queue;
    std::vector<MatchRecord> m(513, MatchRecord{.tag = 2, .source = 7});
    for (std::uint32_t i = 0; i < 100; ++i) {
        m[i].tag = i < 4 ? 0 : i < 40 ? 2 : 1;
        RVT_ASSERT(queue.push(m[i].tag, 7, &m[i]).is_ok());
    }
    RVT_ASSERT(queue.peek(1, 0, 7) == &m[40]);
    for (std::uint32_t i = 100; i < 512; ++i) {
        RVT_ASSERT(queue.push(2, 7, &m[i]).is_ok());
    }
    for (std::uint32_t i = 4; i < 387; ++i) {
        if (i < 40 || (i >= 100 && i < 196) || i >= 256) {
            queue.remove(&m[i]);
        }
    }
    RVT_ASSERT(queue.push(2, 7, &m[512]).is_ok());  // closes the holes
    for (std::uint32_t i = 40; i < 100; ++i) {
        RVT_ASSERT(queue.match(1, 0, 7) == &m[i]);
    }
}

Test(match_unexpected_queue, short_queues_agree_with_the_model) {
    test::for_each_seed(20, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 8, .length = 40, .masks = {0, 3, ~0ull}});
    });
}

Test(match_unexpected_queue, long_queues_with_exact_tags_agree_with_the_model) {
    test::for_each_seed(10, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 2000, .length = 600, .any_percent = seed % 3 * 50});
    });
}

Test(match_unexpected_queue, long_queues_with_one_mask_agree_with_the_model) {
    test::for_each_seed(10, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 1 << 14, .length = 600, .masks = {0x1f}});
    });
}

Test(match_unexpected_queue, more_masks_than_indexes_agree_with_the_model) {
    test::for_each_seed(16, [](std::uint64_t seed) {
        walk(
            {.seed = seed, .tags = 1024, .length = 400, .masks = test::many_masks(4 + seed, seed)});
    });
}

Test(match_unexpected_queue, queues_around_the_change_of_mode_agree_with_the_model) {
    test::for_each_seed(16, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 300, .length = 80, .masks = {0, 7}, .phase = 200});
    });
}
