// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posted receives: which one takes a message, in short and in long queues.
#include "core/match_posted_queue.h"

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

using Queue = PostedQueue<MatchRecord>;

struct Face {
    static constexpr bool kQueuesReceives = true;
    Queue queue;
    bool push(MatchRecord* r) { return queue.push(r->tag, r->ignore, r->source, r).is_ok(); }
    MatchRecord* match(const MatchRecord& m) { return queue.match(m.tag, m.source); }
    MatchRecord* peek(const MatchRecord& m) { return queue.peek_match(m.tag, m.source); }
};

void walk(const test::MatchWalk& walk) {
    test::MatchWalker<Face>(walk).run();
}

void push(Queue& queue, MatchRecord& record) {
    RVT_ASSERT(queue.push(record.tag, record.ignore, record.source, &record).is_ok());
}

// Receives for tags 0, 1, ... from peer 7.
std::vector<MatchRecord> receives(std::uint64_t count, std::uint64_t ignore = 0) {
    std::vector<MatchRecord> records(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        records[i] = {.tag = i, .ignore = ignore, .source = 7};
    }
    return records;
}

void push_all(Queue& queue, std::vector<MatchRecord>& records) {
    for (MatchRecord& each : records) {
        push(queue, each);
    }
}

std::vector<std::uint32_t> shuffled(std::uint32_t count) {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    return order;
}

constexpr std::uint32_t kHuge = 100000;
constexpr std::uint32_t kMany = 20000;

/// Takes out the receive with this tag. Returns: how many have been looked at for it.
unsigned take_out(Queue& queue, const MatchRecord& wanted) {
    unsigned looks = 0;
    const auto is_it = [&](const MatchRecord& record) {
        ++looks;
        return record.tag == wanted.tag;
    };
    MatchRecord* found = queue.find_near(is_it);
    found = found != nullptr ? found : queue.find(is_it);
    RVT_ASSERT(found == &wanted);
    queue.remove(found);
    return looks;
}

}  // namespace

Test(match_posted_queue, empty_queue_matches_nothing) {
    Queue queue;
    RVT_ASSERT(queue.match(1, 2) == nullptr);
    RVT_ASSERT(queue.peek_match(1, 2) == nullptr);
    RVT_ASSERT(queue.is_empty());
}

Test(match_posted_queue, oldest_fitting_receive_wins) {
    Queue queue;
    std::vector<MatchRecord> r = {
        {.tag = 2, .source = 1}, {.tag = 1, .source = 1}, {.tag = 1, .source = 1}};
    push_all(queue, r);
    RVT_ASSERT(queue.match(1, 1) == &r[1]);
    RVT_ASSERT(queue.match(1, 1) == &r[2]);
    RVT_ASSERT(queue.match(1, 1) == nullptr);
    RVT_ASSERT(queue.match(2, 1) == &r[0]);
}

Test(match_posted_queue, ignored_bits_do_not_count) {
    Queue queue;
    MatchRecord r{.tag = 0xab00, .ignore = 0xff, .source = 1};
    push(queue, r);
    RVT_ASSERT(queue.match(0xac42, 1) == nullptr);
    RVT_ASSERT(queue.match(0xab42, 1) == &r);
}

Test(match_posted_queue, directed_receive_takes_from_its_source_alone) {
    Queue queue;
    std::vector<MatchRecord> r = {{.tag = 1, .source = 3}, {.tag = 1, .source = kAnySourceId}};
    push_all(queue, r);
    RVT_ASSERT(queue.match(1, 4) == &r[1]);
    RVT_ASSERT(queue.match(1, 4) == nullptr);
    RVT_ASSERT(queue.match(1, 3) == &r[0]);
}

