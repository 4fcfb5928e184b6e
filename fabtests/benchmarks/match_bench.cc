// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Cost of the provider's matching engine by length of the queue and pattern of tags: nanoseconds
// for one match and the push that restores the length. A flat line from 10 to 100,000 is the aim.
//
//   match_bench [operations, default 200000]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include <time.h>

#include "core/match_posted_queue.h"
#include "core/match_unexpected_queue.h"

namespace {

using rvt::core::kAnySourceId;

struct Record {
    std::uint64_t tag = 0;
    std::uint64_t ignore = 0;
    std::uint32_t source = 0;
    std::uint32_t match_slot = 0;
    std::uint32_t queued_source = 0;  // kAnySourceId in receives from anybody

    std::uint64_t match_tag() const { return tag; }
    std::uint32_t match_source() const { return queued_source; }
};

enum class Order { kFirst, kLast, kRandom };

struct Pattern {
    const char* name;
    Order order;
    std::uint64_t tag_step;  // between receives in a row; 0: all the same
    std::uint64_t ignore;    // mask of every receive
    std::uint32_t sources;   // peers in turn
    unsigned any_every;      // each such receive takes any source; 0: none
};

constexpr std::uint64_t kMpiMask = 0x30000000ull << 32;

constexpr Pattern kPatterns[] = {
    {"exact tags, oldest first", Order::kFirst, 1, 0, 4, 0},
    {"exact tags, newest first", Order::kLast, 1, 0, 4, 0},
    {"exact tags, any order", Order::kRandom, 1, 0, 4, 0},
    {"exact tags, any source, any order", Order::kRandom, 1, 0, 4, 1},
    {"one tag, 64 peers, any order", Order::kRandom, 0, 0, 64, 0},
    {"one mask for all, oldest first", Order::kFirst, 1, kMpiMask, 4, 0},
    {"one mask for all, any order", Order::kRandom, 1, kMpiMask, 4, 0},
    {"wide tags, any order", Order::kRandom, 0x100000007, 0, 4, 0},
    {"half any source, any order", Order::kRandom, 1, kMpiMask, 4, 2},
    {"one tag, one peer (no tags)", Order::kFirst, 0, ~0ull, 1, 0},
};

// Of this thread: what others do on the processor does not count.
double now_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// The queues under one face: what waits in `Posted` are receives, in `Unexpected` messages.
struct Posted {
    static constexpr const char* kName = "posted";
    rvt::core::PostedQueue<Record> queue;
    bool push(Record& r, bool any) {
        r.queued_source = any ? kAnySourceId : r.source;
        return queue.push(r.tag, r.ignore, r.queued_source, &r).is_ok();
    }
    Record* match(const Record& r, bool) { return queue.match(r.tag, r.source); }
};

struct Unexpected {
    static constexpr const char* kName = "unexpected";
    rvt::core::UnexpectedQueue<Record> queue;
    bool push(Record& r, bool) {
        r.queued_source = r.source;
        return queue.push(r.tag, r.source, &r).is_ok();
    }
    Record* match(const Record& r, bool any) {
        return queue.match(r.tag, r.ignore, any ? kAnySourceId : r.source);
    }
};

// Which record each operation asks for, drawn before the clock runs.
std::vector<std::uint32_t> draw(const Pattern& pattern, std::uint32_t depth,
                                std::size_t operations) {
    std::vector<std::uint32_t> order(operations);
    std::mt19937 random(1);
    for (std::size_t i = 0; i < operations; ++i) {
        switch (pattern.order) {
            case Order::kFirst: order[i] = static_cast<std::uint32_t>(i % depth); break;
            case Order::kLast: order[i] = depth - 1; break;
            case Order::kRandom: order[i] = static_cast<std::uint32_t>(random() % depth); break;
        }
    }
    return order;
}

template <class Queue>
double measure(const Pattern& pattern, std::uint32_t depth, std::size_t operations) {
    auto queue = std::make_unique<Queue>();
    std::vector<Record> records(depth);
    const auto is_any = [&](const Record& r) {
        return pattern.any_every != 0 &&
               static_cast<std::size_t>(&r - records.data()) % pattern.any_every == 0;
    };
    for (std::uint32_t i = 0; i < depth; ++i) {
        records[i] = {
            .tag = pattern.tag_step * i, .ignore = pattern.ignore, .source = i % pattern.sources};
        if (!queue->push(records[i], is_any(records[i]))) {
            std::abort();
        }
    }
    const std::vector<std::uint32_t> order = draw(pattern, depth, operations);
    double best = 1e30;
    for (int repeat = 0; repeat < 9; ++repeat) {
        const double start = now_ns();
        for (const std::uint32_t index : order) {
            const Record& asked = records[index];
            Record* found = queue->match(asked, is_any(asked));
            if (found == nullptr || !queue->push(*found, is_any(*found))) {
                std::abort();
            }
        }
        best = std::min(best, now_ns() - start);
    }
    return best / static_cast<double>(operations);
}

template <class Queue>
void report(std::size_t operations) {
    std::printf("%-36s %9s %9s %9s %9s %9s   ns\n", Queue::kName, "1", "10", "1000", "10000",
                "100000");
    for (const Pattern& pattern : kPatterns) {
        std::printf("%-36s", pattern.name);
        for (const std::uint32_t depth : {1u, 10u, 1000u, 10000u, 100000u}) {
            std::printf(" %9.1f", measure<Queue>(pattern, depth, operations));
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::size_t operations = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200000;
    report<Posted>(operations);
    report<Unexpected>(operations);
    return 0;
}
