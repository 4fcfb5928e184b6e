// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flow control: nobody receives for a while, and nothing is lost, nothing hangs, order stays.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kFillSizes[] = {8, 3000, 64, 40000};
constexpr std::size_t kLargestFill = 40000;

/// Reads send completions that are there. Returns: how many.
std::size_t reap(const Party& party) {
    std::size_t count = 0;
    Completion done;
    while (party.ep.poll(party.ep.tx_cq, done)) {
        FAB_EQUAL(done.err, 0);
        ++count;
    }
    return count;
}

/// Waits until so many sends have completed, however long all of them take. Where the whole machine
/// stood still for a while, each gets some looks more.
void await_sends(const Party& party, std::size_t pending) {
    constexpr unsigned kLooks = 10'000;
    double deadline = now_s() + kOpLimitS;
    unsigned late_looks = 0;
    while (pending > 0) {
        const std::size_t completed = reap(party);
        pending -= completed;
        if (completed != 0) {
            deadline = now_s() + kOpLimitS;
            late_looks = 0;
        }
        if (now_s() > deadline && ++late_looks > kLooks) {
            FAB_FAIL("of %zu sends none completes for %.0f s", pending, kOpLimitS);
        }
    }
}

/// With no receive posted and the receiver not even polling, sends are accepted or refused with
/// -FI_EAGAIN, but never block; later all that were accepted arrive in order.
void sender_is_held_back(Rank& self) {
    constexpr std::size_t kMessages = 20'000;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, kSmall);
    Contexts contexts(kMessages);
    std::size_t accepted = 0;
    // One exchange first: without polling on both sides some providers cannot connect.
    party.trecv(buffer, kSmall, kMessages, 0, contexts.at(0));
    party.tsend(buffer, 8, kMessages, contexts.at(1));
    party.ep.wait_rx();
    party.ep.wait_tx();
    party.barrier();
    if (self.rank == 0) {
        std::size_t completed = 0;
        const double until = now_s() + 0.5;
        while (accepted < kMessages && now_s() < until) {
            const auto rc =
                static_cast<long>(fi_tsend(party.ep.ep, buffer.as(), kSmall, buffer.desc(),
                                           party.peer(), accepted, contexts.at(accepted)));
            completed += reap(party);
            if (rc == -FI_EAGAIN) continue;
            FAB_OK(rc);
            ++accepted;
        }
        FAB_CHECK(accepted > 0);
        self.send(1, &accepted, sizeof accepted);
        await_sends(party, accepted - completed);
        return;
    }
    self.receive(0, &accepted, sizeof accepted);
    for (std::size_t i = 0; i < accepted; ++i) {
        party.trecv(buffer, kSmall, i, 0, contexts.at(0));
        FAB_EQUAL(party.ep.wait_rx().tag, i);
    }
}

/// Receives all that the ranks have accepted of each other, the last sent first, and waits until
/// the own sends have completed.
/// @param accepted  Of the sends to each rank.
/// @param pending   Of those, that have not completed.
void receive_in_reverse(Rank& self, Party& party, const Buffer& buffer,
                        const std::vector<std::size_t>& accepted, std::size_t pending) {
    Contexts contexts(1);
    const std::size_t ranks = accepted.size();
    std::vector<std::size_t> expected(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
        if (static_cast<int>(r) != self.rank) {
            expected[r] = self.trade(static_cast<int>(r), accepted[r]);
        }
    }
    for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = expected[r]; i-- > 0;) {
            party.trecv(buffer, kLargestFill, r << 32 | i, 0, contexts.at(0));
            FAB_EQUAL(party.ep.wait_rx().len, kFillSizes[i % 4]);
            pending -= reap(party);
        }
    }
    await_sends(party, pending);
}

