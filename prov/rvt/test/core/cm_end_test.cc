// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Refusals, the end of connections, and peers that restart.
#include "core/cm_peers.h"

using namespace rvt;
using namespace rvt::core;
using namespace rvt::protocol;
using namespace rvt::test;

// ---- refusals ----

Test(cm_agent, refusal_brings_its_reason_and_data) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.reject(got, CmRejectReason::kResponderResources, bytes_of("too many")));
    pair.world.pass_us(1000);
    const CmEvent event = pair.a.next(CmEventType::kRejected);
    RVT_EQ(event.handle, asked);
    RVT_EQ(event.reason, CmRejectReason::kResponderResources);
    RVT_EQ(event.private_bytes, 148);
    RVT_ASSERT(text_of(event.private_data()) == "too many");
    pair.expect_all_forgotten();
    pair.b.expect_silence();
}

Test(cm_agent, refusal_that_is_lost_behind_a_delay_is_repeated) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.agent().delay(got, CmAgent::kMostDelayUs, pair.world.now_us));
    pair.world.pass_us(1000);
    pair.lose<CmRej>(1);
    RVT_OK(pair.b.reject(got, CmRejectReason::kConsumer, bytes_of("no")));
    pair.world.pass_us(1'000'000);
    const CmEvent event = pair.a.next(CmEventType::kRejected);
    RVT_EQ(event.handle, asked);
    RVT_ASSERT(text_of(event.private_data()) == "no");
    pair.b.expect_silence();
    pair.expect_all_forgotten();
}

Test(cm_agent, request_that_has_been_refused_is_refused_again) {
    CmPeers pair;
    pair.lose<CmRej>(1);
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.reject(pair.offered(), CmRejectReason::kConsumer, bytes_of("no")));
    pair.deliver(pair.b, address_of(1), pair.last<CmReq>());
    pair.b.expect_silence();
    const CmEvent event = pair.a.next(CmEventType::kRejected);
    RVT_EQ(event.handle, asked);
    RVT_EQ(event.reason, CmRejectReason::kConsumer);
    RVT_ASSERT(text_of(event.private_data()) == "no");
    pair.expect_all_forgotten();
}

Test(cm_agent, reply_can_be_refused) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.reject(asked));
    pair.world.pass_us(1000);
    const CmEvent event = pair.b.next(CmEventType::kRejected);
    RVT_EQ(event.handle, got);
    RVT_EQ(event.context, 22);
    RVT_EQ(event.reason, CmRejectReason::kConsumer);
    pair.expect_all_forgotten();
}

Test(cm_agent, what_cannot_be_connected_is_refused_with_the_reason) {
    CmPeers pair;
    pair.connect();
    const auto good = pair.last<CmReq>();
    RVT_OK(pair.b.reject(pair.offered()));
    std::uint32_t id = 500;
    const auto reason_for = [&](auto change) {
        CmReq req = good;
        req.local_comm_id = ++id;
        change(req);
        pair.deliver(pair.b, address_of(1), req);
        RVT_EQ(pair.last<CmRej>().remote_comm_id, id);
        RVT_EQ(pair.last<CmRej>().subject, CmSubject::kReq);
        pair.b.expect_silence();
        return pair.last<CmRej>().reason;
    };
    RVT_EQ(reason_for([](CmReq& r) { r.service_id += 1; }), CmRejectReason::kInvalidServiceId);
    RVT_EQ(reason_for([](CmReq& r) { r.transport = CmTransport::kRd; }),
           CmRejectReason::kInvalidTransport);
    RVT_EQ(reason_for([](CmReq& r) { r.transport = CmTransport::kExtended; }),
           CmRejectReason::kInvalidTransport);
    RVT_EQ(reason_for([](CmReq& r) { r.pkey = 0x8001; }), CmRejectReason::kUnsupportedRequest);
    RVT_EQ(reason_for([](CmReq& r) { r.private_data[0] = std::byte{1}; }),
           CmRejectReason::kUnsupportedRequest);
    RVT_EQ(reason_for([](CmReq& r) { r.primary.remote_gid[15] = 9; }), CmRejectReason::kPrimaryGid);
    const auto rej = pair.last<CmRej>();
    RVT_EQ(rej.info_bytes, 16);
    RVT_EQ(rej.info[15], 2);                   // the gid that it should have named
    RVT_EQ(pair.b.agent().record_count(), 1);  // the first one's, for a while
}