Test(match_posted_queue, peeked_receive_stays_until_removed) {
    Queue queue;
    std::vector<MatchRecord> r = receives(3);
    push_all(queue, r);
    RVT_ASSERT(queue.peek_match(1, 7) == &r[1]);
    RVT_ASSERT(queue.peek_match(1, 7) == &r[1]);
    queue.remove(&r[1]);
    RVT_ASSERT(queue.peek_match(1, 7) == nullptr);
    RVT_EQ(queue.size(), 2);
}

Test(match_posted_queue, untagged_queue_compares_sources_only) {
    PostedQueue<MatchRecord, false> queue;
    std::vector<MatchRecord> r(300);
    for (std::uint32_t i = 0; i < r.size(); ++i) {
        r[i].source = i % 3 == 0 ? kAnySourceId : i % 3;
        RVT_ASSERT(queue.push(i, 0, r[i].source, &r[i]).is_ok());
    }
    RVT_ASSERT(queue.match(12345, 2) == &r[0]);
    RVT_ASSERT(queue.match(12345, 2) == &r[2]);
    RVT_ASSERT(queue.match(12345, 1) == &r[1]);
    RVT_ASSERT(queue.match(12345, 9) == &r[3]);
}

Test(match_posted_queue, becomes_long_and_short_again) {
    Queue queue;
    std::vector<MatchRecord> r = receives(200);
    push_all(queue, r);
    RVT_ASSERT(queue.is_long());
    for (std::uint32_t i = 0; i < 195; ++i) {
        RVT_ASSERT(queue.match(i, 7) == &r[i]);
    }
    RVT_ASSERT(not(queue.is_long()));
    RVT_ASSERT(queue.match(199, 7) == &r[199]);
    RVT_ASSERT(queue.match(195, 7) == &r[195]);
}

Test(match_posted_queue, order_holds_across_masks_in_a_long_queue) {
    Queue queue;
    std::vector<MatchRecord> filler = receives(500);
    std::vector<MatchRecord> r = {{.tag = 0x1000, .ignore = 0xfff, .source = kAnySourceId},
                                  {.tag = 0x1001, .ignore = 0, .source = 7},
                                  {.tag = 0x1000, .ignore = 0xff, .source = 7}};
    push_all(queue, filler);
    push_all(queue, r);
    RVT_ASSERT(queue.match(0x1001, 7) == &r[0]);
    RVT_ASSERT(queue.match(0x1001, 7) == &r[1]);
    RVT_ASSERT(queue.match(0x1001, 7) == &r[2]);
    RVT_ASSERT(queue.match(0x1001, 7) == nullptr);
}