/// Each rank fills its way to every other one with messages of several sizes, nobody has posted a
/// receive; then RMA and atomics must pass; then receives are posted in the reverse order.
void filled_both_ways(Rank& self) {
    constexpr std::size_t kCount = 300;
    Party party(self, {.caps = FI_TAGGED | FI_RMA | FI_ATOMIC, .rx_size = 0});
    Buffer buffer(party.ep, kLargestFill);
    Buffer target(party.ep, 4096);
    const auto ranks = static_cast<std::size_t>(self.size);
    Contexts contexts(kCount * ranks + 1);
    std::vector<RemoteRegion> regions(ranks);
    for (int r = 0; r < self.size; ++r) {
        if (r != self.rank) {
            const RemoteRegion mine = target.remote();
            self.send(r, &mine, sizeof mine);
        }
    }
    for (int r = 0; r < self.size; ++r) {
        if (r != self.rank)
            self.receive(r, &regions[static_cast<std::size_t>(r)], sizeof(RemoteRegion));
    }

    // Fill: as many as are accepted without anybody receiving.
    std::vector<std::size_t> accepted(ranks);
    std::size_t pending = 0;
    const double until = now_s() + 1;
    for (std::size_t i = 0; i < kCount && now_s() < until; ++i) {
        for (std::size_t r = 0; r < ranks; ++r) {
            if (static_cast<int>(r) == self.rank || accepted[r] != i) continue;
            const auto rc = static_cast<long>(fi_tsend(
                party.ep.ep, buffer.as(), kFillSizes[i % 4], buffer.desc(),
                party.at(static_cast<int>(r)), static_cast<std::uint64_t>(self.rank) << 32 | i,
                contexts.at(r * kCount + i)));
            pending -= reap(party);
            if (rc == -FI_EAGAIN) continue;
            FAB_OK(rc);
            ++accepted[r];
            ++pending;
        }
    }
    party.barrier();

    // RMA and atomics are not stopped by messages that wait.
    for (std::size_t r = 0; r < ranks; ++r) {
        if (static_cast<int>(r) == self.rank) continue;
        const fi_addr_t to = party.at(static_cast<int>(r));
        const auto finish = [&](const char* what) {
            const double deadline = now_s() + kOpLimitS;
            for (;;) {
                const Completion done = party.ep.wait(party.ep.tx_cq);
                if (done.context == contexts.at(kCount * ranks)) return;
                --pending;
                if (now_s() > deadline) FAB_FAIL("%s waits behind messages", what);
            }
        };
        void* context = contexts.at(kCount * ranks);
        const RemoteRegion& at = regions[r];
        party.ep.post([&] {
            return fi_write(party.ep.ep, buffer.as(), 1000, buffer.desc(), to, at.base, at.key,
                            context);
        });
        finish("a write");
        party.ep.post([&] {
            return fi_read(party.ep.ep, buffer.as(), 1000, buffer.desc(), to, at.base, at.key,
                           context);
        });
        finish("a read");
        party.ep.post([&] {
            return fi_fetch_atomic(party.ep.ep, buffer.as(), 1, buffer.desc(), buffer.as() + 64,
                                   buffer.desc(), to, at.base, at.key, FI_UINT64, FI_SUM, context);
        });
        finish("a fetching atomic");
    }
    party.barrier();

    receive_in_reverse(self, party, buffer, accepted, pending);
}

/// Each rank posts to every other one until that is refused, and takes in nothing meanwhile. What
/// was accepted arrives once there are receives, the last sent first.
void refused_both_ways(Rank& self) {
    constexpr std::size_t kMost = 20'000;
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLargestFill);
    Contexts contexts(1);
    const auto ranks = static_cast<std::size_t>(self.size);
    const auto own = static_cast<std::size_t>(self.rank);
    for (std::size_t r = 0; r < ranks; ++r) {  // connects them
        if (r == own) continue;
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(),
                            party.at(static_cast<int>(r)), own << 32 | kMost, contexts.at(0));
        });
        party.trecv(buffer, 8, r << 32 | kMost, 0, contexts.at(0));
        party.ep.wait_rx();
        party.ep.wait_tx();
    }
    party.barrier();
    std::vector<std::size_t> accepted(ranks);
    std::vector<bool> is_open(ranks, true);
    is_open[own] = false;
    std::size_t pending = 0;
    // By turns, since what the endpoint has for sends is for all peers.
    while (std::find(is_open.begin(), is_open.end(), true) != is_open.end()) {
        for (std::size_t r = 0; r < ranks; ++r) {
            if (!is_open[r]) continue;
            const auto rc = static_cast<long>(
                fi_tsend(party.ep.ep, buffer.as(), kFillSizes[accepted[r] % 4], buffer.desc(),
                         party.at(static_cast<int>(r)), own << 32 | accepted[r], contexts.at(0)));
            if (rc != 0) FAB_EQUAL(rc, -FI_EAGAIN);
            accepted[r] += rc == 0 ? 1 : 0;
            pending += rc == 0 ? 1 : 0;
            is_open[r] = rc == 0 && accepted[r] < kMost;
        }
    }
    if (settings.provider == "rvt") {
        for (std::size_t r = 0; r < ranks; ++r) {
            FAB_CHECK(r == own || (accepted[r] >= 4 && accepted[r] < kMost));  // of all sizes
        }
    }
    receive_in_reverse(self, party, buffer, accepted, pending);
    party.barrier();
}

