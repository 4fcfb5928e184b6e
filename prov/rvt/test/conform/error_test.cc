// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: what goes wrong, the status that each side sees, and the flush that follows.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

template <class Backend>
void fails_with(const Options& options, const Op& op, WcStatus status) {
    Pair<Backend> pair(options);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send(op));
    RVT_EQ(pair.sent().status, status);
    pair.await_state(kA, QpState::kErr);
}

template <class Backend>
void a_local_key_that_is_not_live_is_a_protection_error() {
    fails_with<Backend>({}, {.lkey = 0x123}, WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(a_local_key_that_is_not_live_is_a_protection_error)

template <class Backend>
void the_key_for_all_memory_is_for_domains_that_may_use_it() {
    std::array<std::byte, 8> unregistered{};
    const Sge all{.addr = reinterpret_cast<std::uintptr_t>(unregistered.data()),
                  .length = unregistered.size(),
                  .lkey = kLocalDmaLkey};
    Pair<Backend> pair;
    pair.a().pd->allow_local_dma();
    pair.b().pd->allow_local_dma();
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.a().qp->post_send({.flags = SendFlags::kSignaled, .sg_list = {&all, 1}}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    // Peers have nothing of it.
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .rkey = kLocalDmaLkey}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);

    Pair<Backend> ordinary;
    RVT_OK(ordinary.a().qp->post_send({.sg_list = {&all, 1}}));
    RVT_EQ(ordinary.sent().status, WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(the_key_for_all_memory_is_for_domains_that_may_use_it)

template <class Backend>
void a_local_range_outside_its_region_is_a_protection_error() {
    Pair<Backend> pair;
    const Sge outside = pair.a().sge(kMemoryBytes - 10, 20);
    RVT_OK(pair.a().qp->post_send({.sg_list = {&outside, 1}}));
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(a_local_range_outside_its_region_is_a_protection_error)
RVT_CONFORM_NIC(a_local_range_outside_its_region_is_a_protection_error)

template <class Backend>
void a_read_into_memory_without_local_write_is_a_protection_error() {
    fails_with<Backend>({.memory_access = Access::kRemoteRead}, {.opcode = WrOpcode::kRead},
                        WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(a_read_into_memory_without_local_write_is_a_protection_error)

template <class Backend>
void a_remote_key_that_is_not_live_is_a_remote_access_error() {
    for (WrOpcode opcode : {WrOpcode::kWrite, WrOpcode::kRead, WrOpcode::kWriteImm}) {
        fails_with<Backend>({}, {.opcode = opcode, .rkey = 0x777}, WcStatus::kRemAccessErr);
    }
}
RVT_CONFORM_RC(a_remote_key_that_is_not_live_is_a_remote_access_error)

template <class Backend>
void a_remote_range_outside_its_region_is_a_remote_access_error() {
    fails_with<Backend>({}, {.opcode = WrOpcode::kWrite, .remote_offset = kMemoryBytes - 63},
                        WcStatus::kRemAccessErr);
}
RVT_CONFORM_RC(a_remote_range_outside_its_region_is_a_remote_access_error)

template <class Backend>
void a_remote_access_that_the_region_does_not_allow_is_a_remote_access_error() {
    fails_with<Backend>({.memory_access = Access::kLocalWrite | Access::kRemoteRead},
                        {.opcode = WrOpcode::kWrite}, WcStatus::kRemAccessErr);
}
RVT_CONFORM_RC(a_remote_access_that_the_region_does_not_allow_is_a_remote_access_error)

template <class Backend>
void a_key_of_another_domain_is_a_remote_access_error() {
    Pair<Backend> pair;
    Pd* other = alloc_pd(*pair.b().context).value();
    const iovec memory{.iov_base = pair.b().memory.data(), .iov_len = kMemoryBytes};
    Mr* mr = reg_mr(*other, {.segments = {&memory, 1}, .access = kAllAccess}).value();
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    RVT_OK(dereg_mr(mr));
    RVT_OK(dealloc_pd(other));
}
RVT_CONFORM_RC(a_key_of_another_domain_is_a_remote_access_error)
RVT_CONFORM_NIC(a_key_of_another_domain_is_a_remote_access_error)

template <class Backend>
void a_refused_access_takes_the_responder_to_error_with_an_event() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(4));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .rkey = 0x777}));
    pair.sent();
    RVT_EQ(pair.event(kB), EventType::kQpAccessErr);
    RVT_EQ(pair.b().qp->state(), QpState::kErr);
    RVT_EQ(pair.received().status, WcStatus::kWrFlushErr);
}
RVT_CONFORM_RC(a_refused_access_takes_the_responder_to_error_with_an_event)

template <class Backend>
void a_write_of_no_bytes_does_not_look_at_the_key() {
    Pair<Backend> pair;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 0, .rkey = 0x777}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(a_write_of_no_bytes_does_not_look_at_the_key)
RVT_CONFORM_NIC(a_write_of_no_bytes_does_not_look_at_the_key)

template <class Backend>
void a_kind_of_access_that_the_pair_does_not_take_is_an_invalid_request() {
    Pair<Backend> pair({.qp_access = Access::kRemoteRead});
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite}));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
    RVT_EQ(pair.event(kB), EventType::kQpReqErr);
}
RVT_CONFORM_RC(a_kind_of_access_that_the_pair_does_not_take_is_an_invalid_request)

