// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints whose interface fails: rank 1's does. Rank 0 listens; its connection with
// rank 2 does not notice. Who waits sleeps on an event queue and sends nothing.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/cm.h"
#include "common/link.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr double kNoticeS = 5;  ///< What cannot go on has ended, and both ends that can know do.
constexpr double kUnaffectedS = 5;  ///< A hundred messages each way, on a machine that is busy.
constexpr std::size_t kLarge = 1 << 20;
constexpr std::size_t kSends = 8;
constexpr std::size_t kPlaces = 1 + 2 * kSends;  ///< Of completions that may be pending.

// Flags of the page.
constexpr std::size_t kBroken = 0;
constexpr std::size_t kServed = 1;  // rank 2 has been, meanwhile

struct Event {
    std::uint32_t type = 0;  ///< 0: an error, or none before the time was over.
    int error = 0;
    fid* object = nullptr;
    fi_info* info = nullptr;
};

/// Sleeps until there is one, or the time is over.
Event next_event(fid_eq* eq, double limit_s) {
    std::array<char, 512> room{};
    Event event;
    const int limit_ms = static_cast<int>(limit_s * 1000);
    const ssize_t got = fi_eq_sread(eq, &event.type, room.data(), room.size(), limit_ms, 0);
    if (got == -FI_EAVAIL) {
        fi_eq_err_entry entry{};
        FAB_CHECK(fi_eq_readerr(eq, &entry, 0) > 0);
        event.type = 0;
        event.error = entry.err;
        event.object = entry.fid;
    } else if (got >= static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) {
        fi_eq_cm_entry entry{};
        std::memcpy(&entry, room.data(), sizeof entry);
        event.object = entry.fid;
        event.info = entry.info;
    } else if (got != -FI_EAGAIN && got != -FI_ETIMEDOUT) {
        fail_fi(__FILE__, __LINE__, "fi_eq_sread", got);
    }
    return event;
}

/// The next event is this one.
void expect(fid_eq* eq, const Event& wanted) {
    const Event event = next_event(eq, kNoticeS);
    FAB_EQUAL(event.error, wanted.error);
    FAB_EQUAL(event.type, wanted.type);
    FAB_CHECK(event.object == wanted.object);
}
/// The next events are these, in this order where they are about the same object.
void expect_all(fid_eq* eq, std::vector<Event> wanted) {
    while (!wanted.empty()) {
        const Event event = next_event(eq, kNoticeS);
        const auto found = std::find_if(wanted.begin(), wanted.end(), [&](const Event& one) {
            return one.object == event.object;
        });
        FAB_CHECK(found != wanted.end());
        FAB_EQUAL(event.error, found->error);
        FAB_EQUAL(event.type, found->type);
        wanted.erase(found);
    }
}
/// Waits for an event of that type. Ends of connections before it are not of interest.
Event await_event(fid_eq* eq, std::uint32_t type) {
    Event event;
    do {
        event = next_event(eq, kOpLimitS);
    } while (event.type == FI_SHUTDOWN);
    FAB_EQUAL(event.error, 0);
    FAB_EQUAL(event.type, type);
    return event;
}

fi_info* find_msg_info() {
    fi_info* const hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = kAnyMrMode;
    hints->fabric_attr->prov_name = strdup(settings.provider.c_str());
    fi_info* info = nullptr;
    FAB_OK(fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), nullptr, "0", FI_SOURCE,
                      hints, &info));
    fi_freeinfo(hints);
    return info;
}

/// One end of a connection, with a queue of its own.
struct End {
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;

