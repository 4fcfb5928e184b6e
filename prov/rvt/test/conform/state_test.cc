// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: the state machine of queue pairs and what each state permits.
#include "conform/fixture.h"
#include "core/atomic_ops.h"

#include <initializer_list>

using namespace rvt;
using namespace rvt::conform;

namespace {

template <class Backend>
void a_new_pair_is_in_reset() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.a().qp->state(), QpState::kReset);
}
RVT_CONFORM_RC(a_new_pair_is_in_reset)
RVT_CONFORM_NIC(a_new_pair_is_in_reset)

template <class Backend>
void each_type_goes_from_reset_to_rts_with_the_attributes_it_needs() {
    for (QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_EQ(pair.a().qp->state(), QpState::kRts);
    }
}
RVT_CONFORM(each_type_goes_from_reset_to_rts_with_the_attributes_it_needs)
RVT_CONFORM_NIC(each_type_goes_from_reset_to_rts_with_the_attributes_it_needs)

template <class Backend>
void query_gives_back_what_modify_set() {
    Pair<Backend> pair({.rd_atomic = 3, .rnr_retry = 5});
    const QpAttr attr = pair.a().qp->query();
    RVT_EQ(attr.state, QpState::kRts);
    RVT_EQ(attr.max_rd_atomic, 3);
    RVT_EQ(attr.rnr_retry, 5);
    RVT_EQ(attr.dest_qpn, pair.b().qp->qpn());
}
RVT_CONFORM_RC(query_gives_back_what_modify_set)
RVT_CONFORM_NIC(query_gives_back_what_modify_set)

template <class Backend>
void a_state_cannot_be_skipped() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.go(kA, QpState::kRtr), EINVAL);
    RVT_EQ(pair.go(kA, QpState::kRts), EINVAL);
    RVT_OK(pair.go(kA, QpState::kInit));
    RVT_EQ(pair.go(kA, QpState::kRts), EINVAL);
    RVT_EQ(pair.a().qp->state(), QpState::kInit);
}
RVT_CONFORM_RC(a_state_cannot_be_skipped)
RVT_CONFORM_NIC(a_state_cannot_be_skipped)

template <class Backend>
void a_missing_attribute_is_refused_and_changes_nothing() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.a().qp->modify({.state = QpState::kInit}, QpMask::kState | QpMask::kPort), EINVAL);
    RVT_EQ(pair.a().qp->state(), QpState::kReset);
}
RVT_CONFORM_RC(a_missing_attribute_is_refused_and_changes_nothing)
RVT_CONFORM_NIC(a_missing_attribute_is_refused_and_changes_nothing)

template <class Backend>
void an_attribute_that_the_transition_does_not_take_is_refused() {
    Pair<Backend> pair({.connect = false});
    const QpMask mask = mask_for(QpState::kInit, QpType::kRc);
    RVT_EQ(pair.a().qp->modify({.state = QpState::kInit}, mask | QpMask::kQkey), EINVAL);
    RVT_EQ(pair.a().qp->modify({.state = QpState::kInit}, mask | QpMask::kAltPath), EINVAL);
}
RVT_CONFORM_RC(an_attribute_that_the_transition_does_not_take_is_refused)
RVT_CONFORM_NIC(an_attribute_that_the_transition_does_not_take_is_refused)

template <class Backend>
void a_value_beyond_the_devices_limits_is_refused() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.a().qp->modify({.state = QpState::kInit, .port = 2},
                               mask_for(QpState::kInit, QpType::kRc)),
           EINVAL);
}
RVT_CONFORM_RC(a_value_beyond_the_devices_limits_is_refused)
RVT_CONFORM_NIC(a_value_beyond_the_devices_limits_is_refused)

template <class Backend>
void the_wrong_current_state_is_refused() {
    Pair<Backend> pair;
    RVT_EQ(pair.a().qp->modify({.state = QpState::kRts, .cur_state = QpState::kSqd},
                               QpMask::kState | QpMask::kCurState),
           EINVAL);
}
RVT_CONFORM_RC(the_wrong_current_state_is_refused)
RVT_CONFORM_NIC(the_wrong_current_state_is_refused)

/// By the shortest way through the states that carry traffic.
template <class Backend>
void bring_a_to(Pair<Backend>& pair, QpState wanted) {
    for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts, wanted}) {
        if (pair.a().qp->state() != wanted) {
            RVT_OK(pair.go(kA, state));
        }
    }
}

template <class Backend>
void expect_ways_to_error_and_to_reset(std::initializer_list<QpState> from) {
    for (const QpState state : from) {
        for (const QpState to : {QpState::kErr, QpState::kReset}) {
            Pair<Backend> pair({.connect = false});
            bring_a_to(pair, state);
            RVT_OK(pair.go(kA, to));
            RVT_EQ(pair.a().qp->state(), to);
        }
    }
}

