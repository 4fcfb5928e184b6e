// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Both ends of a path in one process: room, holding back, the move to the large rings.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/eventfd.h>

#include <criterion/criterion.h>

#include "backend/shm/path.h"
#include "common/check.h"
#include "test_endpoint.h"
#include "util/memory_room.h"

using namespace rvt::shm;        // NOLINT(google-build-using-namespace)
using namespace rvt::shm::test;  // NOLINT(google-build-using-namespace)
using rvt::core::RdOp;
using rvt::util::promised_memory;

namespace {

constexpr std::size_t kRun = 1024;
constexpr unsigned kBudget = 64;

/// Two endpoints that are connected, and what one of them receives.
struct Pair {
    Pair() {
        a.connector().connect(b.address());
        sender.open(a.next_peering());
        receiver.open(b.next_peering());
    }

    /// Returns: whether there was room.
    bool send_line(std::size_t bytes = 0) {
        const std::array<std::byte, Path::kMaxLinePayload> zeros{};
        const bool is_sent = sender.put_eager(0, sent, 0, zeros.data(), bytes);
        sent += is_sent ? 1 : 0;
        return is_sent;
    }
    bool send_run() {
        if (sender.reserve_run(kRun) == nullptr) {
            return false;
        }
        sender.put_run(RdOp::kEagerFirst, 0, sent++, 0, nullptr, 0, kRun);
        return true;
    }
    /// Takes what has arrived. Returns: how many; their numbers must go on from those before.
    unsigned take() {
        const auto take_one = [this](const auto& arrival) {
            return arrival.op() == RdOp::kGrow || arrival.tag() == taken++;
        };
        const unsigned count = receiver.poll(kBudget, take_one, take_one);
        RVT_ASSERT(!receiver.is_broken());
        return count;
    }
    /// The same, and looks ahead at each; notes what is seen.
    void take_looking_ahead() {
        const auto take_one = [this](const auto& arrival) {
            if (receiver.has_more()) {
                receiver.look_ahead([this](std::uint64_t tag) { seen.push_back(tag); },
                                    [this](std::uint64_t tag) { seen_again.push_back(tag); });
            }
            return arrival.tag() == taken++;
        };
        receiver.poll(kBudget, take_one, take_one);
        RVT_ASSERT(!receiver.is_broken());
    }
    void take_all() {
        while (taken < sent) {
            RVT_ASSERT(receiver.look().has_arrival());
            RVT_ASSERT(take() != 0);
        }
        RVT_ASSERT(!receiver.look().has_arrival());
    }
    /// More than fills the small rings for long enough, and then a large ring of lines.
    void grow_by_lines() {
        for (std::size_t i = 0; i < 8 * kLargeLines; ++i) {
            while (!send_line()) {
                RVT_ASSERT(take() != 0);
            }
        }
        RVT_ASSERT(sender.describe().find("large rings") != std::string::npos);
        take_all();
    }

    TestEndpoint a;
    TestEndpoint b;
    Path sender;
    Path receiver;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    std::vector<std::uint64_t> seen;
    std::vector<std::uint64_t> seen_again;
};

}  // namespace

/// Episodes are numbered from the beginning by each peer.
Test(path, wakes_another_peer_in_an_episode_of_the_same_number, .timeout = 30) {
    Pair pair;
    const auto wakes = [&](TestEndpoint& peer) {
        // relaxed: this thread looks at it.
        peer.page().armed.store(kFenceFirst | 1, std::memory_order_relaxed);
        eventfd_t rings = 0;
        return pair.send_line() && eventfd_read(peer.wake_fd(), &rings) == 0;
    };
    RVT_ASSERT(wakes(pair.b));
    pair.sender.close();
    TestEndpoint c;
    pair.a.connector().connect(c.address());
    pair.sender.open(pair.a.next_peering());
    RVT_ASSERT(wakes(c));
}

Test(path, sends_headers_only_within_a_ring_of_being_asked, .timeout = 30) {
    Pair pair;
    RVT_ASSERT(pair.send_run());
    pair.take_all();
    pair.receiver.hold_eager(true);
    std::size_t bytes = 0;
    while (!pair.sender.must_hold_eager()) {
        RVT_ASSERT(pair.send_run());
        pair.take_all();
        bytes += kRun;
        RVT_ASSERT(bytes <= kSmallBytes);
    }
    RVT_ASSERT(pair.sender.must_hold_eager());  // and goes on to
    pair.receiver.hold_eager(false);
    RVT_ASSERT(!pair.sender.must_hold_eager());
}

Test(path, sends_no_line_of_data_past_a_hold, .timeout = 30) {
    Pair pair;
    pair.receiver.hold_eager(true);
    while (pair.send_line()) {
        pair.take_all();
        RVT_ASSERT(pair.sent <= kSmallLines);
    }
    RVT_ASSERT(pair.sender.must_hold_eager());
    pair.receiver.hold_eager(false);
    RVT_ASSERT(pair.send_line());
    pair.take_all();
}

