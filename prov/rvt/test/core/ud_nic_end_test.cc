// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram endpoints of a NIC that is gone, or fails a call, which exists only here.
#include <array>
#include <chrono>
#include <memory>

#include <poll.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/addresses.h"
#include "core/counted_use.h"
#include "core/cq.h"
#include "core/ud_endpoint.h"
#include "core/ud_nic_host.h"
#include "core/ud_resolver.h"

using namespace rvt;
using namespace rvt::core;
using rvt::test::CountedUse;
using rvt::test::NicHost;
using rvt::test::NicServices;

namespace {

constexpr util::SockAddr kOwn{.family = AF_INET, .port = 4242, .ip = {10, 1, 2, 3}};
constexpr util::SockAddr kPeer{.family = AF_INET, .port = 7, .ip = {10, 1, 2, 9}};
constexpr UdPair kPair{.qpn = 0x99, .qkey = kUdEndpointQkey};
constexpr unsigned kReceives = 3;

/// Counts how often a number's pair is gone.
class Numbers final : public UdResolverOwner {
  public:
    Status post_kept_locked(const UdKept&, const UdPair&) noexcept override { return kOk; }
    void fail_kept_locked(const UdKept&, WcStatus) noexcept override {}
    void unlearn_locked(std::uint64_t) noexcept override { ++unlearned; }
    void wake() noexcept override {}

    unsigned unlearned = 0;
};

struct World {
    explicit World(const ibv_odp_caps& on_demand = {}, std::size_t tx_size = 8) {
        mock.on_demand = on_demand;
        mock.takes_receives = true;
        mock.attr.max_mcast_qp_attach = 4;
        ibv_gid_entry own{};
        own.gid_type = IBV_GID_TYPE_ROCE_V2;
        const Address address = to_address(kOwn);
        std::copy(address.gid.begin(), address.gid.end(), own.gid.raw);
        mock.gids = {own};
        nic = verbs::Nic::open(registry, {.device = "mock0", .port = 1, .address = kOwn}).take();
        endpoint = std::make_unique<UdEndpoint>(UdAttr{.tx_size = tx_size, .rx_size = 8});
        endpoint->bind({.tx_cq = cq.get(), .rx_cq = cq.get(), .send = nullptr, .recv = nullptr},
                       &av);
        RVT_OK(endpoint->open(std::make_unique<NicHost>(nic->device(), services, kOwn)));
        peer = av.insert(kPeer).value();
        for (unsigned i = 0; i < kReceives; ++i) {
            RVT_OK(receive());
        }
    }
    Status send(BufferUse* use = nullptr, RdFlags flags = RdFlags::kCompletion) {
        const iovec one{.iov_base = memory.data(), .iov_len = memory.size()};
        return endpoint->send_locked(
            {.iov = &one, .iov_count = 1, .dest = peer, .flags = flags, .use = use});
    }
    Status receive(BufferUse* use = nullptr) {
        const iovec one{.iov_base = memory.data(), .iov_len = memory.size()};
        return endpoint->recv_locked(
            {.iov = &one, .iov_count = 1, .flags = RdFlags::kCompletion, .use = use});
    }
    /// Flushed ones that have come.
    unsigned flushed() {
        endpoint->poll_locked();
        unsigned count = 0;
        for (; !cq->is_empty(); cq->pop(), ++count) {
            RVT_ASSERT(cq->front()->status == WcStatus::kWrFlushErr);
        }
        return count;
    }

    /// Those that come until the pair is reset: from then on the NIC touches nothing.
    unsigned until_stopped() {
        unsigned count = 0;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (mock.modified.back().qp_state != IBV_QPS_RESET) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            count += flushed();
        }
        return count + flushed();
    }

    verbs::MockNic mock;
    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    NicServices services;
    std::unique_ptr<Cq> cq = Cq::create(64).take();
    AddressVector av;
    std::array<std::byte, 200> memory{};
    std::unique_ptr<UdEndpoint> endpoint;
    std::uint64_t peer = 0;
};

}  // namespace

Test(ud_nic_end, what_waits_for_an_answer_ends_and_what_the_nic_had_when_it_answers_nothing) {
    World on;
    RVT_OK(on.send());  // the peer's pair is asked for
    on.mock.is_gone = true;
    on.nic->device().begin_removal();
    RVT_EQ(on.flushed(), 1 + kReceives);
    RVT_EQ(on.flushed(), 0);
}

