// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Calls of libibverbs that fail one by one: what the objects of the core make of it. Those of
// opening a NIC are in nic_test.cc.
#include <array>
#include <cstdint>
#include <vector>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/opened_nic.h"
#include "core/addresses.h"
#include "core/ah.h"
#include "core/mr.h"
#include "core/srq.h"

using namespace rvt;
using namespace rvt::verbs;

namespace {

constexpr auto kToInit = QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess;
constexpr auto kToRtr = QpMask::kState | QpMask::kAv | QpMask::kPathMtu | QpMask::kDestQpn |
                        QpMask::kRqPsn | QpMask::kMaxDestRdAtomic | QpMask::kMinRnrTimer;
constexpr auto kToRts = QpMask::kState | QpMask::kTimeout | QpMask::kRetryCnt | QpMask::kRnrRetry |
                        QpMask::kSqPsn | QpMask::kMaxRdAtomic;

Address peer() {
    return core::to_address({.family = AF_INET, .port = 4791, .ip = {10, 1, 2, 9}});
}

/// A pair on the mock.
struct MockPair : Opened {
    explicit MockPair(MockNic& mock, core::QpInit init = {}) : Opened(mock) {
        init.send_cq = cq.get();
        init.recv_cq = cq.get();
        init.cap.max_inline_bytes = 0;
        RVT_OK(core::keep(qp, core::create_qp(*pd, init)));
    }
    core::Owned<core::Qp> qp;
};

}  // namespace

Test(nic_failures, a_pair_that_cannot_be_moved_stays_in_its_state) {
    const struct {
        const char* call;
        QpAttr attr;
        QpMask mask;
    } steps[] = {
        {"modify_qp to INIT", {.state = QpState::kInit}, kToInit},
        {"modify_qp to RTR", {.state = QpState::kRtr, .ah = {.dest = peer()}}, kToRtr},
        {"modify_qp to RTS", {.state = QpState::kRts}, kToRts},
        {"modify_qp to ERR", {.state = QpState::kErr}, QpMask::kState},
    };
    MockNic mock;
    MockPair pair(mock);
    QpState state = QpState::kReset;
    for (const auto& [call, attr, mask] : steps) {
        mock.failing = call;
        RVT_EQ(pair.qp->modify(attr, mask), EMFILE);
        RVT_EQ(pair.qp->state(), state);
        mock.failing = {};
        RVT_OK(pair.qp->modify(attr, mask));
        state = attr.state;
        RVT_EQ(pair.qp->state(), state);
    }
}

Test(nic_failures, what_cannot_be_posted_is_its_error_and_takes_no_room) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        mock.takes_receives = true;
        MockPair pair(mock, {.cap = {.max_send_wr = 2, .max_recv_wr = 2}});
        const Sge part{.addr = 0x1000, .length = 8, .lkey = 6};
        for (int i = 0; i < 10; ++i) {
            mock.failing = "post_send";
            RVT_EQ(pair.qp->post_send({.sg_list = {&part, 1}}), EMFILE);
            RVT_EQ(pair.qp->post_send({.opcode = WrOpcode::kSendImm, .sg_list = {&part, 1}}),
                   EMFILE);
            mock.failing = "post_recv";
            RVT_EQ(pair.qp->post_recv({.sg_list = {&part, 1}}), EMFILE);
        }
        mock.failing = {};
        RVT_OK(pair.qp->post_send({.sg_list = {&part, 1}}));
        RVT_OK(pair.qp->post_recv({.sg_list = {&part, 1}}));
        RVT_EQ(mock.sends.size(), 1);
        RVT_EQ(mock.receives.size(), 1);
    }
}

Test(nic_failures, shared_receives_that_cannot_be_posted_are_their_error) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Srq> receives;
    RVT_OK(core::keep(receives, core::create_srq(*opened.pd, {.max_wr = 32, .max_sge = 1})));
    const Sge room{.addr = 0x1000, .length = 8, .lkey = 2};
    const std::vector<RecvWr> wrs(20, RecvWr{.sg_list = {&room, 1}});  // two calls
    mock.failing = "post_srq_recv";
    RVT_EQ(receives->post_recvs(wrs), EMFILE);
    RVT_EQ(mock.receives_left(), 0);
    mock.failing = {};
    RVT_OK(receives->post_recvs(wrs));
    RVT_EQ(mock.receives_left(), wrs.size());
}

Test(nic_failures, shared_receives_that_are_posted_in_part_are_there_as_far_as_they_went) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Srq> receives;
    RVT_OK(core::keep(receives, core::create_srq(*opened.pd, {.max_wr = 32, .max_sge = 1})));
    const Sge room{.addr = 0x1000, .length = 8, .lkey = 2};
    const std::vector<RecvWr> wrs(20, RecvWr{.sg_list = {&room, 1}});
    mock.failing = "post_srq_recv";
    mock.taken_before_failure = 5;
    RVT_EQ(receives->post_recvs(wrs), EMFILE);
    RVT_EQ(mock.receives_left(), 5);  // and those of the second call are not tried
    mock.failing = {};
    RVT_OK(receives->post_recvs(wrs));
    RVT_EQ(mock.receives_left(), 5 + wrs.size());
}

namespace {

/// What has failed is told once, and what is still asked of it finds nothing.
void expect_failed(const Opened& opened) {
    core::Wc taken[2];
    RVT_EQ(opened.cq->poll(taken), 0);
    const auto told = opened.context->events().poll();
    RVT_ASSERT(told.has_value());
    RVT_EQ(told->type, EventType::kCqErr);
    RVT_ASSERT(told->object == opened.cq.get());
    RVT_ASSERT(!opened.context->events().poll().has_value());
}

}  // namespace

