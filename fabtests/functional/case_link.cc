// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Interfaces that fail under traffic: rank 1's does. Its operations go on once the interface is
// back, or end with an error; ranks 0 and 2 do not notice.
#include <cstdlib>
#include <iterator>

#include "common/link.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr double kNoticeS = 5;      ///< What cannot go on has ended.
constexpr double kUnaffectedS = 5;  ///< A hundred messages each way, on a machine that is busy.
constexpr std::size_t kLarge = 1 << 20;
/// Copied; sent from the buffer at once; sent when the peer asks for it.
constexpr std::size_t kSendSizes[] = {8, 64 << 10, kLarge};
constexpr std::size_t kSends = 9;
constexpr std::size_t kInUse = 6;  ///< Of them, until the peer has them.

// Flags of the page.
constexpr std::size_t kBroken = 0;
constexpr std::size_t kServed = 1;  // rank 2 has been, meanwhile
constexpr std::size_t kMended = 2;

void post_sends(const Party& party, const Buffer& buffer, int to, Contexts& contexts) {
    for (std::size_t i = 0; i < kSends; ++i) {
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, buffer.as(), kSendSizes[i % std::size(kSendSizes)],
                            buffer.desc(), party.at(to), 50, contexts.at(i));
        });
    }
}

/// Returns: how many of the sends ended with an error.
std::size_t end_sends(const Party& party, double limit_s) {
    const double deadline = now_s() + limit_s;
    std::size_t errors = 0;
    for (std::size_t left = kSends; left > 0;) {
        Completion done;
        if (party.ep.poll(party.ep.tx_cq, done)) {
            --left;
            errors += done.err != 0 ? 1 : 0;
        }
        party.ep.progress();
        if (now_s() > deadline) FAB_FAIL("%zu sends pending after %.0f s", left, limit_s);
    }
    return errors;
}

void greet_all(Party& party, const Buffer& buffer) {
    for (int a = 0; a < 3; ++a) {
        for (int b = a + 1; b < 3; ++b) {
            if (party.self.rank == a) greet(party, buffer, b);
            if (party.self.rank == b) greet(party, buffer, a);
            party.barrier();
        }
    }
}

/// Ranks 0 and 2 talk while rank 1's interface is broken.
void be_unaffected(Party& party, const Buffer& buffer) {
    progress_until(party, kBroken);
    // In full: until neighbours have been forgotten.
    for (int round = 0; round < (settings.is_long ? 2000 : 5); ++round) {
        const double start = now_s();
        for (int i = 0; i < 100; ++i) greet(party, buffer, 2 - party.self.rank);
        FAB_CHECK(now_s() - start < kUnaffectedS);
    }
}

/// What was under way to and from a host whose cable was out for a moment arrives.
void pulled_and_plugged(Rank& self) {
    const Link link;
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(2 * kSends);
    greet_all(party, buffer);
    if (self.rank == 1) {
        link.pull();
        self.page->flags[kBroken].set();
        post_sends(party, buffer, 0, contexts);
        progress_until(party, kServed);
        link.plug();
    } else {
        be_unaffected(party, buffer);
        if (self.rank == 0) post_sends(party, buffer, 1, contexts);
        if (self.rank == 0) self.page->flags[kServed].set();
    }
    if (self.rank == 2) return;
    for (std::size_t i = 0; i < kSends; ++i) {
        party.trecv(buffer, kLarge, 50, 0, contexts.at(kSends + i));
        party.ep.wait_rx();
    }
    FAB_EQUAL(end_sends(party, kOpLimitS), 0);
}

/// An endpoint whose address has left the host reaches nobody. When it is back, peers are reached
/// again, and what they had under way to it ends.
void address_gone_and_back(Rank& self) {
    const Link link;
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(kSends);
    greet_all(party, buffer);
    if (self.rank == 1) {
        link.move_away();
        self.page->flags[kBroken].set();
        post_sends(party, buffer, 0, contexts);
        FAB_CHECK(end_sends(party, kNoticeS) >= kInUse);
        progress_until(party, kServed);
        link.move_back();
        self.page->flags[kMended].set();
        greet(party, buffer, 0);
        return;
    }
    be_unaffected(party, buffer);
    if (self.rank == 2) return;
    post_sends(party, buffer, 1, contexts);
    self.page->flags[kServed].set();
    FAB_CHECK(end_sends(party, 3 * kNoticeS) >= kInUse);
    progress_until(party, kMended);
    greet(party, buffer, 1);
}

