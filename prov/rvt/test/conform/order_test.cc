// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: order of messages and completions, receivers that are not ready, fences.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

template <class Backend>
void messages_arrive_in_the_order_of_their_posting() {
    for (QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        for (std::uint64_t i = 0; i < 40; ++i) {
            RVT_OK(pair.b().post_recv(i));
        }
        for (std::uint32_t i = 0; i < 40; ++i) {
            RVT_OK(pair.post_send({.opcode = WrOpcode::kSendImm, .wr_id = i, .imm = i}));
        }
        for (std::uint32_t i = 0; i < 40; ++i) {
            const Wc received = pair.received();
            RVT_EQ(received.imm, i);
            RVT_EQ(received.wr_id, i);
        }
    }
}
RVT_CONFORM(messages_arrive_in_the_order_of_their_posting)
RVT_CONFORM_NIC(messages_arrive_in_the_order_of_their_posting)

template <class Backend>
void work_of_all_kinds_completes_in_the_order_of_its_posting() {
    Pair<Backend> pair;
    constexpr WrOpcode kKinds[] = {WrOpcode::kRead,  WrOpcode::kSend,     WrOpcode::kFetchAdd,
                                   WrOpcode::kWrite, WrOpcode::kWriteImm, WrOpcode::kCas};
    for (std::uint64_t i = 0; i < 48; ++i) {
        RVT_OK(pair.b().post_recv(i));
    }
    for (std::uint64_t i = 0; i < 48; ++i) {
        const WrOpcode kind = kKinds[i % 6];
        const bool atomic = kind == WrOpcode::kFetchAdd || kind == WrOpcode::kCas;
        RVT_OK(pair.post_send({.opcode = kind, .wr_id = i, .bytes = atomic ? 8u : 700u}));
    }
    for (std::uint64_t i = 0; i < 48; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.wr_id, i);
        RVT_EQ(wc.status, WcStatus::kSuccess);
    }
}
RVT_CONFORM_RC(work_of_all_kinds_completes_in_the_order_of_its_posting)
RVT_CONFORM_NIC(work_of_all_kinds_completes_in_the_order_of_its_posting)

template <class Backend>
void a_read_after_a_write_sees_it() {
    Pair<Backend> pair;
    pair.a().fill(0, 3000, 7);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 3000, .remote_offset = 100}));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead,
                           .offset = 8192,
                           .bytes = 3000,
                           .remote_offset = 100,
                           .flags = SendFlags::kFence}));
    pair.sent();
    pair.sent();
    RVT_ASSERT(pair.a().holds(8192, 3000, 7));
}
RVT_CONFORM_RC(a_read_after_a_write_sees_it)
RVT_CONFORM_NIC(a_read_after_a_write_sees_it)

template <class Backend>
void a_fenced_send_carries_what_the_read_before_it_brought() {
    Pair<Backend> pair;
    pair.b().fill(0, 6000, 8);
    RVT_OK(pair.b().post_recv(1, 16384, 6000));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .bytes = 6000}));
    RVT_OK(pair.post_send({.bytes = 6000, .flags = SendFlags::kFence}));
    RVT_EQ(pair.received().byte_len, 6000);
    RVT_ASSERT(pair.b().holds(16384, 6000, 8));
}
RVT_CONFORM_RC(a_fenced_send_carries_what_the_read_before_it_brought)
RVT_CONFORM_NIC(a_fenced_send_carries_what_the_read_before_it_brought)

template <class Backend>
void both_directions_move_at_the_same_time() {
    Pair<Backend> pair;
    for (std::uint64_t i = 0; i < 30; ++i) {
        RVT_OK(pair.a().post_recv(i, 65536, 5000));
        RVT_OK(pair.b().post_recv(i, 65536, 5000));
        RVT_OK(pair.post_send({.wr_id = i, .bytes = 5000}));
        RVT_OK(pair.post_send_from_b({.wr_id = i, .bytes = 5000}));
    }
    for (std::uint64_t i = 0; i < 30; ++i) {
        RVT_EQ(pair.next(pair.a().recv_cq).wr_id, i);
        RVT_EQ(pair.next(pair.b().recv_cq).wr_id, i);
        RVT_EQ(pair.next(pair.a().send_cq).wr_id, i);
        RVT_EQ(pair.next(pair.b().send_cq).wr_id, i);
    }
}
RVT_CONFORM_RC_SEEDS(both_directions_move_at_the_same_time, 50)
RVT_CONFORM_NIC(both_directions_move_at_the_same_time)

template <class Backend>
void a_send_waits_for_its_receive_without_limit_at_seven_retries() {
    Pair<Backend> pair({.rnr_retry = kRnrRetryForEver});
    RVT_OK(pair.post_send());
    for (int i = 0; i < 50; ++i) {
        pair.pass_us(1000);
    }
    RVT_ASSERT(pair.is_silent(pair.a().send_cq));
    RVT_OK(pair.b().post_recv(3));
    pair.pass_us(1000);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.received().wr_id, 3);
}
RVT_CONFORM_RC(a_send_waits_for_its_receive_without_limit_at_seven_retries)
RVT_CONFORM_NIC(a_send_waits_for_its_receive_without_limit_at_seven_retries)