    End(fid_domain* domain, fi_info* info, fid_eq* eq) {
        fi_cq_attr attr{};
        attr.format = FI_CQ_FORMAT_MSG;
        attr.size = 64;
        FAB_OK(fi_cq_open(domain, &attr, &cq, nullptr));
        FAB_OK(fi_endpoint(domain, info, &ep, nullptr));
        FAB_OK(fi_ep_bind(ep, &eq->fid, 0));
        FAB_OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
        FAB_OK(fi_enable(ep));
    }
    ~End() {
        FAB_OK(fi_close(&ep->fid));
        FAB_OK(fi_close(&cq->fid));
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    /// Returns: whether something has completed; an error's number is in `error`.
    bool poll(int& error) const {
        fi_cq_msg_entry entry{};
        const ssize_t got = fi_cq_read(cq, &entry, 1);
        error = 0;
        if (got == -FI_EAVAIL) {
            fi_cq_err_entry failed{};
            FAB_OK(fi_cq_readerr(cq, &failed, 0));
            error = failed.err;
        }
        return got != -FI_EAGAIN;
    }
    int wait() const {
        int error = 0;
        const double deadline = now_s() + kOpLimitS;
        while (!poll(error)) {
            if (now_s() > deadline) FAB_FAIL("nothing completes for %.0f s", kOpLimitS);
        }
        return error;
    }
    void wait_good(std::size_t count) const {
        for (std::size_t i = 0; i < count; ++i) FAB_EQUAL(wait(), 0);
    }
};

class Side {
  public:
    explicit Side(Rank& rank) : self(rank) {
        // Who is not answered should know before the case is over.
        setenv("FI_RVT_CONNECT_TIMEOUT_MS", "2000", 1);
        info = find_msg_info();
        FAB_OK(fi_fabric(info->fabric_attr, &fabric, nullptr));
        fi_eq_attr attr{};
        attr.wait_obj = FI_WAIT_UNSPEC;
        FAB_OK(fi_eq_open(fabric, &attr, &eq, nullptr));
        FAB_OK(fi_eq_open(fabric, &attr, &domain_eq, nullptr));
        FAB_OK(fi_domain(fabric, info, &domain, nullptr));
        FAB_OK(fi_domain_bind(domain, &domain_eq->fid, 0));
        memory.resize(kLarge * 2);
        if (self.rank == kListener) {
            listen();
            for (int caller = 1; caller < 3; ++caller) {
                self.send_string(caller, name());
                accept();
            }
        } else {
            listener = self.receive_string(kListener);
            call();
        }
        barrier();  // who calls again later does so when the listener expects it
    }
    ~Side() {
        for (End* end : ends) delete end;
        if (pep != nullptr) FAB_OK(fi_close(&pep->fid));
        FAB_OK(fi_close(&domain->fid));
        FAB_OK(fi_close(&domain_eq->fid));
        FAB_OK(fi_close(&eq->fid));
        FAB_OK(fi_close(&fabric->fid));
        fi_freeinfo(info);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    void listen() {
        FAB_OK(fi_passive_ep(fabric, info, &pep, nullptr));
        FAB_OK(fi_pep_bind(pep, &eq->fid, 0));
        FAB_OK(fi_listen(pep));
    }
    std::string name() const {
        std::array<char, 256> bytes{};
        std::size_t length = bytes.size();
        FAB_OK(fi_getname(&pep->fid, bytes.data(), &length));
        return {bytes.data(), length};
    }
    void accept() {
        const Event request = await_event(eq, FI_CONNREQ);
        ends.push_back(new End(domain, request.info, eq));
        const End* const end = ends.back();
        fi_freeinfo(request.info);
        FAB_OK(fi_accept(end->ep, nullptr, 0));
        FAB_CHECK(await_event(eq, FI_CONNECTED).object == &end->ep->fid);
    }
    End* dial() {
        fi_info* const towards = dup_towards(*info, {listener.begin(), listener.end()});
        ends.push_back(new End(domain, towards, eq));
        FAB_OK(fi_connect(ends.back()->ep, listener.data(), nullptr, 0));
        fi_freeinfo(towards);
        return ends.back();
    }
    void call() {
        End* const end = dial();
        FAB_CHECK(await_event(eq, FI_CONNECTED).object == &end->ep->fid);
    }
    /// The end that leads to that rank.
    End& to(int rank) const {
        return *ends[static_cast<std::size_t>(self.rank == kListener ? rank - 1 : 0)];
    }

    void send(const End& end, std::size_t bytes) {
        FAB_OK(fi_send(end.ep, memory.data(), bytes, nullptr, 0, contexts.at(used++ % kPlaces)));
    }
    void receive(const End& end) {
        FAB_OK(fi_recv(end.ep, memory.data() + kLarge, kLarge, nullptr, 0,
                       contexts.at(used++ % kPlaces)));
    }
    /// One message each way.
    void greet(const End& end, std::size_t bytes = 8) {
        receive(end);
        send(end, bytes);
        end.wait_good(2);
    }
    /// Ranks 0 and 2 talk while rank 1's interface is broken.
    void be_unaffected() {
        await(kBroken);
        const double start = now_s();
        for (int i = 0; i < 100; ++i) greet(to(2 - self.rank));
        FAB_CHECK(now_s() - start < kUnaffectedS);
    }
    void set(std::size_t flag) const { self.page->flags[flag].set(); }
    void await(std::size_t flag) const {
        while (self.page->flags[flag].get() == 0) fi_cq_read(ends[0]->cq, nullptr, 0);
    }
    void expect_no_event() const {
        std::uint32_t type = 0;
        std::array<char, 512> room{};
        FAB_EQUAL(fi_eq_read(eq, &type, room.data(), room.size(), 0), -FI_EAGAIN);
        FAB_EQUAL(fi_eq_read(domain_eq, &type, room.data(), room.size(), 0), -FI_EAGAIN);
    }
    void barrier() const {
        self.barrier_polling([this] { fi_cq_read(ends[0]->cq, nullptr, 0); });
    }

    Rank& self;
    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_eq* eq = nullptr;
    fid_eq* domain_eq = nullptr;
    fid_domain* domain = nullptr;
    fid_pep* pep = nullptr;
    std::string listener;
    std::vector<End*> ends;  ///< At rank 0: of ranks 1 and 2; else one.
    std::vector<char> memory;
    Contexts contexts{kPlaces};
    std::size_t used = 0;
};

/// Of who sends nothing and waits for events: the connection has ended with that error, and what
/// was under way.
void expect_end(Side& side, const End& end, int error) {
    const Event failed{.error = error, .object = &end.ep->fid};
    const Event ended{.type = FI_SHUTDOWN, .object = &end.ep->fid};
    if (side.pep == nullptr) {
        expect_all(side.eq, {failed, ended});
    } else {
        expect_all(side.eq, {failed, ended, {.error = error, .object = &side.pep->fid}});
    }
    expect(side.domain_eq, {.error = error, .object = &side.domain->fid});
    FAB_EQUAL(end.wait(), FI_ECANCELED);
    FAB_EQUAL(fi_send(end.ep, side.memory.data(), 8, nullptr, 0, nullptr), -FI_ENOTCONN);
}

/// What was under way to and from a host whose cable was out for a moment arrives.
void pulled_and_plugged(Rank& self) {
    const Link link;
    Side side(self);
    if (self.rank == 2) {
        side.be_unaffected();
        side.barrier();
        return;
    }
    const End& end = side.to(1 - self.rank);
    side.greet(end);
    for (std::size_t i = 0; i < kSends; ++i) side.receive(end);
    if (self.rank == 1) {
        link.pull();
        side.set(kBroken);
    } else {
        side.be_unaffected();
    }
    for (std::size_t i = 0; i < kSends; ++i) side.send(end, i % 2 == 0 ? 64 : kLarge);
    if (self.rank == 0) side.set(kServed);
    if (self.rank == 1) {
        side.await(kServed);
        link.plug();
    }
    end.wait_good(2 * kSends);
    side.expect_no_event();
    side.barrier();
}

/// Rank 0, when rank 1's connection is over: another one works.
void serve_again(Side& side) {
    side.accept();
    side.greet(*side.ends.back(), kLarge);
}
void connect_again(Side& side) {
    side.call();
    side.greet(*side.ends.back(), kLarge);
}

/// Endpoints of an address that has left the host are told, though they send nothing. When it is
/// back, the peer is reached again.
void address_gone_and_back(Rank& self) {
    const Link link;
    Side side(self);
    if (self.rank == 1) {
        side.listen();
        side.receive(side.to(0));
        link.move_away();
        side.set(kBroken);
        expect_end(side, side.to(0), FI_ENETDOWN);
        side.await(kServed);
        link.move_back();
        connect_again(side);
    } else {
        side.be_unaffected();
        if (self.rank == 0) side.set(kServed);
        if (self.rank == 0) serve_again(side);
    }
    side.barrier();
}

/// A connection goes on as long as the interface takes its packets, and ends, at both ends, when
/// they have become too large. Who connects again uses smaller ones.
void packets_too_large(Rank& self) {
    const Link link;
    Side side(self);
    if (self.rank == 1) {
        link.set_mtu(1300);
        expect(side.domain_eq, {.error = FI_EMSGSIZE, .object = &side.domain->fid});
        side.greet(side.to(0), kLarge);
        side.receive(side.to(0));
        link.set_mtu(700);
        side.set(kBroken);
        expect_end(side, side.to(0), FI_EMSGSIZE);
        connect_again(side);
    } else {
        if (self.rank == 0) side.greet(side.to(1), kLarge);
        side.be_unaffected();
        if (self.rank == 0) expect(side.eq, {.type = FI_SHUTDOWN, .object = &side.to(1).ep->fid});
        if (self.rank == 0) serve_again(side);
    }
    side.barrier();
}

/// The same where it is the way that takes less, which who sends finds out.
void way_narrows(Rank& self) {
    const Link link;
    Side side(self);
    if (self.rank == 1) {
        const End& end = side.to(0);
        link.narrow_way(700);
        side.set(kBroken);
        side.send(end, kLarge);
        expect_all(side.eq, {{.error = FI_EMSGSIZE, .object = &end.ep->fid},
                             {.type = FI_SHUTDOWN, .object = &end.ep->fid}});
        FAB_CHECK(end.wait() != 0);
        connect_again(side);
    } else {
        if (self.rank == 0) side.receive(side.to(1));
        side.be_unaffected();
        if (self.rank == 0) expect(side.eq, {.type = FI_SHUTDOWN, .object = &side.to(1).ep->fid});
        if (self.rank == 0) serve_again(side);
    }
    side.barrier();
}

/// A connection's packets are as large as the way takes, of which each end knows something else.
void narrow_way(Rank& self) {
    const Link link;
    if (self.rank < 2) link.narrow_way(self.rank == 0 ? 400 : 700);
    self.barrier();
    Side side(self);
    for (int i = 0; i < 10; ++i) {
        if (self.rank == 0) side.greet(side.to(1), kLarge);
        side.greet(side.to(self.rank == 0 ? 2 : 0), kLarge);
    }
    side.barrier();
}

/// An interface that is gone takes with it what needs it, and nothing else.
void interface_gone(Rank& self) {
    Link link;
    Side side(self);
    if (self.rank == 1) {
        side.listen();
        side.receive(side.to(0));
        link.remove();
        side.set(kBroken);
        expect_end(side, side.to(0), FI_ENETDOWN);
        End* const next = side.dial();
        expect(side.eq, {.error = FI_ETIMEDOUT, .object = &next->ep->fid});
    } else {
        side.be_unaffected();
    }
    side.barrier();
}

constexpr Case kLinkMsgTable[] = {
    {"link_pulled_and_plugged_msg", pulled_and_plugged, 3, 60},
    {"link_address_gone_and_back_msg", address_gone_and_back, 3, 60},
    {"link_packets_too_large_msg", packets_too_large, 3, 60},
    {"link_way_narrows_msg", way_narrows, 3, 60},
    {"link_narrow_way_msg", narrow_way, 3, 60},
    {"link_interface_gone_msg", interface_gone, 3, 60},
};

}  // namespace

const std::span<const Case> kLinkMsgCases = kLinkMsgTable;

}  // namespace fab
