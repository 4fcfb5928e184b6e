// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Both ends of a path in one process: room, holding back, the move to the large rings.
#include <criterion/criterion.h>

#include "backend/shm/path.h"
#include "common/check.h"
#include "test_endpoint.h"

using namespace rvt::shm;        // NOLINT(google-build-using-namespace)
using namespace rvt::shm::test;  // NOLINT(google-build-using-namespace)
using rvt::core::RdOp;

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
    bool send_line() {
        const std::uint64_t number = sent;
        const bool is_sent = sender.put_eager(0, number, 0, nullptr, 0);
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
    void take_all() {
        while (taken < sent) {
            RVT_ASSERT(receiver.look().has_arrival());
            RVT_ASSERT(take() != 0);
        }
        RVT_ASSERT(!receiver.look().has_arrival());
    }

    TestEndpoint a;
    TestEndpoint b;
    Path sender;
    Path receiver;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
};

}  // namespace

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
    // More than fills the small rings for long enough, then a large ring of either kind twice.
    for (std::size_t i = 0; i < 8 * kLargeLines; ++i) {
        while (!pair.send_line()) {
            RVT_ASSERT(pair.take() != 0);
        }
    }
    RVT_ASSERT(pair.sender.describe().find("large rings") != std::string::npos);
    pair.take_all();
    for (std::size_t i = 0; i < 2 * kLargeBytes / kRun; ++i) {
        while (!pair.send_run()) {
            RVT_ASSERT(pair.take() != 0);
        }
    }
    pair.take_all();
}