template <class Backend>
void a_send_without_retries_left_fails_and_takes_its_pair_to_error() {
    Pair<Backend> pair({.rnr_retry = 2});
    RVT_OK(pair.post_send());
    for (int i = 0; i < 4; ++i) {
        pair.pass_us(1000);
    }
    RVT_EQ(pair.sent().status, WcStatus::kRnrRetryExcErr);
    RVT_EQ(pair.a().qp->state(), QpState::kErr);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}
RVT_CONFORM_RC(a_send_without_retries_left_fails_and_takes_its_pair_to_error)

template <class Backend>
void each_message_has_retries_of_its_own() {
    Pair<Backend> pair({.rnr_retry = 1});
    const Stats& stats = pair.b().device->stats();
    for (std::uint64_t i = 0; i < 4; ++i) {
        RVT_OK(pair.post_send({.wr_id = i}));
    }
    for (std::uint64_t i = 0; i < 4; ++i) {
        while (stats.sum(Stat::kRnrNaks) <= i && pair.a().qp->state() == QpState::kRts) {
            pair.pass_us(1);
        }
        RVT_OK(pair.b().post_recv(i));
        RVT_EQ(pair.received().wr_id, i);
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    }
    RVT_EQ(stats.sum(Stat::kRnrNaks), 4);
}
RVT_CONFORM(each_message_has_retries_of_its_own)

template <class Backend>
void a_receiver_that_is_not_ready_delays_what_follows_and_keeps_the_order() {
    Pair<Backend> pair;
    for (std::uint32_t i = 0; i < 10; ++i) {
        RVT_OK(pair.post_send({.opcode = WrOpcode::kSendImm, .wr_id = i, .imm = i}));
    }
    for (std::uint32_t i = 0; i < 10; ++i) {
        pair.pass_us(1000);
        RVT_OK(pair.b().post_recv(i));
        pair.pass_us(1000);
        RVT_EQ(pair.received().imm, i);
        RVT_EQ(pair.sent().wr_id, i);
    }
}
RVT_CONFORM_RC(a_receiver_that_is_not_ready_delays_what_follows_and_keeps_the_order)
RVT_CONFORM_NIC(a_receiver_that_is_not_ready_delays_what_follows_and_keeps_the_order)

template <class Backend>
void a_write_needs_no_receive() {
    Pair<Backend> pair({.rnr_retry = 0});
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(a_write_needs_no_receive)
RVT_CONFORM_NIC(a_write_needs_no_receive)

template <class Backend>
void a_write_with_immediate_waits_for_a_receive() {
    Pair<Backend> pair({.rnr_retry = 0});
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWriteImm}));
    RVT_EQ(pair.sent().status, WcStatus::kRnrRetryExcErr);
}
RVT_CONFORM_RC(a_write_with_immediate_waits_for_a_receive)
RVT_CONFORM_NIC(a_write_with_immediate_waits_for_a_receive)

template <class Backend>
void an_unreliable_send_without_a_receive_is_lost_and_completes() {
    for (QpType type : {QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_OK(pair.post_send({.wr_id = 1}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
        RVT_OK(pair.b().post_recv(5));
        RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
        RVT_EQ(pair.b().device->stats().sum(Stat::kDrops), 1);
    }
}
RVT_CONFORM(an_unreliable_send_without_a_receive_is_lost_and_completes)

template <class Backend>
void local_work_behind_a_send_that_is_put_off_is_done_once() {
    Pair<Backend> pair;
    const iovec memory{.iov_base = pair.a().memory.data(), .iov_len = 64};
    Mr* mr = reg_mr(*pair.a().pd, {.segments = {&memory, 1}}).value();
    RVT_OK(pair.post_send({.wr_id = 1}));  // no receive
    RVT_OK(pair.a().qp->post_send({.wr_id = 2, .opcode = WrOpcode::kLocalInv, .rkey = mr->rkey()}));
    RVT_OK(pair.post_send({.wr_id = 3}));
    pair.pass_us(1000);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    for (std::uint64_t i = 1; i <= 3; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.wr_id, i);
        RVT_EQ(wc.status, WcStatus::kSuccess);
    }
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(local_work_behind_a_send_that_is_put_off_is_done_once)

template <class Backend>
void nothing_behind_a_failed_request_is_carried_out() {
    Pair<Backend> pair;
    pair.b().fill(4096, 64, 9);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .wr_id = 1}));
    RVT_OK(pair.post_send({.wr_id = 2, .lkey = 0x123}));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .wr_id = 3, .remote_offset = 4096}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
    RVT_EQ(pair.sent().status, WcStatus::kWrFlushErr);
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_ASSERT(pair.b().holds(4096, 64, 9));
}
RVT_CONFORM_RC(nothing_behind_a_failed_request_is_carried_out)

}  // namespace
