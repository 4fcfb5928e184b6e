// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram endpoints whose interface fails: rank 1's does. What it sends then is lost, and an event
// tells why; ranks 0 and 2 do not notice.
#include <algorithm>
#include <array>

#include "common/link.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr double kNoticeS = 5;
constexpr double kUnaffectedS = 5;  ///< Some datagrams each way, on a machine that is busy.
constexpr double kAgainS = 0.1;     ///< A datagram that was not answered is sent again.
constexpr std::size_t kMost = 4096;
constexpr int kLost = 50;  ///< Datagrams that are sent into nowhere.

// Flags of the page; from kHeard on how often rank a has heard of rank b, at 3 * a + b.
constexpr std::size_t kBroken = 0;
constexpr std::size_t kServed = 1;  // rank 2 has been, meanwhile
constexpr std::size_t kHeard = 2;

struct Side : Party {
    explicit Side(Rank& rank)
        : Party(rank, {.caps = FI_MSG | FI_SOURCE, .type = FI_EP_DGRAM, .has_eq = true}),
          buffer(ep, kMost) {
        post_receive();
    }
    /// Leaves with the others while what may still arrive has its buffer.
    ~Side() {
        barrier();
        leave_alone();
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    void post_receive() { recv(buffer, kMost, &in); }
    std::size_t largest() const { return std::min(ep.info->ep_attr->max_msg_size, kMost); }
    ssize_t try_send(int to, std::size_t bytes) {
        return fi_send(ep.ep, buffer.as(), bytes, buffer.desc(), at(to), &out);
    }
    void send(int to, std::size_t bytes) {
        ep.post([&] { return try_send(to, bytes); });
        FAB_EQUAL(ep.wait_any(ep.tx_cq).err, 0);
    }
    /// Datagrams go both ways between this rank and `with`; the first ones may be lost.
    void greet(int with, std::size_t bytes = 8) {
        auto& heard = self.page->flags[kHeard + static_cast<std::size_t>(3 * self.rank + with)];
        auto& is_heard = self.page->flags[kHeard + static_cast<std::size_t>(3 * with + self.rank)];
        const std::uint32_t round = ++rounds_[static_cast<std::size_t>(with)];
        const double deadline = now_s() + kOpLimitS;
        double again = 0;
        while (heard.get() < round || is_heard.get() < round) {
            if (now_s() >= again) {
                send(with, bytes);
                again = now_s() + kAgainS;
            }
            Completion got;
            if (ep.poll(ep.rx_cq, got)) {
                FAB_EQUAL(got.err, 0);
                post_receive();
                if (got.source == at(with)) heard.set(round);
            }
            if (now_s() > deadline) FAB_FAIL("no datagram comes for %.0f s", kOpLimitS);
        }
    }
    void be_unaffected() {
        progress_until(*this, kBroken);
        const double start = now_s();
        for (int i = 0; i < 20; ++i) greet(2 - self.rank);
        FAB_CHECK(now_s() - start < kUnaffectedS);
    }
    void expect_no_error() const {
        std::uint32_t type = 0;
        fi_eq_entry entry{};
        FAB_EQUAL(fi_eq_read(ep.eq, &type, &entry, sizeof entry, 0), -FI_EAGAIN);
    }
    void lose_some() {
        const double start = now_s();
        for (int i = 0; i < kLost; ++i) send(0, 8);
        FAB_CHECK(now_s() - start < kNoticeS);
    }

    Buffer buffer;
    Context in;
    Context out;

  private:
    std::array<std::uint32_t, 3> rounds_{};
};

/// Ranks 0 and 2, until rank 1 is wanted again.
void serve_others(Side& side) {
    side.be_unaffected();
    if (side.self.rank == 0) side.self.page->flags[kServed].set();
}

void greet_all(Side& side) {
    if (side.self.rank != 0) {
        side.greet(0);
    } else {
        side.greet(1);
        side.greet(2);
    }
}

/// What is sent while a cable is out is lost. Then it is as before.
void pulled_and_plugged(Rank& self) {
    const Link link;
    Side side(self);
    greet_all(side);
    if (self.rank == 1) {
        link.pull();
        self.page->flags[kBroken].set();
        side.lose_some();
        progress_until(side, kServed);
        link.plug();
        side.greet(0, side.largest());
        side.expect_no_error();
        return;
    }
    serve_others(side);
    if (self.rank == 0) side.greet(1);
}

/// An endpoint whose address has left the host is told, though it sends nothing. What it sends is
/// lost until the address is back.
void address_gone_and_back(Rank& self) {
    const Link link;
    Side side(self);
    greet_all(side);
    if (self.rank == 1) {
        link.move_away();
        self.page->flags[kBroken].set();
        expect_port_error(side.ep, FI_ENETDOWN);
        side.lose_some();
        progress_until(side, kServed);
        link.move_back();
        side.greet(0, side.largest());
        return;
    }
    serve_others(side);
    if (self.rank == 0) side.greet(1);
}

/// Datagrams that the interface does not take any more are refused, smaller ones are not.
void packets_too_large(Rank& self) {
    const Link link;
    Side side(self);
    const std::size_t largest = side.largest();
    greet_all(side);
    if (self.rank == 1) {
        link.set_mtu(700);
        self.page->flags[kBroken].set();
        expect_port_error(side.ep, FI_EMSGSIZE);
        FAB_EQUAL(side.try_send(0, largest), -FI_EMSGSIZE);
        side.greet(0, largest / 2);
        link.set_mtu(1500);
        const double deadline = now_s() + kNoticeS;
        while (side.try_send(0, largest) == -FI_EMSGSIZE) FAB_CHECK(now_s() < deadline);
        FAB_EQUAL(side.ep.wait_any(side.ep.tx_cq).err, 0);
        side.greet(0, side.largest());
        return;
    }
    serve_others(side);
    if (self.rank == 0) side.greet(1, largest / 2);
    if (self.rank == 0) side.greet(1, side.largest());
}

/// An interface that is gone takes with it what needs it, and nothing else.
void interface_gone(Rank& self) {
    Link link;
    Side side(self);
    greet_all(side);
    if (self.rank == 1) {
        link.remove();
        self.page->flags[kBroken].set();
        expect_port_error(side.ep, FI_ENETDOWN);
        side.lose_some();
        progress_until(side, kServed);
    } else {
        serve_others(side);
    }
}

constexpr Case kLinkDgramTable[] = {
    {"link_pulled_and_plugged_dgram", pulled_and_plugged, 3, 60},
    {"link_address_gone_and_back_dgram", address_gone_and_back, 3, 60},
    {"link_packets_too_large_dgram", packets_too_large, 3, 60},
    {"link_interface_gone_dgram", interface_gone, 3, 60},
};

}  // namespace

const std::span<const Case> kLinkDgramCases = kLinkDgramTable;

}  // namespace fab