Test(cm_agent, request_in_the_name_of_another_address_is_dropped) {
    CmPeers pair;
    pair.connect();
    RVT_OK(pair.b.reject(pair.offered()));
    const auto before = pair.world.log.size();
    CmReq req = pair.last<CmReq>();
    ++req.local_comm_id;
    req.primary.local_gid = address_of(3).gid;
    pair.deliver(pair.b, address_of(1), req);
    pair.b.expect_silence();
    RVT_EQ(pair.world.log.size(), before);
    RVT_EQ(pair.b.agent().stats().malformed, 1);
}

Test(cm_agent, alternate_path_is_declined) {
    CmPeers pair;
    pair.connect();
    RVT_OK(pair.b.reject(pair.offered()));
    CmReq req = pair.last<CmReq>();
    ++req.local_comm_id;
    req.alternate = req.primary;
    pair.deliver(pair.b, address_of(1), req);
    RVT_OK(pair.b.accept(pair.b.next(CmEventType::kRequest).handle, CmPeers::answer()));
    RVT_EQ(pair.last<CmRep>().failover, CmFailover::kNotSupported);
}

Test(cm_agent, listener_for_all_takes_what_no_other_does) {
    CmPeers pair;
    RVT_OK(pair.b.agent().listen_any(88));
    RVT_EQ(pair.b.agent().listen_any(89), EADDRINUSE);
    RVT_EQ(pair.b.agent().listen(kCmService, 1), EADDRINUSE);
    CmConnect request = pair.request();
    RVT_OK(pair.a.connect(request));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kRequest).context, 77);
    request.service_id += 1;
    request.own.qpn += 1;
    RVT_OK(pair.a.connect(request));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kRequest).context, 88);
}

Test(cm_agent, nothing_is_offered_after_unlisten) {
    CmPeers pair;
    RVT_OK(pair.b.agent().unlisten(kCmService));
    RVT_EQ(pair.b.agent().unlisten(kCmService), ENOENT);
    RVT_EQ(pair.b.agent().unlisten_any(), ENOENT);
    RVT_OK(pair.b.agent().listen_any(1));
    RVT_OK(pair.b.agent().unlisten_any());
    pair.connect();
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kRejected).reason, CmRejectReason::kInvalidServiceId);
}

Test(cm_agent, request_that_is_withdrawn_is_over_at_both_ends) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.a.disconnect(asked));
    pair.world.pass_us(1000);
    const CmEvent event = pair.b.next(CmEventType::kRejected);
    RVT_EQ(event.handle, got);
    RVT_EQ(event.reason, CmRejectReason::kTimeout);
    // By the same bytes kernel ib_cm finds what is withdrawn.
    RVT_EQ(pair.last<CmRej>().info_bytes, 8);
    RVT_EQ(pair.last<CmRej>().info[0], 0x02);
    RVT_EQ(pair.last<CmRej>().info[7], 1);
    RVT_EQ(pair.b.accept(got, CmPeers::answer()), ENOENT);
    pair.a.expect_silence();
    pair.expect_all_forgotten();
}

Test(cm_agent, reply_to_a_withdrawn_request_is_refused) {
    CmPeers pair;
    pair.lose<CmRej>(1);
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.a.disconnect(asked));
    pair.world.pass_us(1000);
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kRejected).reason, CmRejectReason::kInvalidCommId);
    pair.expect_all_forgotten();
}

Test(cm_agent, reply_of_somebody_else_is_refused) {
    CmPeers pair;
    pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    CmRep rep = pair.last<CmRep>();
    rep.local_comm_id += 1;
    pair.deliver(pair.a, address_of(2), rep);
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kInvalidCommInstance);
    pair.a.expect_silence();
}

Test(cm_agent, id_used_for_another_request_is_refused) {
    CmPeers pair;
    pair.connected();
    CmReq req = pair.last<CmReq>();
    req.qpn += 1;
    pair.deliver(pair.b, address_of(1), req);
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kDuplicateCommId);
    pair.b.expect_silence();
    pair.a.expect_silence();
}

Test(cm_agent, events_of_what_the_user_has_ended_are_not_shown) {
    CmPeers pair;
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(1000);
    RVT_OK(pair.a.disconnect(asked));
    pair.a.expect_silence();  // the reply had been queued
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kRejected);
}

// ---- the end of connections ----

