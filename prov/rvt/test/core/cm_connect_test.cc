// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Making connections through the communication manager, one rule at a time, over a wire that loses
// what a test names.
#include "core/cm_peers.h"

#include <set>
#include <string>

using namespace rvt;
using namespace rvt::core;
using namespace rvt::protocol;
using namespace rvt::test;

namespace {

constexpr std::uint64_t kBareService = 0x1234;

}  // namespace

// ---- making connections ----

Test(cm_agent, both_sides_learn_what_the_other_said) {
    CmPeers pair;
    CmConnect request = pair.request();
    request.own = {.qpn = 0x101,
                   .starting_psn = 0xabcdef,
                   .responder_resources = 4,
                   .initiator_depth = 5,
                   .rnr_retry = 3,
                   .has_srq = true};
    request.path_mtu_bytes = 4096;
    request.retry_cnt = 6;
    request.local_ack_timeout = 18;
    request.private_data = bytes_of("hello");
    const CmHandle handle = pair.a.connect(request).value();
    pair.world.pass_us(1000);

    const CmEvent got = pair.b.next(CmEventType::kRequest);
    RVT_EQ(got.context, 77);
    RVT_ASSERT(got.peer == address_of(1));
    RVT_EQ(got.service_id, kCmService);
    RVT_EQ(got.remote.qpn, 0x101);
    RVT_EQ(got.remote.starting_psn, 0xabcdef);
    RVT_EQ(got.remote.responder_resources, 4);
    RVT_EQ(got.remote.initiator_depth, 5);
    RVT_EQ(got.remote.rnr_retry, 3);
    RVT_EQ(got.remote.has_srq, true);
    RVT_EQ(got.path_mtu_bytes, 4096);
    RVT_EQ(got.retry_cnt, 6);
    RVT_EQ(got.local_ack_timeout, 18);
    RVT_EQ(got.hop_limit, 64);
    RVT_EQ(got.ca_guid, 0x0200000000000001);
    RVT_EQ(got.ip.value().source_port, 999);
    RVT_ASSERT(got.ip.value().source == address_of(1).gid);
    RVT_ASSERT(got.ip.value().dest == address_of(2).gid);
    RVT_EQ(got.private_bytes, 56);
    RVT_ASSERT(text_of(got.private_data()) == "hello");

    CmAccept answer = CmPeers::answer();
    answer.own.initiator_depth = 9;
    answer.private_data = bytes_of("welcome");
    RVT_OK(pair.b.accept(got.handle, answer));
    pair.world.pass_us(1000);

    const CmEvent reply = pair.a.next(CmEventType::kReply);
    RVT_EQ(reply.handle, handle);
    RVT_EQ(reply.context, 11);
    RVT_EQ(reply.remote.qpn, 0x200);
    RVT_EQ(reply.remote.starting_psn, 0xb00001);
    RVT_EQ(reply.remote.initiator_depth, 9);
    RVT_EQ(reply.target_ack_delay, 15);
    RVT_EQ(reply.private_bytes, 196);
    RVT_ASSERT(text_of(reply.private_data()) == "welcome");

    RVT_OK(pair.a.establish(handle, bytes_of("thanks")));
    pair.world.pass_us(1000);
    const CmEvent established = pair.b.next(CmEventType::kEstablished);
    RVT_EQ(established.context, 22);
    RVT_ASSERT(text_of(established.private_data()) == "thanks");
}

Test(cm_agent, nothing_more_is_sent_than_needed) {
    CmPeers pair;
    pair.connected();
    pair.world.settle();
    RVT_EQ(pair.world.log.size(), 3);
    pair.a.expect_silence();
    pair.b.expect_silence();
}

Test(cm_agent, request_has_the_form_of_kernel_rxe) {
    CmPeers pair;
    pair.connect();
    const auto req = pair.last<CmReq>();
    RVT_EQ(req.pkey, 0xffff);
    RVT_EQ(req.primary.local_lid, kPermissiveLid);
    RVT_EQ(req.primary.remote_lid, kPermissiveLid);
    RVT_EQ(req.primary.is_subnet_local, false);
    RVT_EQ(req.remote_response_timeout, 15);  // 134 ms, the next above 100
    RVT_EQ(req.local_response_timeout, 15);
    RVT_EQ(req.max_cm_retries, 5);
    RVT_ASSERT(req.primary.local_gid == address_of(1).gid);
    RVT_ASSERT(req.primary.remote_gid == address_of(2).gid);
    RVT_ASSERT(req.alternate == CmPath{});
}