Test(ud_nic_end, what_it_sends_ends_too) {
    World on;
    RVT_OK(on.send());
    on.services.user->resolved(to_address(kPeer), kPair);
    RVT_EQ(on.flushed(), 0);
    RVT_EQ(on.mock.sends.size(), 1);  // which this NIC does not complete
    on.mock.is_gone = true;
    on.nic->device().begin_removal();
    RVT_EQ(on.flushed(), 1 + kReceives);
}

Test(ud_nic_end, what_a_nic_brings_is_taken_to_the_device_that_waits_for_it) {
    World on;
    CountedUse use;
    RVT_OK(on.receive(&use));
    for (const auto& [wr_id, list] : on.mock.receives) {
        RVT_EQ(use.releases, 0);
        ibv_wc wc{};
        wc.wr_id = wr_id;
        wc.opcode = IBV_WC_RECV;
        wc.byte_len = kGrhBytes + 64;
        wc.qp_num = on.mock.last_pair->qp_num;
        on.mock.completions.push_back(wc);
        on.endpoint->poll_locked();
    }
    RVT_EQ(use.filled_end, 64);
    RVT_EQ(use.releases, 1);
}

Test(ud_nic_end, memory_of_devices_is_let_go_of_what_ends) {
    World on;
    CountedUse waiting;
    CountedUse posted;
    RVT_OK(on.send(&waiting));
    RVT_OK(on.receive(&posted));
    on.mock.is_gone = true;
    on.nic->device().begin_removal();
    RVT_EQ(on.flushed(), 2 + kReceives);
    RVT_EQ(waiting.releases, 1);
    RVT_EQ(posted.releases, 1);
    RVT_EQ(posted.fills, 0);
}

Test(ud_nic_end, what_a_nic_flushes_is_reported_once) {
    World on;
    on.nic->device().begin_removal();
    RVT_EQ(on.flushed(), kReceives);
    RVT_EQ(on.until_stopped(), 0);
}

Test(ud_nic_end, what_it_does_not_flush_ends_when_its_time_is_over) {
    World on;
    on.mock.flushes = false;
    on.nic->device().begin_removal();
    RVT_EQ(on.flushed(), 0);
    RVT_EQ(on.until_stopped(), kReceives);
}