/// Each of four ranks sends 100,000 messages to rank 0 before it posts a receive.
void many_unexpected(Rank& self) {
    const std::size_t count = turns_here(100'000);
    setenv("FI_RVT_UNEXPECTED_BYTES", "268435456", 0);  // room for all, unless there is to be none
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, kSmall);
    Contexts contexts(1);
    if (self.rank != 0) {
        std::size_t sent = 0;
        std::size_t completed = 0;
        while (completed < count) {
            if (sent < count) {
                const auto rc = static_cast<long>(
                    fi_tsend(party.ep.ep, buffer.as(), kSmall, buffer.desc(), party.at(0),
                             static_cast<std::uint64_t>(self.rank) << 32 | sent, contexts.at(0)));
                if (rc == 0) ++sent;
                if (rc != 0) FAB_EQUAL(rc, -FI_EAGAIN);
                if (rc == 0 && sent % 16 != 0) continue;
            }
            completed += reap(party);
            if (sent == count / 2) self.page->flags[static_cast<std::size_t>(self.rank)].set();
        }
        return;
    }
    // Until half of each is under way, or flow control holds the senders back.
    for (const double until = now_s() + 3; now_s() < until;) {
        party.ep.progress();
        bool all = true;
        for (std::size_t r = 1; r < static_cast<std::size_t>(self.size); ++r) {
            all = all && self.page->flags[r].get() != 0;
        }
        if (all) break;
    }
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t r = static_cast<std::size_t>(self.size) - 1; r > 0; --r) {
            party.trecv(buffer, kSmall, r << 32 | i, 0, contexts.at(0));
            FAB_EQUAL(party.ep.wait_rx().tag, r << 32 | i);
        }
    }
}

/// The same with as little memory for unexpected messages as can be set.
void many_unexpected_little_room(Rank& self) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "65536", 1);
    many_unexpected(self);
}

void filled_both_ways_little_room(Rank& self) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "65536", 1);
    filled_both_ways(self);
}

/// 100,000 receives are accepted, or refused with -FI_EAGAIN; they are filled in any order.
void many_posted(Rank& self) {
    const std::size_t count = turns_here(100'000);
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kSmall);
    Contexts contexts(count);
    std::size_t posted = 0;
    if (self.rank == 1) {
        for (; posted < count; ++posted) {
            const auto rc =
                static_cast<long>(fi_trecv(party.ep.ep, buffer.as(), kSmall, buffer.desc(),
                                           FI_ADDR_UNSPEC, posted, 0, contexts.at(posted)));
            if (rc == -FI_EAGAIN) break;
            FAB_OK(rc);
        }
        self.send(0, &posted, sizeof posted);
        for (std::size_t i = 0; i < posted; ++i) {
            const Completion got = party.ep.wait_rx();
            FAB_EQUAL(contexts.index_of(got.context), got.tag);
        }
        if (posted < count) {
            party.barrier();
            skip("%zu receives at most", posted);
        }
    } else {
        self.receive(1, &posted, sizeof posted);
        for (std::size_t i = 0; i < posted; ++i) {
            party.tsend(buffer, 8, posted - 1 - i, contexts.at(0));
            party.ep.wait_tx();
        }
        if (posted < count) party.barrier();
    }
}

/// Two endpoints of one domain, and two domains' worth of traffic through one process.
void two_endpoints(Rank& self) {
    const EpSpec spec{.caps = FI_TAGGED};
    Party party(self, spec);
    Endpoint second(spec, party.ep);
    second.connect(self);
    Buffer buffer(party.ep, 256);
    Contexts contexts(4);
    for (int turn = 0; turn < 100; ++turn) {
        const auto other = static_cast<std::size_t>(self.other());
        party.trecv(buffer, 64, 1, 0, contexts.at(0));
        FAB_OK(fi_trecv(second.ep, buffer.as() + 64, 64, buffer.desc(), FI_ADDR_UNSPEC, 1, 0,
                        contexts.at(1)));
        party.tsend(buffer, 8, 1, contexts.at(2));
        second.post([&] {
            return fi_tsend(second.ep, buffer.as(), 16, buffer.desc(), second.peers[other], 1,
                            contexts.at(3));
        });
        FAB_EQUAL(party.ep.wait_rx().len, 8);
        FAB_EQUAL(second.wait_rx().len, 16);
        party.ep.wait_tx();
        second.wait_tx();
    }
    party.barrier();
}

constexpr Case kFlowTable[] = {
    {"flow_sender_is_held_back", sender_is_held_back},
    {"flow_filled_both_ways", filled_both_ways, 2, 40},
    {"flow_filled_both_ways_4", filled_both_ways, 4, 60},
    {"flow_filled_both_ways_little_room", filled_both_ways_little_room, 4, 60},
    {"flow_refused_both_ways", refused_both_ways, 2, 40},
    {"flow_refused_both_ways_4", refused_both_ways, 4, 60},
    {"flow_many_unexpected", many_unexpected, 5, 90},
    {"flow_many_unexpected_little_room", many_unexpected_little_room, 5, 180},
    {"flow_many_posted", many_posted, 2, 40},
    {"flow_two_endpoints", two_endpoints},
};

}  // namespace

const std::span<const Case> kFlowCases = kFlowTable;

}  // namespace fab