Test(cm_agent, service_without_ip_header_has_all_the_room) {
    CmPeers pair;
    RVT_OK(pair.b.agent().listen(kBareService, 1));
    const std::string data(92, 'x');
    CmConnect request = pair.request();
    request.private_data = bytes_of(data);
    RVT_EQ(pair.a.connect(request), EMSGSIZE);
    request.service_id = kBareService;
    RVT_OK(pair.a.connect(request));
    pair.world.pass_us(1000);
    const CmEvent got = pair.b.next(CmEventType::kRequest);
    RVT_EQ(got.ip.has_value(), false);
    RVT_ASSERT(std::ranges::equal(got.private_data(), bytes_of(data)));
}

Test(cm_agent, values_that_no_field_holds_are_refused) {
    CmPeers pair;
    const auto refused = [&](auto change) {
        CmConnect request = pair.request();
        change(request);
        RVT_EQ(pair.a.connect(request), EINVAL);
    };
    refused([](CmConnect& r) { r.own.qpn = 1; });
    refused([](CmConnect& r) { r.own.qpn = kMulticastQpn; });
    refused([](CmConnect& r) { r.own.starting_psn = 1u << 24; });
    refused([](CmConnect& r) { r.own.rnr_retry = 8; });
    refused([](CmConnect& r) { r.type = QpType::kUd; });
    refused([](CmConnect& r) { r.path_mtu_bytes = 1500; });
    refused([](CmConnect& r) { r.path_mtu_bytes = 128; });
    refused([](CmConnect& r) { r.path_mtu_bytes = 8192; });
    refused([](CmConnect& r) { r.retry_cnt = 8; });
    refused([](CmConnect& r) { r.local_ack_timeout = 32; });
    refused([](CmConnect& r) { r.response_timeout_us = 0; });
    refused([](CmConnect& r) { r.response_timeout_us = CmAgent::kMostTimeoutUs + 1; });
    refused([](CmConnect& r) { r.max_cm_retries = 16; });
    refused([](CmConnect& r) { r.dest.service_level = 16; });
    RVT_EQ(pair.a.agent().record_count(), 0);
    RVT_EQ(pair.world.log.size(), 0);
}

Test(cm_agent, calls_in_the_wrong_state_are_refused) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    RVT_EQ(pair.a.establish(asked), EINVAL);
    RVT_EQ(pair.a.accept(asked, CmPeers::answer()), EINVAL);
    RVT_EQ(pair.a.reject(asked), EINVAL);
    RVT_EQ(pair.a.agent().delay(asked, 1000, 1), EINVAL);
    RVT_EQ(pair.a.agent().answer_sidr(asked, {.qpn = 2}, 1), EINVAL);
    const CmHandle got = pair.offered();
    RVT_EQ(pair.b.establish(got), EINVAL);
    RVT_EQ(pair.b.accept(got, {.own = {.qpn = 0}}), EINVAL);
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    RVT_EQ(pair.b.accept(got, CmPeers::answer()), EINVAL);
    RVT_EQ(pair.b.reject(got), EINVAL);
}

Test(cm_agent, too_much_private_data_is_refused) {
    CmPeers pair;
    const std::string data(225, 'x');
    const auto bytes = [&data](std::size_t count) { return bytes_of(data).first(count); };
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    CmAccept answer = CmPeers::answer();
    answer.private_data = bytes(197);
    RVT_EQ(pair.b.accept(got, answer), EMSGSIZE);
    RVT_EQ(pair.b.reject(got, CmRejectReason::kConsumer, bytes(149)), EMSGSIZE);
    answer.private_data = bytes(196);
    RVT_OK(pair.b.accept(got, answer));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_EQ(pair.a.establish(asked, bytes(225)), EMSGSIZE);
    RVT_OK(pair.a.establish(asked, bytes(224)));
    RVT_EQ(pair.a.disconnect(asked, bytes(221)), EMSGSIZE);
    RVT_OK(pair.a.disconnect(asked, bytes(220)));
}