template <class Backend>
void a_read_that_the_responder_has_no_resources_for_is_an_invalid_request() {
    fails_with<Backend>({.dest_rd_atomic = 0}, {.opcode = WrOpcode::kRead},
                        WcStatus::kRemInvReqErr);
}
RVT_CONFORM_RC(a_read_that_the_responder_has_no_resources_for_is_an_invalid_request)

template <class Backend>
void an_atomic_on_a_misaligned_address_is_an_invalid_request() {
    fails_with<Backend>({}, {.opcode = WrOpcode::kFetchAdd, .bytes = 8, .remote_offset = 4},
                        WcStatus::kRemInvReqErr);
}
RVT_CONFORM_RC(an_atomic_on_a_misaligned_address_is_an_invalid_request)

template <class Backend>
void a_message_longer_than_the_receive_fails_both_sides() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(6, 0, 63));
    RVT_OK(pair.post_send({.bytes = 64}));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
    const Wc received = pair.received();
    RVT_EQ(received.wr_id, 6);
    RVT_EQ(received.status, WcStatus::kLocLenErr);
    pair.await_state(kB, QpState::kErr);
}
RVT_CONFORM_RC(a_message_longer_than_the_receive_fails_both_sides)

template <class Backend>
void a_receive_whose_memory_is_gone_fails_both_sides() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(6));
    RVT_OK(dereg_mr(pair.b().mr));
    pair.b().mr = nullptr;
    const Sge element = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.sg_list = {&element, 1}}));
    RVT_EQ(pair.sent().status, WcStatus::kRemOpErr);
    RVT_EQ(pair.received().status, WcStatus::kLocProtErr);
    pair.await_state(kB, QpState::kErr);
}
RVT_CONFORM_RC(a_receive_whose_memory_is_gone_fails_both_sides)

template <class Backend>
void an_unreliable_message_that_is_too_long_is_dropped_and_the_receive_stays() {
    for (QpType type : {QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_OK(pair.b().post_recv(6, 0, 100));
        RVT_OK(pair.post_send({.bytes = 101}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_OK(pair.post_send({.bytes = 50}));
        RVT_EQ(pair.received().wr_id, 6);
        RVT_EQ(pair.b().qp->state(), QpState::kRts);
    }
}
RVT_CONFORM(an_unreliable_message_that_is_too_long_is_dropped_and_the_receive_stays)
RVT_CONFORM_NIC(an_unreliable_message_that_is_too_long_is_dropped_and_the_receive_stays)

template <class Backend>
void an_unreliable_write_that_is_not_allowed_changes_nothing() {
    Pair<Backend> pair({.type = QpType::kUc});
    pair.b().fill(0, 64, 1);
    pair.a().fill(0, 64, 2);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .rkey = 0x777}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_ASSERT(pair.b().holds(0, 64, 1));
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}
RVT_CONFORM(an_unreliable_write_that_is_not_allowed_changes_nothing)

template <class Backend>
void a_local_error_of_an_unreliable_pair_stops_only_its_send_side() {
    Pair<Backend> pair({.type = QpType::kUc});
    RVT_OK(pair.a().post_recv(1));
    RVT_OK(pair.post_send({.lkey = 0x123}));
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
    RVT_EQ(pair.a().qp->state(), QpState::kSqe);
    RVT_OK(pair.post_send_from_b());
    RVT_EQ(pair.next(pair.a().recv_cq).wr_id, 1);
    RVT_OK(pair.a().qp->modify({.state = QpState::kRts}, QpMask::kState));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(pair.post_send({.wr_id = 8}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM(a_local_error_of_an_unreliable_pair_stops_only_its_send_side)

template <class Backend>
void a_send_to_a_pair_that_was_destroyed_exceeds_its_retries() {
    Pair<Backend> pair;
    RVT_OK(destroy_qp(pair.b().qp));
    const Sge element = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.sg_list = {&element, 1}}));
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
    pair.b().qp = nullptr;
}
RVT_CONFORM_RC(a_send_to_a_pair_that_was_destroyed_exceeds_its_retries)

template <class Backend>
void a_send_to_a_pair_in_error_exceeds_its_retries() {
    Pair<Backend> pair;
    RVT_OK(pair.go(kB, QpState::kErr));
    RVT_OK(pair.post_send());
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
}
RVT_CONFORM_RC(a_send_to_a_pair_in_error_exceeds_its_retries)

template <class Backend>
void a_message_longer_than_the_device_carries_is_a_local_length_error() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.post_send({.bytes = 5000}));
    RVT_EQ(pair.sent().status, WcStatus::kLocLenErr);
}
RVT_CONFORM(a_message_longer_than_the_device_carries_is_a_local_length_error)