/// Takes what comes; some of it breaks off.
void receive_until_served(Party& party, const Buffer& buffer) {
    Contexts contexts(1);
    Completion done;
    party.trecv(buffer, kLarge, 50, 0, contexts.at(0));
    while (party.self.page->flags[kServed].get() == 0) {
        if (party.ep.poll(party.ep.rx_cq, done)) {
            party.trecv(buffer, kLarge, 50, 0, contexts.at(0));
        }
        party.ep.progress();
    }
    // The last message may have the receive by now, though it has not been seen to complete.
    while (fi_cancel(&party.ep.ep->fid, contexts.at(0)) == -FI_ENOENT) {
        party.ep.wait_any(party.ep.rx_cq);
        party.trecv(buffer, kLarge, 50, 0, contexts.at(0));
    }
    FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ECANCELED);
}

/// Packets that `narrow` has made too large end what they belong to. Who connects again uses
/// smaller ones.
void packets_become_too_large(Rank& self, void (Link::*narrow)(int) const) {
    const Link link;
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(kSends);
    greet_all(party, buffer);
    if (self.rank == 1) {
        (link.*narrow)(700);
        self.page->flags[kBroken].set();
        post_sends(party, buffer, 0, contexts);
        FAB_CHECK(end_sends(party, kNoticeS) > 0);
        post_sends(party, buffer, 0, contexts);
        FAB_EQUAL(end_sends(party, kOpLimitS), 0);
        self.page->flags[kServed].set();
        return;
    }
    be_unaffected(party, buffer);
    if (self.rank == 0) receive_until_served(party, buffer);
}

void packets_too_large(Rank& self) {
    packets_become_too_large(self, &Link::set_mtu);
}

void way_narrows(Rank& self) {
    packets_become_too_large(self, &Link::narrow_way);
}

/// A way that takes less than the interface, of which one end knows, is gone by smaller packets.
void narrow_way(Rank& self) {
    const Link link;
    if (self.rank == 1) link.narrow_way(700);
    self.barrier();
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(2 * kSends);
    for (int to = 0; to < 2; ++to) {
        if (self.rank == 1 - to) post_sends(party, buffer, to, contexts);
        if (self.rank == to) {
            for (std::size_t i = 0; i < kSends; ++i) {
                party.trecv(buffer, kLarge, 50, 0, contexts.at(kSends + i));
                party.ep.wait_rx();
            }
        } else if (self.rank == 1 - to) {
            FAB_EQUAL(end_sends(party, kNoticeS), 0);
        }
        party.barrier();
    }
}

/// An interface that is gone takes with it what needs it, and nothing else. The endpoint is told,
/// though it sends nothing.
void interface_gone(Rank& self) {
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "2000", 1);
    Link link;
    Party party(self, {.caps = FI_TAGGED, .has_eq = true});
    party.leave_alone();
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(kSends);
    greet_all(party, buffer);
    if (self.rank == 1) {
        link.remove();
        self.page->flags[kBroken].set();
        expect_port_error(party.ep, FI_ENETDOWN);
        for (int turn = 0; turn < 2; ++turn) {
            post_sends(party, buffer, 0, contexts);
            FAB_CHECK(end_sends(party, turn == 0 ? kNoticeS : 3 * kNoticeS) >= kInUse);
        }
        self.page->flags[kServed].set();
    } else {
        be_unaffected(party, buffer);
        progress_until(party, kServed);
    }
}

constexpr Case kLinkTable[] = {
    {"link_pulled_and_plugged", pulled_and_plugged, 3, 60},
    {"link_address_gone_and_back", address_gone_and_back, 3, 150},
    {"link_packets_too_large", packets_too_large, 3, 60},
    {"link_way_narrows", way_narrows, 3, 60},
    {"link_narrow_way", narrow_way, 2, 60},
    {"link_interface_gone", interface_gone, 3, 60},
};

}  // namespace

const std::span<const Case> kLinkCases = kLinkTable;

}  // namespace fab
