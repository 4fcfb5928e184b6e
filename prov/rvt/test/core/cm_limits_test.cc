// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Limits of the communication manager, what it keeps secret, and datagram services.
#include "core/cm_peers.h"

#include <set>
#include <vector>

using namespace rvt;
using namespace rvt::core;
using namespace rvt::protocol;
using namespace rvt::test;

// ---- limits ----

Test(cm_agent, requests_beyond_the_limit_are_dropped) {
    CmPeers pair({.max_half_open = 3});
    for (std::uint32_t qpn = 2; qpn < 7; ++qpn) {
        pair.connect(qpn);
    }
    pair.world.pass_us(1000);
    std::vector<CmHandle> got;
    for (int i = 0; i < 3; ++i) {
        got.push_back(pair.b.next(CmEventType::kRequest).handle);
    }
    pair.b.expect_silence();
    RVT_EQ(pair.b.agent().stats().half_open_refused, 2);
    // What is answered makes room for those that ask again.
    RVT_OK(pair.b.reject(got[0]));
    RVT_OK(pair.b.reject(got[1]));
    pair.world.pass_us(200'000);
    pair.b.next(CmEventType::kRequest);
    pair.b.next(CmEventType::kRequest);
}

Test(cm_agent, connections_beyond_the_limit_are_refused) {
    CmWorld world;
    CmNode& node = world.add(1, {.max_connections = 32});
    const CmConnect request{
        .service_id = kCmService, .dest = {.dest = address_of(2)}, .own = {.qpn = 2}};
    for (int i = 0; i < 32; ++i) {
        RVT_OK(node.connect(request));
    }
    RVT_EQ(node.connect(request), ENOMEM);
    RVT_EQ(node.agent().resolve({.dest = {.dest = address_of(2)}}, 1), ENOMEM);
    world.settle();
    RVT_OK(node.connect(request));
}

Test(cm_agent, unread_events_do_not_pile_up) {
    CmPeers pair({.max_half_open = 4});
    pair.connect();
    CmReq req = pair.last<CmReq>();
    for (std::uint32_t id = 1; id <= 1000; ++id) {
        req.local_comm_id = id;
        pair.deliver(pair.b, address_of(1), req);
        pair.deliver(pair.b, address_of(1), CmRej{.local_comm_id = id});
    }
    int events = 0;
    while (pair.b.agent().poll_event().has_value()) {
        ++events;
    }
    RVT_ASSERT(events <= 4 * 4 + 4);
}

Test(cm_agent, nothing_is_due_while_nothing_is_awaited) {
    CmPeers pair;
    RVT_EQ(pair.a.agent().next_due_us().has_value(), false);
    pair.connected();
    RVT_EQ(pair.a.agent().next_due_us().has_value(), false);
    RVT_EQ(pair.b.agent().next_due_us().has_value(), false);
}

Test(cm_agent, ids_are_not_in_sequence) {
    CmPeers pair;
    std::set<std::uint32_t> ids;
    for (std::uint32_t qpn = 2; qpn < 102; ++qpn) {
        pair.connect(qpn);
        const std::uint32_t id = pair.last<CmReq>().local_comm_id;
        RVT_EQ(ids.contains(id - 1) || ids.contains(id + 1), false);
        ids.insert(id);
    }
    RVT_EQ(ids.size(), 100);
    // Another secret, other ids.
    pair.a.restart(2);
    pair.connect();
    RVT_EQ(ids.contains(pair.last<CmReq>().local_comm_id), false);
}

Test(cm_agent, secret_numbers_are_those_of_siphash) {
    // From the reference implementation's list of results.
    const CmSecret secret({0x0706050403020100, 0x0f0e0d0c0b0a0908});
    RVT_EQ(secret.hash({}), 0x726fdb47dd0e0e31);
    RVT_EQ(secret.hash({0x0706050403020100}), 0x93f5f5799a932462);
}

// ---- datagram services ----

namespace {

constexpr std::uint64_t kUdpService = ip_service_id(PortSpace::kUdp, 5000);

CmResolve resolution() {
    return {.service_id = kUdpService,
            .dest = {.dest = address_of(2)},
            .response_timeout_us = kTimeoutUs,
            .max_cm_retries = 3,
            .source_port = 999,
            .context = 33,
            .private_data = bytes_of("who?")};
}

}  // namespace

Test(cm_agent, resolution_finds_the_pair_of_a_service) {
    CmPeers pair;
    RVT_OK(pair.b.agent().listen(kUdpService, 44));
    const CmHandle asked = pair.a.agent().resolve(resolution(), pair.world.now_us).value();
    pair.world.pass_us(1000);
    const CmEvent got = pair.b.next(CmEventType::kSidrRequest);
    RVT_EQ(got.context, 44);
    RVT_EQ(got.service_id, kUdpService);
    RVT_EQ(got.ip.value().source_port, 999);
    RVT_EQ(got.private_bytes, 180);
    RVT_ASSERT(text_of(got.private_data()) == "who?");
    RVT_EQ(pair.b.agent().answer_sidr(got.handle, {.qpn = 1}, pair.world.now_us), EINVAL);
    RVT_OK(pair.b.agent().answer_sidr(
        got.handle, {.qpn = 0x300, .qkey = 0x1234567, .private_data = bytes_of("me")},
        pair.world.now_us));
    pair.world.pass_us(1000);
    const CmEvent found = pair.a.next(CmEventType::kSidrReply);
    RVT_EQ(found.handle, asked);
    RVT_EQ(found.context, 33);
    RVT_EQ(found.sidr_status, SidrStatus::kOk);
    RVT_EQ(found.remote.qpn, 0x300);
    RVT_EQ(found.qkey, 0x1234567);
    RVT_EQ(found.private_bytes, 136);
    RVT_ASSERT(text_of(found.private_data()) == "me");
    pair.expect_all_forgotten();
}

Test(cm_agent, resolution_of_no_service_says_so) {
    CmPeers pair;
    RVT_OK(pair.a.agent().resolve(resolution(), pair.world.now_us));
    pair.world.pass_us(1000);
    const CmEvent event = pair.a.next(CmEventType::kSidrReply);
    RVT_EQ(event.sidr_status, SidrStatus::kInvalidServiceId);
    pair.expect_all_forgotten();
}

Test(cm_agent, lost_resolution_messages_are_repeated) {
    CmPeers pair;
    RVT_OK(pair.b.agent().listen(kUdpService, 44));
    pair.world.is_lost = [reqs = 1, reps = 1](const CmPacket& packet) mutable {
        return (packet.is<CmSidrReq>() && reqs-- > 0) || (packet.is<CmSidrRep>() && reps-- > 0);
    };
    RVT_OK(pair.a.agent().resolve(resolution(), pair.world.now_us));
    for (int i = 0; i < 2; ++i) {
        pair.world.pass_us(400'000);
        const CmEvent got = pair.b.next(CmEventType::kSidrRequest);
        RVT_OK(pair.b.agent().answer_sidr(got.handle, {.qpn = 0x300}, pair.world.now_us));
    }
    pair.world.pass_us(400'000);
    pair.a.next(CmEventType::kSidrReply);
    pair.a.expect_silence();
}

Test(cm_agent, resolution_that_nobody_answers_ends_in_time) {
    CmPeers pair;
    pair.lose<CmSidrReq>();
    const CmHandle asked = pair.a.agent().resolve(resolution(), pair.world.now_us).value();
    pair.world.settle();
    RVT_EQ(pair.a.next(CmEventType::kUnreachable).handle, asked);
    RVT_EQ(pair.count<CmSidrReq>(), 4);
    pair.expect_all_forgotten();
}

Test(cm_agent, resolution_can_be_dropped_at_either_end) {
    CmPeers pair;
    RVT_OK(pair.b.agent().listen(kUdpService, 44));
    const CmHandle asked = pair.a.agent().resolve(resolution(), pair.world.now_us).value();
    pair.world.pass_us(1000);
    const CmHandle got = pair.b.next(CmEventType::kSidrRequest).handle;
    RVT_OK(pair.a.disconnect(asked));
    RVT_OK(pair.b.disconnect(got));
    RVT_EQ(pair.last<CmSidrRep>().status, SidrStatus::kRejected);
    pair.expect_all_forgotten();
    pair.a.expect_silence();
}
