// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages whose instructions valgrind's callgrind counts, if it is told not to begin by itself
// (--collect-atstart=no): those of the application's thread in calls that post something, and in
// polls that complete something. For each of them callgrind writes a file. What a poll has cost
// that completes nothing is dropped, so that the count does not depend on how fast the fabric is.
#include "benchmarks/fab_bench.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define FAB_TOGGLE_COLLECT CALLGRIND_TOGGLE_COLLECT
#define FAB_KEEP_COUNT CALLGRIND_DUMP_STATS
#define FAB_DROP_COUNT CALLGRIND_ZERO_STATS
#else
#define FAB_TOGGLE_COLLECT FAB_FAIL("built without valgrind's headers")
#define FAB_KEEP_COUNT static_cast<void>(0)
#define FAB_DROP_COUNT static_cast<void>(0)
#endif

namespace fab {
namespace {

constexpr std::size_t kSize = 8;
constexpr std::uint64_t kTag = 7;
// Before anything is counted, so that what goes with a new connection is over.
constexpr std::size_t kFirstTurns = 10;

/// The endpoint of one of two ranks, with a message behind it.
class Counted {
  public:
    explicit Counted(Rank& self)
        : bench(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS}), buffer_(bench.ep, 64) {
        if (self.rank == 0) {
            send(0);
            bench.wait_sent(1);
        } else {
            receive(0);
            bench.wait_received(1);
        }
        meet();
        bench.sent = bench.received = 0;
    }
    void send(std::size_t m) {
        bench.post([&] {
            return fi_tsend(bench.ep.ep, buffer_.as(), kSize, buffer_.desc(), bench.peer(), kTag,
                            bench.context(m));
        });
    }
    void receive(std::size_t m) {
        bench.post([&] {
            return fi_trecv(bench.ep.ep, buffer_.as(), kSize, buffer_.desc(), bench.peer(), kTag, 0,
                            bench.context(m));
        });
    }
    /// Posts what `post` does, and counts it.
    template <class Post>
    void counted(Post post) {
        toggle();
        post();
        toggle();
        if (counts) FAB_KEEP_COUNT;
    }
    /// `completed` is one of the two counts of `bench`.
    void poll_until(const std::size_t& completed, std::size_t count) {
        while (completed < count) {
            const std::size_t before = completed;
            toggle();
            bench.poll();
            toggle();
            if (!counts) continue;
            if (completed == before) {
                FAB_DROP_COUNT;
            } else {
                FAB_KEEP_COUNT;
            }
        }
    }
    /// Both ranks come here, and poll for what is not the matter.
    void meet() { bench.finish(); }

    Bench bench;
    bool counts = false;

  private:
    void toggle() const {
        if (counts) FAB_TOGGLE_COLLECT;
    }

    Buffer buffer_;
};

/// `turns` windows of messages from rank 0 to rank 1. Returns: how many messages.
template <std::size_t kWindow>
double eager(Rank& self, std::size_t turns) {
    Counted end(self);
    const auto post = [&] {
        for (std::size_t m = 0; m < kWindow; ++m) self.rank == 0 ? end.send(m) : end.receive(m);
    };
    for (std::size_t turn = 0; turn < kFirstTurns + turns; ++turn) {
        end.counts = turn >= kFirstTurns;
        if (self.rank == 1) end.counted(post);
        end.meet();
        if (self.rank == 0) end.counted(post);
        end.poll_until(self.rank == 0 ? end.bench.sent : end.bench.received, (turn + 1) * kWindow);
        end.meet();
    }
    return static_cast<double>(turns * kWindow);
}

constexpr Measure kMeasures[] = {
    {"count-eager-1", "messages", eager<1>, 2, "turns; tagged, 8 B"},
    {"count-eager-16", "messages", eager<16>, 2, "turns; tagged, 8 B, windows of 16"},
};

}  // namespace

const std::span<const Measure> kCountMeasures = kMeasures;

}  // namespace fab