Test(cm_agent, disconnect_is_seen_at_both_ends) {
    CmPeers pair;
    const auto handles = pair.connected();
    RVT_OK(pair.a.disconnect(handles.a, bytes_of("bye")));
    RVT_EQ(pair.a.disconnect(handles.a), EALREADY);
    pair.world.pass_us(1000);
    const CmEvent at_b = pair.b.next(CmEventType::kDisconnected);
    RVT_EQ(at_b.handle, handles.b);
    RVT_EQ(at_b.end, CmEnd::kPeer);
    RVT_EQ(at_b.private_bytes, 220);
    RVT_ASSERT(text_of(at_b.private_data()) == "bye");
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kOwn);
    RVT_EQ(pair.last<CmDreq>().remote_qpn, 0x200);
    RVT_EQ(pair.a.agent().open_count(), 0);
    RVT_EQ(pair.a.agent().record_count(), 1);  // in time wait
    pair.expect_all_forgotten();
}

Test(cm_agent, passive_side_may_disconnect) {
    CmPeers pair;
    const auto handles = pair.connected();
    RVT_OK(pair.b.disconnect(handles.b));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kPeer);
    RVT_EQ(pair.b.next(CmEventType::kDisconnected).end, CmEnd::kOwn);
}

Test(cm_agent, disconnects_that_cross_end_once_at_each_side) {
    CmPeers pair;
    const auto handles = pair.connected();
    RVT_OK(pair.a.disconnect(handles.a));
    RVT_OK(pair.b.disconnect(handles.b));
    pair.world.settle();
    for (CmNode* node : {&pair.a, &pair.b}) {
        node->next(CmEventType::kDisconnected);
        node->expect_silence();
    }
    pair.expect_all_forgotten();
}

Test(cm_agent, lost_disconnect_messages_are_repeated) {
    CmPeers pair;
    const auto handles = pair.connected();
    pair.world.is_lost = [dreqs = 1, dreps = 2](const CmPacket& packet) mutable {
        return (packet.is<CmDreq>() && dreqs-- > 0) || (packet.is<CmDrep>() && dreps-- > 0);
    };
    RVT_OK(pair.a.disconnect(handles.a));
    pair.world.pass_us(1'000'000);
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kOwn);
    pair.b.next(CmEventType::kDisconnected);
    pair.b.expect_silence();
}

Test(cm_agent, disconnect_that_nobody_answers_ends_in_time) {
    CmPeers pair;
    const auto handles = pair.connected();
    pair.lose<CmDreq>();
    RVT_OK(pair.a.disconnect(handles.a));
    pair.world.settle();
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kNoAnswer);
    RVT_EQ(pair.count<CmDreq>(), 6);
    RVT_EQ(pair.a.agent().record_count(), 0);
}

Test(cm_agent, disconnect_of_what_the_peer_has_forgotten_is_answered) {
    CmPeers pair;
    const auto handles = pair.connected();
    pair.b.restart(2);
    RVT_OK(pair.a.disconnect(handles.a));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kOwn);
}

Test(cm_agent, disconnect_for_another_pair_changes_nothing) {
    CmPeers pair;
    const auto handles = pair.connected();
    pair.lose<CmDreq>();
    RVT_OK(pair.a.disconnect(handles.a));
    CmDreq dreq = pair.last<CmDreq>();
    dreq.remote_qpn += 1;
    pair.deliver(pair.b, address_of(1), dreq);
    pair.b.expect_silence();
    RVT_EQ(pair.count<CmDrep>(), 0);
}

Test(cm_agent, what_is_accepted_can_be_taken_back) {
    CmPeers pair;
    pair.lose<CmRtu>();
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    RVT_OK(pair.b.disconnect(got));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).handle, asked);
    RVT_EQ(pair.b.next(CmEventType::kDisconnected).handle, got);
    pair.expect_all_forgotten();
}

Test(cm_agent, taking_back_ends_a_request_that_has_not_seen_the_reply) {
    CmPeers pair;
    pair.lose<CmRep>();
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    RVT_OK(pair.b.disconnect(got, bytes_of("sorry")));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kDisconnected).end, CmEnd::kOwn);
    const CmEvent event = pair.a.next(CmEventType::kRejected);
    RVT_EQ(event.handle, asked);
    RVT_EQ(event.reason, CmRejectReason::kConsumer);
    RVT_ASSERT(text_of(event.private_data()) == "sorry");
    // Should the reply come all the same, it is too late.
    pair.world.is_lost = nullptr;
    pair.deliver(pair.a, address_of(2), pair.last<CmRep>());
    pair.a.expect_silence();
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kInvalidCommId);
    pair.expect_all_forgotten();
}

Test(cm_agent, disconnect_stands_for_a_lost_rtu) {
    CmPeers pair;
    pair.lose<CmRtu>();
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    RVT_OK(pair.a.disconnect(asked));
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kEstablished);
    pair.b.next(CmEventType::kDisconnected);
}

