// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages whose instructions valgrind's callgrind counts, if it is told not to begin by itself
// (--collect-atstart=no): those of the application's thread in calls that post something, and in
// polls that find something. Nobody asks for what is not there yet, so that the count does not
// depend on how fast the fabric is.
#include "benchmarks/fab_bench.h"

#include <unistd.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define FAB_TOGGLE_COLLECT CALLGRIND_TOGGLE_COLLECT
#else
#define FAB_TOGGLE_COLLECT FAB_FAIL("built without valgrind's headers")
#endif

namespace fab {
namespace {

constexpr std::size_t kSize = 8;
constexpr std::uint64_t kTag = 7;
// Until what was posted has mostly arrived, on emulated hosts, too, and nobody is taken to be
// asleep. A poll would tell when, but would be counted: those that come too early are told apart.
constexpr useconds_t kSettleUs = 10'000;
// Before anything is counted, so that what goes with a new connection is over.
constexpr std::size_t kFirstTurns = 10;
constexpr std::size_t kTurnsForVainPoll = 10;  // more vain polls than one in so many: no result

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
    template <class Work>
    void counted(Work work) {
        if (counts) FAB_TOGGLE_COLLECT;
        work();
        if (counts) FAB_TOGGLE_COLLECT;
    }
    /// `completed` is one of the two counts of `bench`.
    void poll_until(const std::size_t& completed, std::size_t count) {
        while (completed < count) {
            const std::size_t before = completed;
            usleep(kSettleUs);
            counted([this] { bench.poll(); });
            if (completed == before && counts) ++vain_polls_;
        }
    }
    /// Fails when what was counted are polls that found nothing.
    void check(std::size_t turns) const {
        if (vain_polls_ * kTurnsForVainPoll > turns) {
            FAB_FAIL("%zu polls in %zu turns found nothing, and are in the count", vain_polls_,
                     turns);
        }
    }
    /// Both ranks come here, and poll for what is not the matter.
    void meet() { bench.finish(); }

    Bench bench;
    bool counts = false;

  private:
    Buffer buffer_;
    std::size_t vain_polls_ = 0;
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
        self.barrier();
        end.poll_until(self.rank == 0 ? end.bench.sent : end.bench.received, (turn + 1) * kWindow);
        end.meet();
    }
    end.check(turns);
    return static_cast<double>(turns * kWindow);
}

constexpr Measure kMeasures[] = {
    {"count-eager-1", "messages", eager<1>, 2, "turns; tagged, 8 B"},
    {"count-eager-16", "messages", eager<16>, 2, "turns; tagged, 8 B, windows of 16"},
};

}  // namespace

const std::span<const Measure> kCountMeasures = kMeasures;

}  // namespace fab