Test(path, that_grew_by_lines_alone_has_room_for_lines_and_runs, .timeout = 30) {
    Pair pair;
    pair.grow_by_lines();
    // A large ring of either kind twice.
    for (std::size_t i = 0; i < 2 * kLargeBytes / kRun; ++i) {
        while (!pair.send_run()) {
            RVT_ASSERT(pair.take() != 0);
        }
    }
    pair.take_all();
}

Test(path, that_grew_keeps_room_for_the_runs_that_it_has_not_sent_yet, .timeout = 30) {
    Pair pair;
    pair.grow_by_lines();
    RVT_EQ(promised_memory(), kLargeBytes);
    const auto send_runs = [&](std::size_t bytes) {
        for (std::size_t sent = 0; sent < bytes; sent += kRun) {
            while (!pair.send_run()) {
                RVT_ASSERT(pair.take() != 0);
            }
        }
    };
    send_runs(2 * kLargeBytes);
    RVT_EQ(promised_memory(), 0);
    Pair other;
    other.grow_by_lines();
    RVT_EQ(promised_memory(), kLargeBytes);
    other.sender.close();
    RVT_EQ(promised_memory(), 0);
}

Test(path, looks_ahead_where_more_than_a_few_have_arrived, .timeout = 30) {
    Pair pair;
    for (unsigned i = 0; i < 8; ++i) {
        RVT_ASSERT(pair.send_line());
    }
    pair.take_looking_ahead();
    RVT_EQ(pair.seen.size(), std::size_t{0});
    for (unsigned i = 0; i < 9; ++i) {
        RVT_ASSERT(pair.send_line());
    }
    pair.take_looking_ahead();
    RVT_EQ(pair.seen.size(), std::size_t{8});
}

Test(path, looks_ahead_at_each_message_once_and_in_order, .timeout = 30) {
    Pair pair;
    constexpr unsigned kMessages = 24;
    while (pair.sent < kMessages) {
        RVT_ASSERT(pair.sent % 7 == 0
                       ? pair.send_run()
                       : pair.send_line(pair.sent % 5 == 0 ? Path::kMaxLinePayload : 8));
    }
    pair.take_looking_ahead();
    RVT_EQ(pair.taken, pair.sent);
    RVT_ASSERT(pair.seen.size() >= 8);
    RVT_ASSERT(pair.seen == pair.seen_again);
    for (std::size_t i = 1; i < pair.seen.size(); ++i) {
        RVT_ASSERT(pair.seen[i] > pair.seen[i - 1]);
    }
}

Test(path, a_peer_counts_as_busy_after_several_runs_until_it_is_heard_of, .timeout = 30) {
    Pair pair;
    for (unsigned i = 0; !pair.sender.is_peer_busy(); ++i) {
        RVT_ASSERT(pair.send_run());
        RVT_ASSERT(i < 8);
    }
    RVT_ASSERT(pair.sent > 1);  // to start early on a single one gains something
    pair.take_all();
    RVT_ASSERT(pair.receiver.put_eager(0, 0, 0, nullptr, 0));
    const auto take = [](const auto& /*arrival*/) { return true; };
    RVT_EQ(pair.sender.poll(kBudget, take, take), 1);
    RVT_ASSERT(!pair.sender.is_peer_busy());
}

Test(path, a_peer_that_has_taken_all_is_not_busy, .timeout = 30) {
    Pair pair;
    while (!pair.sender.is_peer_busy()) {
        RVT_ASSERT(pair.send_run());
    }
    RVT_ASSERT(!pair.sender.prepare_run_if_drained());
    RVT_ASSERT(pair.sender.is_peer_busy());
    pair.take_all();
    RVT_EQ(pair.take(), 0);  // it says so when it finds nothing
    RVT_ASSERT(pair.sender.prepare_run_if_drained());
    RVT_ASSERT(!pair.sender.is_peer_busy());
}

Test(path, moves_to_the_large_rings_when_it_is_warm_and_much_is_to_come, .timeout = 30) {
    Pair pair;
    pair.sender.prepare_bulk();
    RVT_EQ(pair.sender.max_run(), kSmallBytes / 2);  // little has gone through it
    for (std::size_t bytes = 0; bytes < 8 * kLargeBytes; bytes += kRun) {
        RVT_ASSERT(pair.send_run());
        pair.take_all();
    }
    RVT_EQ(pair.sender.max_run(), kSmallBytes / 2);  // it is never full
    pair.sender.prepare_bulk();
    RVT_EQ(pair.sender.max_run(), kLargeBytes / 2);
    RVT_ASSERT(pair.send_run());
    pair.take_all();
}