Test(cm_agent, peer_that_is_ready_too_late_is_told) {
    CmPeers pair;
    pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    const auto rep = pair.last<CmRep>();
    pair.lose<CmDreq>();
    RVT_OK(pair.b.disconnect(got));
    pair.deliver(pair.b, address_of(1),
                 CmDrep{.local_comm_id = rep.remote_comm_id, .remote_comm_id = rep.local_comm_id});
    pair.deliver(pair.b, address_of(1),
                 CmRtu{.local_comm_id = rep.remote_comm_id, .remote_comm_id = rep.local_comm_id});
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kInvalidCommId);
    RVT_EQ(pair.last<CmRej>().remote_comm_id, rep.remote_comm_id);
    RVT_EQ(pair.last<CmRej>().local_comm_id, rep.local_comm_id);
}

Test(cm_agent, peer_that_is_ready_for_nobody_is_told) {
    CmPeers pair;
    pair.lose<CmRtu>();
    const CmHandle asked = pair.connect();
    RVT_OK(pair.b.accept(pair.offered(), CmPeers::answer()));
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    pair.b.restart(2);
    pair.deliver(pair.b, address_of(1), pair.last<CmRtu>());
    RVT_EQ(pair.a.next(CmEventType::kDisconnected).end, CmEnd::kPeer);
}

Test(cm_agent, late_request_of_an_ended_connection_is_no_new_one) {
    CmPeers pair;
    const auto handles = pair.connected();
    const auto req = pair.last<CmReq>();
    RVT_OK(pair.a.disconnect(handles.a));
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kDisconnected);
    pair.deliver(pair.b, address_of(1), req);
    pair.b.expect_silence();
    RVT_EQ(pair.b.agent().open_count(), 0);
    // Who still waits for an answer gets one.
    RVT_EQ(pair.last<CmRej>().reason, CmRejectReason::kStaleConnection);
    RVT_EQ(pair.last<CmRej>().subject, CmSubject::kReq);
}

Test(cm_agent, pair_may_be_connected_again_at_once) {
    CmPeers pair;
    for (int i = 0; i < 3; ++i) {
        const auto handles = pair.connected();
        RVT_OK(pair.a.disconnect(handles.a));
        pair.world.pass_us(1000);
        pair.a.next(CmEventType::kDisconnected);
        pair.b.next(CmEventType::kDisconnected);
    }
}

Test(cm_agent, handle_of_what_has_ended_is_harmless) {
    CmPeers pair;
    const auto old = pair.connected();
    RVT_OK(pair.a.disconnect(old.a));
    pair.expect_all_forgotten();
    pair.a.next(CmEventType::kDisconnected);
    pair.b.next(CmEventType::kDisconnected);
    const auto present = pair.connected();  // in the same place of the table
    for (const CmHandle handle : {old.a, old.b, CmHandle::kNone, static_cast<CmHandle>(~0ull)}) {
        RVT_EQ(pair.b.accept(handle, CmPeers::answer()), ENOENT);
        RVT_EQ(pair.b.establish(handle), ENOENT);
        RVT_EQ(pair.b.reject(handle), ENOENT);
        RVT_EQ(pair.b.disconnect(handle), ENOENT);
        RVT_EQ(pair.b.agent().delay(handle, 1, 1), ENOENT);
        RVT_EQ(pair.b.agent().note_traffic(handle, 1), ENOENT);
        RVT_EQ(pair.b.agent().answer_sidr(handle, {}, 1), ENOENT);
    }
    RVT_OK(pair.b.disconnect(present.b));
}

// ---- peers that restart ----

Test(cm_agent, restarted_peer_ends_its_old_connection) {
    CmPeers pair;
    const auto old = pair.connected();
    pair.a.restart(2);
    pair.connect(0x100);  // the same pair number, as a new process may well get
    pair.world.pass_us(1000);
    const CmEvent ended = pair.b.next(CmEventType::kDisconnected);
    RVT_EQ(ended.handle, old.b);
    RVT_EQ(ended.end, CmEnd::kRestarted);
    RVT_EQ(pair.a.next(CmEventType::kRejected).reason, CmRejectReason::kStaleConnection);
    RVT_EQ(pair.count<CmDreq>(), 1);
    RVT_EQ(pair.count<CmDrep>(), 1);
    RVT_EQ(pair.b.agent().stats().stale, 1);
    pair.connected(0x100);  // asking again succeeds
}

Test(cm_agent, restarted_peer_with_another_pair_leaves_the_old_connection) {
    CmPeers pair;
    pair.connected(0x100);
    pair.a.restart(2);
    pair.connected(0x101, 0x201);
    pair.b.expect_silence();
    RVT_EQ(pair.b.agent().open_count(), 2);
}