template <class Backend>
void every_state_can_go_to_error_and_to_reset() {
    expect_ways_to_error_and_to_reset<Backend>(
        {QpState::kInit, QpState::kRtr, QpState::kRts, QpState::kErr});
}
RVT_CONFORM_RC(every_state_can_go_to_error_and_to_reset)
RVT_CONFORM_NIC(every_state_can_go_to_error_and_to_reset)

/// Kernels send no NIC from RESET to ERR, and some NICs have no SQD.
template <class Backend>
void so_can_those_that_nics_need_not_have() {
    expect_ways_to_error_and_to_reset<Backend>({QpState::kReset, QpState::kSqd});
}
RVT_CONFORM_RC(so_can_those_that_nics_need_not_have)

template <class Backend>
void a_new_pair_in_error_flushes_what_is_posted() {
    Pair<Backend> pair({.connect = false});
    RVT_OK(pair.go(kA, QpState::kErr));
    RVT_OK(pair.a().post_recv(1));
    RVT_EQ(pair.next(pair.a().recv_cq).status, WcStatus::kWrFlushErr);
    RVT_OK(pair.post_send({.wr_id = 2}));
    RVT_EQ(pair.sent().status, WcStatus::kWrFlushErr);
}
RVT_CONFORM_RC(a_new_pair_in_error_flushes_what_is_posted)

template <class Backend>
void so_can_a_pair_whose_send_side_has_stopped() {
    for (const QpState to : {QpState::kErr, QpState::kReset}) {
        Pair<Backend> pair({.type = QpType::kUc});
        RVT_OK(pair.post_send({.lkey = 0x123}));
        RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
        RVT_EQ(pair.a().qp->state(), QpState::kSqe);
        RVT_OK(pair.go(kA, to));
        RVT_EQ(pair.a().qp->state(), to);
    }
}
RVT_CONFORM(so_can_a_pair_whose_send_side_has_stopped)

template <class Backend>
void a_pair_can_be_connected_again_after_reset() {
    Pair<Backend> pair;
    for (int i : {kA, kB}) {
        RVT_OK(pair.go(i, QpState::kErr));
        RVT_OK(pair.go(i, QpState::kReset));
    }
    for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
        RVT_OK(pair.go(kA, state));
        RVT_OK(pair.go(kB, state));
    }
    RVT_OK(pair.b().post_recv(7));
    RVT_OK(pair.post_send());
    RVT_EQ(pair.received().wr_id, 7);
}
RVT_CONFORM_RC(a_pair_can_be_connected_again_after_reset)
RVT_CONFORM_NIC(a_pair_can_be_connected_again_after_reset)

template <class Backend>
void a_pair_of_type_rd_takes_no_work_requests() {
    Pair<Backend> pair({.connect = false});
    Side& a = pair.a();
    Qp* rd =
        create_qp(*a.pd, {.type = QpType::kRd, .send_cq = a.send_cq, .recv_cq = a.recv_cq}).value();
    RVT_EQ(rd->post_send({}), EOPNOTSUPP);
    RVT_EQ(rd->post_recv({}), EOPNOTSUPP);
    RVT_OK(destroy_qp(rd));
}
RVT_CONFORM_RC(a_pair_of_type_rd_takes_no_work_requests)

template <class Backend>
void sends_are_refused_before_rts() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.post_send(), EINVAL);
    RVT_OK(pair.go(kA, QpState::kInit));
    RVT_EQ(pair.post_send(), EINVAL);
    RVT_OK(pair.go(kA, QpState::kRtr));
    RVT_EQ(pair.post_send(), EINVAL);
}
RVT_CONFORM_RC(sends_are_refused_before_rts)
RVT_CONFORM_NIC(sends_are_refused_before_rts)

template <class Backend>
void receives_are_refused_in_reset_and_taken_from_init_on() {
    Pair<Backend> pair({.connect = false});
    RVT_EQ(pair.b().post_recv(1), EINVAL);
    RVT_OK(pair.go(kB, QpState::kInit));
    RVT_OK(pair.b().post_recv(1));
}
RVT_CONFORM_RC(receives_are_refused_in_reset_and_taken_from_init_on)
RVT_CONFORM_NIC(receives_are_refused_in_reset_and_taken_from_init_on)

template <class Backend>
void a_pair_in_rtr_receives_and_raises_communication_established() {
    Pair<Backend> pair({.connect = false});
    for (QpState state : {QpState::kInit, QpState::kRtr}) {
        RVT_OK(pair.go(kA, state));
        RVT_OK(pair.go(kB, state));
    }
    RVT_OK(pair.go(kA, QpState::kRts));
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send());
    RVT_EQ(pair.received().status, WcStatus::kSuccess);
    RVT_EQ(pair.event(kB), EventType::kCommEst);
}
RVT_CONFORM_RC(a_pair_in_rtr_receives_and_raises_communication_established)