Test(nic_failures, a_queue_that_gives_no_completions_has_failed) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        const Opened opened(mock);
        core::Wc taken[2];
        RVT_EQ(opened.cq->poll(taken), 0);
        RVT_ASSERT(!opened.context->events().poll().has_value());
        mock.failing = "poll_cq";
        RVT_EQ(opened.cq->poll(taken), 0);
        expect_failed(opened);
    }
}

Test(nic_failures, a_queue_that_gives_no_further_completion_has_failed_behind_what_it_gave) {
    MockNic mock;
    const Opened opened(mock);
    mock.completions.resize(2);
    mock.failing = "next_poll";
    core::Wc taken[2];
    RVT_EQ(opened.cq->poll(taken), 1);
    mock.completions.clear();
    expect_failed(opened);
}

Test(nic_failures, a_queue_that_the_nic_gives_up_has_failed_once) {
    MockNic mock;
    const MockPair pair(mock);
    mock.fail_queue();
    mock.fail_queue();
    pair.nic->take_events();
    expect_failed(pair);
}

Test(nic_failures, a_queue_that_cannot_be_armed_is_its_error) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::CompChannel> channel;
    core::Owned<core::VerbsCq> queue;
    RVT_OK(core::keep(channel, core::create_comp_channel(*opened.context)));
    RVT_OK(core::keep(queue, core::create_cq(*opened.context, 16, channel.get())));
    mock.failing = "req_notify_cq";
    RVT_EQ(queue->req_notify(false), EMFILE);
    mock.failing = {};
    RVT_OK(queue->req_notify(false));
}

Test(nic_failures, advice_that_it_does_not_take_is_its_error) {
    MockNic mock;
    mock.on_demand = {
        .general_caps = IBV_ODP_SUPPORT,
        .per_transport_caps = {.rc_odp_caps = 0x3f, .uc_odp_caps = 0, .ud_odp_caps = 0}};
    const Opened opened(mock);
    std::array<std::byte, 100> bytes{};
    const iovec segment{bytes.data(), bytes.size()};
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, core::reg_mr(*opened.pd, {.segments = {&segment, 1}})));
    mock.failing = "advise_mr";
    mock.error = EBUSY;
    RVT_EQ(core::advise_mr(*mr, MrAdvice::kPrefetch, 0, 100), EBUSY);
    mock.failing = {};
    RVT_OK(core::advise_mr(*mr, MrAdvice::kPrefetch, 0, 100));
}

Test(nic_failures, one_that_does_not_say_what_it_has_on_demand_has_nothing) {
    MockNic mock;
    mock.on_demand = {
        .general_caps = IBV_ODP_SUPPORT,
        .per_transport_caps = {.rc_odp_caps = 0x3f, .uc_odp_caps = 0, .ud_odp_caps = 0}};
    mock.failing = "query_device_ex";
    const Opened opened(mock);
    RVT_EQ(opened.nic->limits().has_on_demand, false);
}

Test(nic_failures, one_whose_gids_cannot_be_read_has_no_rocev2) {
    MockNic mock;
    ibv_gid_entry own{};
    const Address address = core::to_address(mock_address().address);
    std::copy(address.gid.begin(), address.gid.end(), own.gid.raw);
    own.gid_type = IBV_GID_TYPE_ROCE_V2;
    mock.gids = {own};
    {
        const Opened opened(mock);
        RVT_EQ(opened.nic->limits().has_rocev2, true);
    }
    mock.failing = "query_gid";
    const Opened opened(mock);
    RVT_EQ(opened.nic->limits().has_rocev2, false);
}

Test(nic_failures, each_object_that_it_does_not_make_is_its_error_and_leaves_nothing) {
    MockNic mock;
    const Opened opened(mock);
    const int before = mock.live;
    mock.failing = "create_ah";
    RVT_EQ(core::create_ah(*opened.pd, {.dest = peer()}).status(), EMFILE);
    mock.failing = "create_qp";
    RVT_EQ(core::create_qp(*opened.pd, opened.pair()).status(), EMFILE);
    mock.failing = "create_srq";
    RVT_EQ(core::create_srq(*opened.pd, {.max_wr = 4, .max_sge = 1}).status(), EMFILE);
    mock.failing = "create_cq";
    RVT_EQ(core::create_cq(*opened.context, 16).status(), EMFILE);
    mock.failing = "alloc_pd";
    RVT_EQ(core::alloc_pd(*opened.context).status(), EMFILE);
    RVT_EQ(mock.live, before);
    mock.failing = {};
    core::Owned<core::Ah> ah;
    RVT_OK(core::keep(ah, core::create_ah(*opened.pd, {.dest = peer()})));
}

Test(nic_failures, a_group_that_a_pair_cannot_join_is_its_error) {
    MockNic mock;
    mock.attr.max_mcast_qp_attach = 4;
    MockPair pair(mock, {.type = QpType::kUd});
    const Address group = core::to_address({.family = AF_INET, .port = 4791, .ip = {239, 1, 1, 1}});
    mock.failing = "attach_mcast";
    RVT_EQ(pair.qp->attach_mcast(group), EMFILE);
    RVT_EQ(pair.qp->detach_mcast(group), EINVAL);
    RVT_EQ(mock.groups, 0);
    mock.failing = {};
    RVT_OK(pair.qp->attach_mcast(group));
    RVT_EQ(mock.groups, 1);
    RVT_OK(pair.qp->detach_mcast(group));
    RVT_EQ(mock.groups, 0);
}