Test(match_posted_queue, huge_queue_matches_in_any_order) {
    Queue queue;
    std::vector<MatchRecord> r = receives(kHuge);
    push_all(queue, r);
    for (const std::uint32_t i : shuffled(kHuge)) {
        RVT_ASSERT(queue.match(i, 7) == &r[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_posted_queue, huge_queue_with_one_mask_matches_newest_first) {
    constexpr std::uint64_t kHighBits = 0xffffull << 48;
    Queue queue;
    std::vector<MatchRecord> r = receives(kHuge, kHighBits);
    push_all(queue, r);
    for (std::uint32_t i = kHuge; i-- > 0;) {
        RVT_ASSERT(queue.match(i | (0x1234ull << 48), 7) == &r[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_posted_queue, huge_queue_of_equal_receives_keeps_its_order) {
    Queue queue;
    std::vector<MatchRecord> r(kHuge, MatchRecord{.tag = 9, .source = kAnySourceId});
    MatchRecord other{.tag = 10, .source = 1};
    push(queue, other);
    push_all(queue, r);
    for (std::uint32_t i = 0; i < kHuge; ++i) {
        RVT_ASSERT(queue.match(9, i % 100) == &r[i]);
    }
    RVT_EQ(queue.size(), 1);
}

Test(match_posted_queue, receives_of_a_huge_queue_can_be_removed_in_any_order) {
    Queue queue;
    std::vector<MatchRecord> r(kHuge, MatchRecord{.tag = 9, .source = 1});
    push_all(queue, r);
    RVT_ASSERT(queue.match(8, 1) == nullptr);  // now it is indexed
    for (const std::uint32_t i : shuffled(kHuge)) {
        queue.remove(&r[i]);
    }
    RVT_ASSERT(queue.is_empty());
}

Test(match_posted_queue, next_to_the_receive_found_last_one_is_found_with_few_looks) {
    for (const bool is_newest_first : {true, false}) {
        Queue queue;
        std::vector<MatchRecord> r = receives(kMany);
        push_all(queue, r);
        std::uint64_t looks = 0;
        for (std::uint32_t i = 0; i < kMany; ++i) {
            looks += take_out(queue, r[is_newest_first ? kMany - 1 - i : i]);
        }
        RVT_ASSERT(queue.is_empty());
        RVT_ASSERT(looks < 3 * kMany);  // the first one found the long way
    }
}

Test(match_posted_queue, few_looks_pass_by_receives_that_have_been_matched) {
    Queue queue;
    std::vector<MatchRecord> r = receives(kMany);
    push_all(queue, r);
    for (std::uint32_t i = 0; i < kMany; ++i) {
        if (i % 8 != 0 || i % 1000 < 100) {
            RVT_ASSERT(queue.match(i, 7) == &r[i]);
        }
    }
    std::uint64_t looks = 0;
    for (std::uint32_t i = kMany; i-- > 0;) {
        looks += i % 8 == 0 && i % 1000 >= 100 ? take_out(queue, r[i]) : 0;
    }
    RVT_ASSERT(queue.is_empty());
    RVT_ASSERT(looks < 3 * kMany);
}

Test(match_posted_queue, receives_are_found_wherever_the_last_one_was) {
    Queue queue;
    std::vector<MatchRecord> r = receives(2000);
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        const auto posted = static_cast<std::uint32_t>(random() % r.size());
        for (std::uint32_t i = 0; i < posted; ++i) {
            push(queue, r[i]);
        }
        for (const std::uint32_t i : shuffled(posted)) {
            if (random() % 2 == 0) {
                take_out(queue, r[i]);
                random() % 2 == 0 ? push(queue, r[i]) : void();
            } else {
                RVT_ASSERT(queue.match(i, 7) == &r[i]);
            }
        }
        queue.remove_if([](const MatchRecord&) { return true; });
    }
}

Test(match_posted_queue, nothing_is_found_near_in_vain) {
    Queue queue;
    std::vector<MatchRecord> r = receives(1000);
    push_all(queue, r);
    unsigned looks = 0;
    const auto is_none = [&](const MatchRecord&) {
        ++looks;
        return false;
    };
    for (const std::uint32_t last : {0u, 500u, 999u}) {
        queue.find([&](const MatchRecord& record) { return &record == &r[last]; });
        RVT_ASSERT(queue.find_near(is_none) == nullptr);
    }
    RVT_ASSERT(looks <= 3 * 32);
}

Test(match_posted_queue, memory_goes_back_when_a_huge_queue_is_empty) {
    Queue queue;
    std::vector<MatchRecord> r = receives(kHuge);
    push_all(queue, r);
    for (std::uint32_t i = kHuge; i-- > 0;) {
        RVT_ASSERT(queue.match(i, 7) == &r[i]);
    }
    RVT_EQ(queue.memory(), 0);
}

Test(match_posted_queue, steady_traffic_allocates_nothing) {
    Queue queue;
    std::vector<MatchRecord> r = receives(700);
    std::size_t after_warm_up = 0;
    for (int round = 0; round < 20; ++round) {
        push_all(queue, r);
        for (std::uint32_t i = 700; i-- > 0;) {
            queue.match(i, 7);
        }
        if (round == 0) {
            after_warm_up = mallinfo2().uordblks;
        }
        RVT_EQ(mallinfo2().uordblks, after_warm_up);
    }
}

Test(match_posted_queue, receive_that_nobody_matches_does_not_cost_memory) {
    Queue queue;
    std::vector<MatchRecord> r = receives(200);
    push_all(queue, r);
    std::size_t most = 0;
    for (std::uint32_t i = 0; i < 100000; ++i) {
        MatchRecord* record = queue.match(100 + i % 100, 7);
        RVT_ASSERT(record == &r[100 + i % 100]);
        push(queue, *record);
        most = std::max(most, queue.memory());
    }
    RVT_ASSERT(most < 64 * 1024);
}

Test(match_posted_queue, bursts_behind_receives_that_nobody_matches_are_found) {
    Queue queue;
    std::vector<MatchRecord> stuck = receives(100);
    std::vector<MatchRecord> burst(41);
    push_all(queue, stuck);
    for (std::uint64_t round = 1; round < 500; ++round) {
        // The last of a burst waits for the next one, so that the queue cannot simply forget its
        // end.
        MatchRecord& last = burst[40 * (round % 2)];
        const std::uint64_t first_tag = round * 100;
        for (std::uint64_t i = 1; i < 40; ++i) {
            burst[i] = {.tag = first_tag + i, .source = 7};
            push(queue, burst[i]);
        }
        last = {.tag = first_tag, .source = 7};
        push(queue, last);
        if (round > 1) {
            RVT_ASSERT(queue.match(first_tag - 100, 7) == &burst[40 - 40 * (round % 2)]);
        }
        for (const std::uint32_t i : shuffled(39)) {
            RVT_ASSERT(queue.match(first_tag + 1 + i, 7) == &burst[1 + i]);
        }
    }
    RVT_EQ(queue.size(), 101);
}

/// Room for more is made without a question in between: nobody has told the index of the growth.
Test(match_posted_queue, index_that_was_not_asked_while_the_queue_grew_keeps_its_receives) {
    Queue queue;
    std::vector<MatchRecord> r(513, MatchRecord{.tag = 2, .source = 7});
    for (std::uint32_t i = 0; i < 100; ++i) {
        r[i].tag = i < 4 ? 0 : i < 40 ? 2 : 1;
        push(queue, r[i]);
    }
    RVT_ASSERT(queue.peek_match(1, 7) == &r[40]);
    for (std::uint32_t i = 100; i < 512; ++i) {
        push(queue, r[i]);
    }
    for (std::uint32_t i = 4; i < 387; ++i) {
        if (i < 40 || (i >= 100 && i < 196) || i >= 256) {
            queue.remove(&r[i]);
        }
    }
    push(queue, r[512]);  // closes the holes
    for (std::uint32_t i = 40; i < 100; ++i) {
        RVT_ASSERT(queue.match(1, 7) == &r[i]);
    }
}

Test(match_posted_queue, short_queues_agree_with_the_model) {
    test::for_each_seed(20, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 8, .length = 40, .masks = {0, 3, ~0ull}});
    });
}

Test(match_posted_queue, long_queues_with_exact_tags_agree_with_the_model) {
    test::for_each_seed(10, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 2000, .length = 600, .any_percent = seed % 3 * 50});
    });
}

Test(match_posted_queue, long_queues_with_one_mask_agree_with_the_model) {
    test::for_each_seed(10, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 1 << 14, .length = 600, .masks = {0x1f}});
    });
}

Test(match_posted_queue, more_masks_than_classes_agree_with_the_model) {
    test::for_each_seed(16, [](std::uint64_t seed) {
        walk(
            {.seed = seed, .tags = 1024, .length = 400, .masks = test::many_masks(4 + seed, seed)});
    });
}

Test(match_posted_queue, queues_around_the_change_of_mode_agree_with_the_model) {
    test::for_each_seed(16, [](std::uint64_t seed) {
        walk({.seed = seed, .tags = 300, .length = 80, .masks = {0, 7}, .phase = 200});
    });
}