template <class Backend>
void error_flushes_sends_and_receives_in_their_order() {
    Pair<Backend> pair;
    for (std::uint64_t i = 0; i < 5; ++i) {
        RVT_OK(pair.a().post_recv(100 + i));
        RVT_OK(pair.post_send({.wr_id = i}));  // nobody receives: they wait
    }
    RVT_OK(pair.go(kA, QpState::kErr));
    for (std::uint64_t i = 0; i < 5; ++i) {
        const Wc send = pair.sent();
        RVT_EQ(send.wr_id, i);
        RVT_EQ(send.status, WcStatus::kWrFlushErr);
        const Wc recv = pair.next(pair.a().recv_cq);
        RVT_EQ(recv.wr_id, 100 + i);
        RVT_EQ(recv.status, WcStatus::kWrFlushErr);
    }
}
RVT_CONFORM_RC(error_flushes_sends_and_receives_in_their_order)
RVT_CONFORM_NIC(error_flushes_sends_and_receives_in_their_order)

template <class Backend>
void flushed_work_completes_also_where_it_was_not_signaled() {
    Pair<Backend> pair({.signal_all = false});
    RVT_OK(pair.post_send({.wr_id = 3}));
    RVT_OK(pair.go(kA, QpState::kErr));
    RVT_EQ(pair.sent().wr_id, 3);
}
RVT_CONFORM_RC(flushed_work_completes_also_where_it_was_not_signaled)
RVT_CONFORM_NIC(flushed_work_completes_also_where_it_was_not_signaled)

template <class Backend>
void work_posted_in_error_is_flushed_at_once() {
    Pair<Backend> pair;
    RVT_OK(pair.go(kA, QpState::kErr));
    RVT_OK(pair.post_send({.wr_id = 11}));
    RVT_OK(pair.a().post_recv(12));
    RVT_EQ(pair.sent().status, WcStatus::kWrFlushErr);
    RVT_EQ(pair.next(pair.a().recv_cq).status, WcStatus::kWrFlushErr);
}
RVT_CONFORM_RC(work_posted_in_error_is_flushed_at_once)

template <class Backend>
void the_failed_request_completes_before_those_that_it_flushes() {
    Pair<Backend> pair({.rnr_retry = 1});
    for (std::uint64_t i = 0; i < 4; ++i) {
        RVT_OK(pair.post_send({.wr_id = i}));
    }
    for (int i = 0; i < 4; ++i) {
        pair.pass_us(1000);
    }
    RVT_EQ(pair.sent().status, WcStatus::kRnrRetryExcErr);
    for (std::uint64_t i = 1; i < 4; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.wr_id, i);
        RVT_EQ(wc.status, WcStatus::kWrFlushErr);
    }
}
RVT_CONFORM_RC(the_failed_request_completes_before_those_that_it_flushes)
RVT_CONFORM_NIC(the_failed_request_completes_before_those_that_it_flushes)

template <class Backend>
void a_full_completion_queue_refuses_raises_an_event_and_fails_the_pair() {
    Pair<Backend> pair({.cq_depth = 4});
    for (std::uint64_t i = 0; i < 6; ++i) {
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .wr_id = i}));
        pair.pass_us(1);
    }
    RVT_EQ(pair.event(kA), EventType::kCqErr);
    RVT_EQ(pair.event(kA), EventType::kQpFatal);
    RVT_ASSERT(pair.a().send_cq->is_overrun());
    pair.await_state(kA, QpState::kErr);
    RVT_EQ(pair.sent().wr_id, 0);
}
RVT_CONFORM_RC(a_full_completion_queue_refuses_raises_an_event_and_fails_the_pair)

}  // namespace