Test(ud_nic_end, who_sleeps_is_woken) {
    World on;
    RVT_EQ(on.endpoint->arm_locked(), kOk);
    pollfd readable{.fd = on.services.watched_fd, .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&readable, 1, 0), 0);
    on.nic->device().begin_removal();
    on.services.user->device_gone();
    RVT_EQ(poll(&readable, 1, 20'000), 1);
}

Test(ud_nic_end, nothing_more_is_taken) {
    World on;
    RVT_OK(on.send());
    on.services.user->resolved(to_address(kPeer), kPair);
    RVT_EQ(on.flushed(), 0);
    on.nic->device().begin_removal();
    RVT_EQ(on.send(), ENODEV);
    RVT_EQ(on.receive(), ENODEV);
    on.flushed();
    RVT_EQ(on.send(), ENODEV);
    RVT_EQ(on.receive(), ENODEV);
}

Test(ud_nic_end, what_waits_at_a_queue_that_gives_no_completions_ends) {
    World on;
    RVT_OK(on.send());
    on.services.user->resolved(to_address(kPeer), kPair);
    RVT_EQ(on.flushed(), 0);
    on.mock.failing = "poll_cq";
    RVT_EQ(on.flushed(), 1 + kReceives);
    RVT_EQ(on.mock.modified.back().qp_state, IBV_QPS_RESET);  // it touches nothing any more
    RVT_EQ(on.send(), ENODEV);
    RVT_EQ(on.receive(), ENODEV);
    RVT_EQ(on.flushed(), 0);
}

Test(ud_nic_end, what_waits_at_a_queue_that_the_nic_gives_up_ends) {
    World on;
    RVT_EQ(on.endpoint->arm_locked(), kOk);
    pollfd readable{.fd = on.services.watched_fd, .events = POLLIN, .revents = 0};
    on.mock.flushes = false;
    on.mock.fail_queue();
    on.nic->take_events();
    RVT_EQ(poll(&readable, 1, 20'000), 1);
    RVT_EQ(on.flushed(), kReceives);
}

Test(ud_nic_end, an_endpoint_ends_though_the_nic_keeps_all_that_it_has) {
    World on;
    RVT_OK(on.send());
    on.services.user->resolved(to_address(kPeer), kPair);
    RVT_EQ(on.flushed(), 0);
    on.mock.failing = verbs::MockNic::kEveryEnd;
    on.endpoint.reset();
    RVT_EQ(on.mock.modified.back().qp_state, IBV_QPS_RESET);
    on.nic.reset();
}

// ---- calls that fail ----

/// What a NIC can do with memory on demand, it need not be able to do for datagrams.
Test(ud_nic_failures, memory_that_may_not_be_pinned_is_its_error) {
    World on({.general_caps = IBV_ODP_SUPPORT,
              .per_transport_caps = {.rc_odp_caps = 0x3f, .uc_odp_caps = 0, .ud_odp_caps = 0}});
    on.mock.most_pinned = 100;
    UdEndpoint further(UdAttr{.tx_size = 8, .rx_size = 8});
    further.bind({.tx_cq = on.cq.get(), .rx_cq = on.cq.get(), .send = nullptr, .recv = nullptr},
                 &on.av);
    RVT_EQ(further.open(std::make_unique<NicHost>(on.nic->device(), on.services, kOwn)), ENOMEM);
    for (const verbs::MockNic::Region& region : on.mock.regions) {
        RVT_EQ(region.access & IBV_ACCESS_ON_DEMAND, 0);
    }
}

Test(ud_nic_failures, a_group_that_cannot_be_joined_is_its_error_and_can_be_joined_later) {
    constexpr util::SockAddr kGroup{.family = AF_INET, .ip = {239, 1, 1, 1}};
    World on;
    for (const char* call : {"attach_mcast", "create_ah"}) {
        const int before = on.mock.live;
        on.mock.failing = call;
        RVT_EQ(on.endpoint->join_locked(kGroup, true, true).status(), EMFILE);
        RVT_EQ(on.mock.groups, 0);
        RVT_EQ(on.mock.live, before);
        on.mock.failing = {};
        const auto joined = on.endpoint->join_locked(kGroup, true, true);
        RVT_OK(joined);
        RVT_EQ(on.mock.groups, 1);
        on.mock.failing = "create_ah";
        RVT_EQ(on.endpoint->join_locked(kGroup, true, true).status(), EMFILE);
        RVT_EQ(on.mock.groups, 1);  // it is a member already
        on.mock.failing = {};
        on.endpoint->leave_locked(joined.value());
        RVT_EQ(on.mock.groups, 0);
    }
}

Test(ud_nic_failures, a_peer_without_an_address_handle_cannot_be_reached_until_there_is_one) {
    World on;
    CountedUse use;
    RVT_OK(on.send(&use));
    on.mock.failing = "create_ah";
    on.services.user->resolved(to_address(kPeer), kPair);
    on.endpoint->poll_locked();
    RVT_EQ(on.cq->front()->status, WcStatus::kPeerUnreachable);
    RVT_EQ(use.releases, 1);
    on.cq->pop();
    RVT_ASSERT(on.mock.sends.empty());
    RVT_EQ(on.send(), on.mock.error);
    on.mock.failing = {};
    RVT_OK(on.send());
    RVT_EQ(on.mock.sends.size(), 1);
}

Test(ud_nic_failures, a_number_that_asks_again_for_its_pair_is_told_once_that_it_is_gone) {
    World on;
    NicServices services;
    Numbers owner;
    UdResolver resolver(on.nic->device(), services, 1, 8, owner);
    RVT_OK(resolver.open(kPair));
    RVT_EQ(resolver.find_locked(on.peer, kPeer).status(), EAGAIN);
    services.user->resolved(to_address(kPeer), kPair);
    resolver.run_locked(on.av);
    for (int i = 0; i < 3; ++i) {
        RVT_OK(resolver.find_locked(on.peer, kPeer));
    }
    services.user->pair_gone(to_address(kPeer), kPair.qpn);
    resolver.run_locked(on.av);
    RVT_EQ(owner.unlearned, 1);
}

Test(ud_nic_failures, what_cannot_be_posted_is_its_error_and_takes_no_room) {
    World on;
    RVT_OK(on.send());
    on.services.user->resolved(to_address(kPeer), kPair);
    on.endpoint->poll_locked();
    for (int i = 0; i < 20; ++i) {
        on.mock.failing = "post_send";
        RVT_EQ(on.send(), EMFILE);
        on.mock.failing = "post_recv";
        RVT_EQ(on.receive(), EMFILE);
    }
    on.mock.failing = {};
    RVT_OK(on.send());
    RVT_OK(on.receive());
    RVT_EQ(on.mock.sends.size(), 2);
}

namespace {

constexpr std::size_t kInterval = 16;

/// An endpoint that knows its peer, and whose sends want no completion.
struct Silent {
    explicit Silent(std::size_t tx_size) : on({}, tx_size) {
        RVT_OK(on.send());
        on.services.user->resolved(to_address(kPeer), kPair);
        on.endpoint->poll_locked();
        qpn = on.mock.last_pair->qp_num;
        on.mock.finish(qpn, false);
        RVT_EQ(completions(), 1);
    }
    Status send() { return on.send(nullptr, RdFlags::kNone); }
    void send(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            RVT_OK(send());
        }
    }
    /// @param send  Behind the first one.
    [[nodiscard]] bool is_signaled(std::size_t send) const {
        return (on.mock.sends.at(send + 1).send_flags & IBV_SEND_SIGNALED) != 0;
    }
    std::size_t completions() {
        on.endpoint->poll_locked();
        std::size_t count = 0;
        for (; !on.cq->is_empty(); on.cq->pop()) {
            last = on.cq->front()->status;
            ++count;
        }
        return count;
    }
    World on;
    std::uint32_t qpn = 0;
    WcStatus last = WcStatus::kSuccess;
};

}  // namespace

Test(ud_nic_unsignaled, of_what_wants_no_completion_one_in_sixteen_is_signaled) {
    Silent one(64);
    one.send(2 * kInterval);
    for (std::size_t i = 0; i < 2 * kInterval; ++i) {
        const bool is_last = i % kInterval == kInterval - 1;
        RVT_EQ(one.is_signaled(i), is_last);
    }
}

Test(ud_nic_unsignaled, what_wants_a_completion_is_signaled_and_makes_room_for_all) {
    Silent one(8);
    one.send(3);
    RVT_OK(one.on.send());
    RVT_ASSERT(!one.is_signaled(2) && one.is_signaled(3));
    for (int i = 0; i < 3; ++i) {
        one.on.mock.pass(one.qpn);
    }
    one.on.mock.finish(one.qpn, false);
    RVT_EQ(one.completions(), 1);
    one.send(8);
    RVT_EQ(one.send().error(), EAGAIN);
}

Test(ud_nic_unsignaled, the_last_place_is_signaled_so_that_there_is_room_again) {
    Silent one(8);
    for (std::size_t round = 0; round < 3; ++round) {
        one.send(8);
        RVT_EQ(one.send().error(), EAGAIN);
        RVT_ASSERT(one.is_signaled(8 * round + 7));
        for (int i = 0; i < 7; ++i) {
            one.on.mock.pass(one.qpn);
        }
        one.on.mock.finish(one.qpn, false);
    }
    one.send(8);
}

Test(ud_nic_unsignaled, an_error_in_the_middle_is_told_and_what_follows_is_flushed) {
    Silent one(8);
    one.send(5);
    one.on.mock.pass(one.qpn);
    one.on.mock.pass(one.qpn);
    one.on.mock.finish(one.qpn, false, IBV_WC_LOC_PROT_ERR);
    RVT_EQ(one.completions(), 3 + kReceives);  // the pair has ended
    RVT_ASSERT(one.last == WcStatus::kWrFlushErr);
}

Test(ud_nic_unsignaled, who_waits_for_nothing_but_these_may_sleep) {
    Silent one(8);
    one.send(3);
    RVT_OK(one.on.endpoint->arm_locked());
    RVT_OK(one.on.send());
    RVT_EQ(one.on.endpoint->arm_locked().error(), EAGAIN);
}

Test(ud_nic_unsignaled, what_the_nic_does_not_flush_ends_once) {
    Silent one(8);
    one.send(3);
    one.on.mock.is_gone = true;
    one.on.nic->device().begin_removal();
    RVT_EQ(one.on.flushed(), 3 + kReceives);
    RVT_EQ(one.on.flushed(), 0);
}