template <class Backend>
void sqd_starts_no_work_and_says_when_it_is_drained() {
    Pair<Backend> pair;
    RVT_OK(pair.a().qp->modify({.state = QpState::kSqd, .sqd_notify = true},
                               QpMask::kState | QpMask::kSqdNotify));
    RVT_EQ(pair.event(kA), EventType::kSqDrained);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send());
    RVT_ASSERT(pair.is_silent(pair.a().send_cq));
    RVT_OK(pair.a().qp->modify({.state = QpState::kRts}, QpMask::kState));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(sqd_starts_no_work_and_says_when_it_is_drained)

template <class Backend>
void sqd_is_drained_when_what_had_to_be_sent_again_has_completed() {
    Pair<Backend> pair;
    const Stats& stats = pair.b().device->stats();
    RVT_OK(pair.post_send({.wr_id = 1}));
    while (stats.sum(Stat::kRnrNaks) == 0) {
        pair.pass_us(1);
    }
    RVT_OK(pair.a().qp->modify({.state = QpState::kSqd, .sqd_notify = true},
                               QpMask::kState | QpMask::kSqdNotify));
    RVT_OK(pair.post_send({.wr_id = 2}));
    pair.pass_us(1000);
    RVT_ASSERT(pair.has_no_event(kA));
    RVT_OK(pair.b().post_recv(5));
    RVT_OK(pair.b().post_recv(6));
    RVT_EQ(pair.sent().wr_id, 1);
    RVT_EQ(pair.received().wr_id, 5);
    RVT_EQ(pair.event(kA), EventType::kSqDrained);
    RVT_ASSERT(pair.is_silent(pair.a().send_cq));
    RVT_OK(pair.a().qp->modify({.state = QpState::kRts}, QpMask::kState));
    RVT_EQ(pair.sent().wr_id, 2);
}
RVT_CONFORM_RC(sqd_is_drained_when_what_had_to_be_sent_again_has_completed)

template <class Backend>
void sqd_without_a_wish_for_the_event_raises_none() {
    Pair<Backend> pair;
    RVT_OK(pair.go(kA, QpState::kSqd));
    RVT_ASSERT(pair.has_no_event(kA));
}
RVT_CONFORM_RC(sqd_without_a_wish_for_the_event_raises_none)

template <class Backend>
void sqd_changes_how_long_an_answer_is_awaited() {
    Pair<Backend> pair({.timeout = 0});  // for ever
    RVT_OK(pair.go(kA, QpState::kSqd));
    RVT_OK(pair.a().qp->modify({.timeout = 8}, QpMask::kTimeout));
    RVT_OK(pair.a().qp->modify({.state = QpState::kRts}, QpMask::kState));
    RVT_OK(pair.go(kB, QpState::kErr));
    RVT_OK(pair.post_send());
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
}
RVT_CONFORM_RC(sqd_changes_how_long_an_answer_is_awaited)

template <class Backend>
void sqd_changes_how_many_requests_are_answered() {
    Pair<Backend> pair({.dest_rd_atomic = 0, .extended_atomics = true});
    RVT_OK(pair.go(kB, QpState::kSqd));
    RVT_OK(pair.b().qp->modify({.max_dest_rd_atomic = 4}, QpMask::kMaxDestRdAtomic));
    RVT_OK(pair.b().qp->modify({.state = QpState::kRts}, QpMask::kState));
    pair.b().set_word(0, 40);
    const ExtendedAtomic add{.form = AtomicForm::kFetch,
                             .datatype = static_cast<std::uint8_t>(AtomicType::kUint64),
                             .op = static_cast<std::uint8_t>(AtomicOp::kSum)};
    for (std::uint64_t i = 0; i < 6; ++i) {
        pair.a().set_word(64, 1);
        RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .bytes = 8}));
        RVT_OK(pair.post_send(
            {.opcode = WrOpcode::kExtendedAtomic, .offset = 64, .bytes = 16, .atomic = add}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_EQ(pair.a().word(72), 40 + i);
    }
}
RVT_CONFORM_RC(sqd_changes_how_many_requests_are_answered)

template <class Backend>
void reset_forgets_posted_work_and_unread_completions() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(pair.post_send());
    pair.sent();
    RVT_OK(pair.go(kB, QpState::kReset));
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
}
RVT_CONFORM_RC(reset_forgets_posted_work_and_unread_completions)

template <class Backend>
void a_pair_destroyed_leaves_no_completions() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send());
    pair.sent();
    RVT_OK(destroy_qp(pair.b().qp));
    pair.b().qp = nullptr;
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
}
RVT_CONFORM_RC(a_pair_destroyed_leaves_no_completions)

}  // namespace