Test(cm_agent, uc_pairs_connect_too) {
    CmPeers pair;
    CmConnect request = pair.request();
    request.type = QpType::kUc;
    RVT_OK(pair.a.connect(request));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kRequest).transport, QpType::kUc);
}

Test(cm_agent, device_connects_to_itself) {
    CmWorld world;
    CmNode& node = world.add(1);
    RVT_OK(node.agent().listen_any(5));
    const CmHandle asked =
        node.connect(
                {.service_id = kBareService, .dest = {.dest = address_of(1)}, .own = {.qpn = 2}})
            .value();
    world.pass_us(1000);
    const CmHandle got = node.next(CmEventType::kRequest).handle;
    RVT_OK(node.accept(got, {.own = {.qpn = 3}}));
    world.pass_us(1000);
    RVT_EQ(node.next(CmEventType::kReply).handle, asked);
    RVT_OK(node.establish(asked));
    world.pass_us(1000);
    RVT_EQ(node.next(CmEventType::kEstablished).handle, got);
    RVT_OK(node.disconnect(got));
    world.pass_us(1000);
    RVT_EQ(node.next(CmEventType::kDisconnected).handle, asked);
    RVT_EQ(node.next(CmEventType::kDisconnected).handle, got);
}

Test(cm_agent, connects_that_cross_are_two_connections) {
    CmPeers pair;
    RVT_OK(pair.a.agent().listen(kCmService, 1));
    const CmHandle from_a = pair.connect(0x100);
    CmConnect request = pair.request(0x200);
    request.dest.dest = address_of(1);
    const CmHandle from_b = pair.b.connect(request).value();
    pair.world.pass_us(1000);
    RVT_OK(pair.a.accept(pair.a.next(CmEventType::kRequest).handle, CmPeers::answer(0x101)));
    RVT_OK(pair.b.accept(pair.b.next(CmEventType::kRequest).handle, CmPeers::answer(0x201)));
    pair.world.pass_us(1000);
    const CmEvent to_a = pair.a.next(CmEventType::kReply);
    const CmEvent to_b = pair.b.next(CmEventType::kReply);
    RVT_EQ(to_a.handle, from_a);
    RVT_EQ(to_b.handle, from_b);
    RVT_EQ(to_a.remote.qpn, 0x201);
    RVT_EQ(to_b.remote.qpn, 0x101);
    RVT_OK(pair.a.establish(from_a));
    RVT_OK(pair.b.establish(from_b));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kEstablished);
    pair.b.next(CmEventType::kEstablished);
}

// ---- lost and repeated messages ----

Test(cm_agent, lost_request_is_sent_again) {
    CmPeers pair;
    pair.lose<CmReq>(3);
    pair.connect();
    pair.world.pass_us(3 * cm_timeout_us(15) * 5 / 4 + 1000);
    pair.b.next(CmEventType::kRequest);
    pair.b.expect_silence();
    RVT_EQ(pair.a.agent().stats().resent, 3);
}

Test(cm_agent, pause_before_sending_again_varies) {
    CmPeers pair;
    pair.lose<CmReq>();
    std::set<std::uint64_t> pauses;
    const CmHandle handle = pair.connect();
    for (std::uint64_t last = pair.world.now_us; pauses.size() < 5 && pair.world.step();) {
        pauses.insert(pair.world.now_us - last);
        last = pair.world.now_us;
    }
    RVT_EQ(pauses.size(), 5);
    RVT_EQ(*pauses.begin() >= cm_timeout_us(15), true);
    RVT_EQ(*pauses.rbegin() <= cm_timeout_us(15) * 5 / 4, true);
    RVT_OK(pair.a.disconnect(handle));
}

Test(cm_agent, request_that_nobody_answers_ends_in_time) {
    CmPeers pair;
    pair.lose<CmReq>();
    const CmHandle handle = pair.connect();
    const std::uint64_t start = pair.world.now_us;
    pair.world.settle();
    const CmEvent event = pair.a.next(CmEventType::kUnreachable);
    RVT_EQ(event.handle, handle);
    RVT_EQ(event.context, 11);
    RVT_EQ(pair.count<CmReq>(), 6);
    RVT_EQ(pair.world.now_us - start <= 6 * cm_timeout_us(15) * 5 / 4 + 1000, true);
    pair.expect_all_forgotten();
}