Test(cm_agent, reply_of_a_restarted_peer_ends_its_old_connection) {
    CmPeers pair;
    const auto old = pair.connected(0x100, 0x200);
    pair.b.restart(2);
    RVT_OK(pair.b.agent().listen(kCmService, 77));
    const CmHandle asked = pair.connect(0x101);
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer(0x200)));
    pair.world.pass_us(1000);
    const CmEvent ended = pair.a.next(CmEventType::kDisconnected);
    RVT_EQ(ended.handle, old.a);
    RVT_EQ(ended.end, CmEnd::kRestarted);
    const CmEvent refused = pair.a.next(CmEventType::kRejected);
    RVT_EQ(refused.handle, asked);
    RVT_EQ(refused.reason, CmRejectReason::kStaleConnection);
    RVT_EQ(pair.b.next(CmEventType::kRejected).handle, got);
}

Test(cm_agent, another_peer_with_the_same_pair_number_is_another_peer) {
    CmPeers pair;
    CmNode& c = pair.world.add(3);
    pair.connected(0x100);
    CmConnect request = pair.request(0x100);
    RVT_OK(c.connect(request));
    pair.offered();
    pair.b.expect_silence();
}

Test(cm_agent, new_attempt_with_the_same_pair_replaces_an_unanswered_one) {
    CmPeers pair;
    pair.lose<CmRej>();
    RVT_OK(pair.a.disconnect(pair.connect()));
    const CmHandle first = pair.offered();
    const CmHandle asked = pair.connect();
    pair.world.pass_us(1000);
    const CmEvent replaced = pair.b.next(CmEventType::kRejected);
    RVT_EQ(replaced.handle, first);
    RVT_EQ(replaced.reason, CmRejectReason::kStaleConnection);
    RVT_OK(pair.b.accept(pair.b.next(CmEventType::kRequest).handle, CmPeers::answer()));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kReply).handle, asked);
}

// ---- attempts that come late ----

namespace {

/// What a wire has kept for long: the request of an attempt that was given up for a second one with
/// the same pair. Nothing else of the first has arrived.
MadBytes late_request(CmPeers& pair) {
    pair.world.is_lost = [](const CmPacket&) { return true; };
    RVT_OK(pair.a.disconnect(pair.connect()));
    pair.world.is_lost = nullptr;
    return pair.world.log.front().mad;
}

}  // namespace

Test(cm_agent, request_of_an_earlier_attempt_leaves_the_connection) {
    CmPeers pair;
    const MadBytes late = late_request(pair);
    const auto present = pair.connected();
    pair.b.take(pair.a.address(), late);
    pair.world.pass_us(1000);
    pair.a.expect_silence();
    pair.b.expect_silence();
    RVT_EQ(pair.b.agent().stats().duplicates, 1);
    RVT_OK(pair.a.disconnect(present.a));
    pair.world.pass_us(1000);
    pair.b.next(CmEventType::kDisconnected);
}

Test(cm_agent, request_of_an_earlier_attempt_leaves_the_answer_to_the_present_one) {
    CmPeers pair;
    const MadBytes late = late_request(pair);
    const CmHandle asked = pair.connect();
    const CmHandle got = pair.offered();
    RVT_OK(pair.b.accept(got, CmPeers::answer()));
    pair.b.take(pair.a.address(), late);
    pair.world.pass_us(1000);
    pair.a.next(CmEventType::kReply);
    RVT_OK(pair.a.establish(asked));
    pair.world.pass_us(1000);
    RVT_EQ(pair.b.next(CmEventType::kEstablished).handle, got);
    pair.a.expect_silence();
}

Test(cm_agent, attempt_behind_one_that_has_been_answered_in_vain_is_taken) {
    CmPeers pair;
    pair.lose<CmRej>();
    const CmHandle given_up = pair.connect();
    const CmHandle first = pair.offered();
    RVT_OK(pair.a.disconnect(given_up));
    RVT_OK(pair.b.accept(first, CmPeers::answer()));
    pair.world.is_lost = nullptr;
    const CmHandle asked = pair.connect();
    pair.world.pass_us(4 * kTimeoutUs);
    RVT_EQ(pair.b.next(CmEventType::kRejected).handle, first);
    RVT_OK(pair.b.accept(pair.b.next(CmEventType::kRequest).handle, CmPeers::answer()));
    pair.world.pass_us(1000);
    RVT_EQ(pair.a.next(CmEventType::kReply).handle, asked);
}