Test(cm_agent, repeated_request_is_one_request) {
    CmPeers pair;
    pair.connect();
    const CmHandle got = pair.offered();
    pair.world.pass_us(300'000);  // the user takes its time
    pair.b.expect_silence();
    RVT_NE(pair.b.agent().stats().duplicates, 0);
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
}

Test(cm_agent, lost_reply_is_sent_again) {
    CmPeers pair;
    pair.lose<CmRep>(2);
    pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(500'000);
    pair.a.next(CmEventType::kReply);
    pair.a.expect_silence();
}

Test(cm_agent, repeated_reply_is_one_reply) {
    CmPeers pair;
    pair.world.double_percent = 100;
    pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(300'000);
    pair.a.next(CmEventType::kReply);
    pair.a.expect_silence();
}

Test(cm_agent, lost_rtu_is_repeated_for_the_repeated_reply) {
    CmPeers pair;
    pair.lose<CmRtu>(2);
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked, bytes_of("data")));
    pair.world.pass_us(500'000);
    RVT_ASSERT(text_of(pair.b.next(CmEventType::kEstablished).private_data()) == "data");
    RVT_EQ(pair.count<CmRtu>(), 3);
}

Test(cm_agent, traffic_stands_for_a_lost_rtu) {
    CmPeers pair;
    pair.lose<CmRtu>();
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.agent().note_traffic(got, pair.world.now_us));  // nothing is accepted yet
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    RVT_OK(pair.b.agent().note_traffic(got, pair.world.now_us));
    RVT_EQ(pair.b.next(CmEventType::kEstablished).handle, got);
    RVT_OK(pair.b.agent().note_traffic(got, pair.world.now_us));
    pair.world.is_lost = nullptr;
    pair.deliver(pair.b, address_of(1), pair.last<CmRtu>());
    pair.world.settle();
    pair.b.expect_silence();
    RVT_EQ(pair.count<CmRep>(), 1);
    RVT_EQ(pair.b.agent().open_count(), 1);
}

Test(cm_agent, peer_that_never_says_ready_is_given_up_and_told) {
    CmPeers pair;
    pair.lose<CmRtu>();
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    pair.world.settle();
    RVT_EQ(pair.b.next(CmEventType::kUnreachable).handle, got);
    pair.b.expect_silence();
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kPeer);
    pair.expect_all_forgotten();
}

Test(cm_agent, peer_that_asks_for_time_is_waited_for) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.agent().delay(got, 3'000'000, pair.world.now_us));
    pair.world.pass_us(3'000'000);
    pair.a.expect_silence();
    RVT_EQ(pair.count<CmReq>(), 1);
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kReply).handle, asked);
    // So may the side that has asked.
    RVT_OK(pair.a.agent().delay(asked, 3'000'000, pair.world.now_us));
    pair.world.pass_us(3'000'000);
    RVT_EQ(pair.count<CmRep>(), 1);
    RVT_OK(pair.a.establish(asked));
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kEstablished);
}

Test(cm_agent, lost_plea_for_time_is_repeated) {
    CmPeers pair;
    pair.lose<CmMra>(1);
    pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.agent().delay(got, 3'000'000, pair.world.now_us));
    pair.world.pass_us(3'000'000);
    RVT_EQ(pair.count<CmMra>(), 2);
    RVT_EQ(pair.count<CmReq>(), 2);
    pair.a.expect_silence();
}

Test(cm_agent, nobody_is_waited_for_longer_than_the_limit) {
    CmPeers pair;
    pair.connect();
    const auto req = pair.last<CmReq>();
    pair.deliver(pair.a, address_of(2),
                 CmMra{.remote_comm_id = req.local_comm_id, .service_timeout = 31});
    const std::uint64_t most_us = CmAgent::kMostDelayUs + 2 * kTimeoutUs;
    RVT_EQ(pair.a.agent().next_due_us().value() <= pair.world.now_us + most_us, true);
}
