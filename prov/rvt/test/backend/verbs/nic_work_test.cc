// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is posted to NICs of families that are not at hand, and how it completes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include <arpa/inet.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/opened_nic.h"
#include "common/check.h"
#include "core/addresses.h"
#include "core/ah.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "util/params.h"

using namespace rvt;
using namespace rvt::verbs;

Test(nic, a_request_reaches_it_whole) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    const Sge part{.addr = 0x1000, .length = 8, .lkey = 6};
    RVT_OK(qp->post_send({.wr_id = 5,
                          .opcode = WrOpcode::kCas,
                          .flags = SendFlags::kSignaled | SendFlags::kFence,
                          .sg_list = {&part, 1},
                          .remote_addr = 0x2000,
                          .rkey = 7,
                          .compare_add = 1,
                          .swap = 2}));
    const ibv_send_wr& sent = mock.sends[0];
    RVT_EQ(sent.wr_id, 5);
    RVT_EQ(sent.opcode, IBV_WR_ATOMIC_CMP_AND_SWP);
    RVT_EQ(sent.send_flags, unsigned{IBV_SEND_SIGNALED} | unsigned{IBV_SEND_FENCE});
    RVT_EQ(sent.wr.atomic.remote_addr, 0x2000);
    RVT_EQ(sent.wr.atomic.rkey, 7);
    RVT_EQ(sent.wr.atomic.compare_add, 1);
    RVT_EQ(sent.wr.atomic.swap, 2);
}

namespace {

constexpr std::uint32_t kRxe = 0xffffff;  // as it names its vendor

/// A SEND, a WRITE and a READ of one buffer, and what the NIC was asked for.
void post_frequent_ones(MockNic& mock) {
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    const Sge part{.addr = 0x1000, .length = 8, .lkey = 6};
    RVT_OK(qp->post_send({.wr_id = 1,
                          .flags = SendFlags::kSignaled | SendFlags::kSolicited,
                          .sg_list = {&part, 1}}));
    RVT_OK(qp->post_send({.wr_id = 2,
                          .opcode = WrOpcode::kWrite,
                          .flags = SendFlags::kInline,
                          .sg_list = {&part, 1},
                          .remote_addr = 0x2000,
                          .rkey = 7}));
    RVT_OK(qp->post_send({.wr_id = 3,
                          .opcode = WrOpcode::kRead,
                          .flags = SendFlags::kFence,
                          .sg_list = {&part, 1},
                          .remote_addr = 0x3000,
                          .rkey = 8}));
    const ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    const unsigned flags[] = {unsigned{IBV_SEND_SIGNALED} | unsigned{IBV_SEND_SOLICITED},
                              IBV_SEND_INLINE, IBV_SEND_FENCE};
    RVT_EQ(mock.sends.size(), 3u);
    for (unsigned i = 0; i < 3; ++i) {
        const ibv_send_wr& sent = mock.sends[i];
        RVT_EQ(sent.wr_id, i + 1);
        RVT_EQ(sent.opcode, opcodes[i]);
        RVT_EQ(sent.send_flags, flags[i]);
        RVT_EQ(sent.num_sge, 1);
        RVT_EQ(mock.lists[i][0].addr, 0x1000u);
        RVT_EQ(mock.lists[i][0].length, 8u);
    }
    RVT_EQ(mock.lists[0][0].lkey, 6u);
    RVT_EQ(mock.sends[1].wr.rdma.remote_addr, 0x2000u);
    RVT_EQ(mock.sends[1].wr.rdma.rkey, 7u);
    RVT_EQ(mock.sends[2].wr.rdma.remote_addr, 0x3000u);
    RVT_EQ(mock.sends[2].wr.rdma.rkey, 8u);
}

}  // namespace

Test(nic, a_frequent_request_is_built_in_the_pairs_queue) {
    MockNic mock;
    post_frequent_ones(mock);
    RVT_EQ(mock.built, 3u);
}

Test(nic, without_extended_verbs_it_gets_the_same_requests_as_lists) {
    MockNic mock;
    mock.extends = false;
    post_frequent_ones(mock);
    RVT_EQ(mock.built, 0u);
    RVT_EQ(mock.extended_queues, 0u);
}

Test(nic, extended_verbs_are_not_used_where_that_is_set) {
    util::set_param_number(util::ParamId::kVerbsExtended, 0);
    MockNic mock;
    post_frequent_ones(mock);
    RVT_EQ(mock.built, 0u);
    RVT_EQ(mock.extended_queues, 0u);
}

Test(nic, a_driver_that_reads_behind_the_last_completion_is_not_asked_for_the_next) {
    MockNic mock;
    mock.attr.vendor_id = kRxe;
    post_frequent_ones(mock);
    RVT_EQ(mock.built, 3u);
    RVT_EQ(mock.extended_queues, 0u);
}

Test(nic, a_full_queue_is_enomem_whatever_its_driver_calls_it) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        mock.most_sends = 1;
        const Opened opened(mock);
        core::Owned<core::Qp> qp;
        RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
        const Sge part{.addr = 0x1000, .length = 8, .lkey = 6};
        RVT_OK(qp->post_send({.sg_list = {&part, 1}}));
        RVT_EQ(qp->post_send({.sg_list = {&part, 1}}), ENOMEM);
        RVT_EQ(qp->post_send({.opcode = WrOpcode::kRead, .sg_list = {&part, 1}}), ENOMEM);
        RVT_EQ(mock.sends.size(), 1u);
    }
}

/// libsiw, libcxgb4, liberdma and libqedr return errors with a minus before them.
Test(nic, what_a_driver_refuses_is_an_errno_whatever_its_sign) {
    for (const int error : {EINVAL, ENOMEM}) {
        for (const bool extends : {true, false}) {
            MockNic mock;
            mock.extends = extends;
            mock.takes_receives = true;
            const Opened opened(mock);
            core::Owned<core::Qp> qp;
            RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
            core::Owned<core::Srq> receives;
            RVT_OK(
                core::keep(receives, core::create_srq(*opened.pd, {.max_wr = 32, .max_sge = 1})));
            const Sge part{.addr = 0x1000, .length = 8, .lkey = 6};
            mock.error = -error;
            mock.failing = "post_send";
            RVT_EQ(qp->post_send({.sg_list = {&part, 1}}), error);
            RVT_EQ(qp->post_send({.opcode = WrOpcode::kSendImm, .sg_list = {&part, 1}}), error);
            mock.failing = "post_recv";
            RVT_EQ(qp->post_recv({.sg_list = {&part, 1}}), error);
            mock.failing = "post_srq_recv";
            RVT_EQ(receives->post_recv({.sg_list = {&part, 1}}), error);
            mock.failing = "modify_qp to ERR";
            RVT_EQ(qp->modify({.state = QpState::kErr}, QpMask::kState), error);
        }
    }
}

Test(nic, more_inline_data_than_the_pair_takes_never_gets_to_the_driver) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        const Opened opened(mock);
        core::QpInit init = opened.pair();
        init.cap.max_inline_bytes = 64;
        core::Owned<core::Qp> qp;
        RVT_OK(core::keep(qp, core::create_qp(*opened.pd, init)));
        const std::array<std::byte, 65> data{};
        const auto address = reinterpret_cast<std::uintptr_t>(data.data());
        const std::array parts{Sge{.addr = address, .length = 64},
                               Sge{.addr = address, .length = 1}};
        const Sge whole{.addr = address, .length = 65};
        for (const auto opcode : {WrOpcode::kSend, WrOpcode::kWrite}) {
            RVT_EQ(qp->post_send(
                       {.opcode = opcode, .flags = SendFlags::kInline, .sg_list = {&whole, 1}}),
                   EINVAL);
            RVT_EQ(qp->post_send({.opcode = opcode, .flags = SendFlags::kInline, .sg_list = parts}),
                   EINVAL);
        }
        RVT_ASSERT(mock.sends.empty());
        RVT_OK(qp->post_send({.flags = SendFlags::kInline, .sg_list = {parts.data(), 1}}));
    }
}

namespace {

constexpr std::uint32_t kImm = 0x01020304;
const std::array kParts{Sge{.addr = 0x1000, .length = 8, .lkey = 6},
                        Sge{.addr = 0x2000, .length = 4, .lkey = 5}};

/// What there is to build over a connection, and what the driver is to get.
struct Known {
    WrOpcode opcode;
    ibv_wr_opcode raw;
    std::uint64_t operation;
    bool has_list;
};
constexpr Known kKnown[] = {
    {WrOpcode::kSend, IBV_WR_SEND, IBV_QP_EX_WITH_SEND, true},
    {WrOpcode::kSendImm, IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM, true},
    {WrOpcode::kSendInv, IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV, true},
    {WrOpcode::kWrite, IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, true},
    {WrOpcode::kWriteImm, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, true},
    {WrOpcode::kRead, IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ, true},
    {WrOpcode::kCas, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, false},
    {WrOpcode::kFetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, false},
};
constexpr unsigned kLists = 6;  // of them

SendWr request_of(WrOpcode opcode, std::span<const Sge> list) {
    return {.wr_id = static_cast<std::uint64_t>(opcode) + 100,
            .opcode = opcode,
            .flags = SendFlags::kSignaled | SendFlags::kFence,
            .imm = kImm,
            .sg_list = list,
            .remote_addr = 0x3000,
            .rkey = 7,
            .compare_add = 11,
            .swap = 12};
}

void arrived_whole(const Known& known, const ibv_send_wr& sent) {
    RVT_EQ(sent.wr_id, static_cast<std::uint64_t>(known.opcode) + 100);
    RVT_EQ(sent.opcode, known.raw);
    RVT_EQ(sent.send_flags, unsigned{IBV_SEND_SIGNALED} | unsigned{IBV_SEND_FENCE});
    switch (known.raw) {
        case IBV_WR_SEND: return;
        case IBV_WR_SEND_WITH_IMM: RVT_EQ(sent.imm_data, htonl(kImm)); return;
        case IBV_WR_SEND_WITH_INV: RVT_EQ(sent.invalidate_rkey, kImm); return;
        case IBV_WR_ATOMIC_CMP_AND_SWP: RVT_EQ(sent.wr.atomic.swap, 12u); [[fallthrough]];
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            RVT_EQ(sent.wr.atomic.compare_add, 11u);
            RVT_EQ(sent.wr.atomic.remote_addr, 0x3000u);
            RVT_EQ(sent.wr.atomic.rkey, 7u);
            return;
        case IBV_WR_RDMA_WRITE_WITH_IMM: RVT_EQ(sent.imm_data, htonl(kImm)); [[fallthrough]];
        default: RVT_EQ(sent.wr.rdma.remote_addr, 0x3000u); RVT_EQ(sent.wr.rdma.rkey, 7u);
    }
}

bool is_same(const ibv_sge& a, const Sge& b) {
    return a.addr == b.addr && a.length == b.length && a.lkey == b.lkey;
}

/// With one buffer, with two and with none, as the opcode may have.
void each_arrives_whole(MockNic& mock) {
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    core::QpInit init = opened.pair();
    init.cap.max_send_sge = 2;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, init)));
    for (const Known& known : kKnown) {
        for (const std::size_t count : {1, 2, 0}) {
            if (count != 1 && !known.has_list) {
                continue;
            }
            const std::span list(kParts.data(), count);
            RVT_OK(qp->post_send(request_of(known.opcode, list)));
            arrived_whole(known, mock.sends.back());
            RVT_ASSERT(std::ranges::equal(mock.lists.back(), list, is_same));
        }
    }
    RVT_EQ(mock.sends.size(), std::size(kKnown) + 2 * kLists);
}

}  // namespace

Test(nic, each_request_is_built_with_its_operands) {
    MockNic mock;
    each_arrives_whole(mock);
    RVT_EQ(mock.built, std::size(kKnown) + 2 * kLists);
}

Test(nic, without_extended_verbs_each_request_arrives_whole) {
    MockNic mock;
    mock.extends = false;
    each_arrives_whole(mock);
    RVT_EQ(mock.built, 0u);
}

Test(nic, what_a_driver_has_no_call_for_goes_to_the_same_pairs_as_a_list) {
    for (const bool refuses : {true, false}) {
        for (const Known& lacking : kKnown) {
            MockNic mock;
            mock.refuses_operations = refuses;
            mock.rc_operations &= ~lacking.operation;
            each_arrives_whole(mock);
            const unsigned missing = lacking.has_list ? 3 : 1;
            RVT_EQ(mock.built, std::size(kKnown) + 2 * kLists - missing);
        }
    }
}

Test(nic, a_driver_with_calls_for_no_request_gets_lists) {
    for (const bool refuses : {true, false}) {
        MockNic mock;
        mock.refuses_operations = refuses;
        mock.rc_operations = 0;
        each_arrives_whole(mock);
        RVT_EQ(mock.built, 0u);
    }
}

/// rxe of rdma-core until 2026 gives them another length.
Test(nic, a_driver_that_builds_lists_wrong_builds_requests_of_one_buffer) {
    MockNic mock;
    mock.attr.vendor_id = kRxe;
    each_arrives_whole(mock);
    RVT_EQ(mock.built, std::size(kKnown));
}

Test(nic, what_cannot_be_built_goes_to_an_extended_pair_as_a_list) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    core::QpInit init = opened.pair();
    init.cap.max_send_sge = 2;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, init)));
    RVT_OK(qp->post_send({.flags = SendFlags::kInline, .sg_list = kParts}));
    RVT_OK(qp->post_send({.flags = SendFlags::kInline}));
    RVT_OK(qp->post_send(request_of(WrOpcode::kCas, kParts)));
    RVT_OK(qp->post_send({.opcode = WrOpcode::kLocalInv, .rkey = 9}));
    RVT_EQ(mock.sends.size(), 4u);
    RVT_EQ(mock.sends[0].num_sge, 2);
    RVT_EQ(mock.sends[0].send_flags, unsigned{IBV_SEND_INLINE});
    RVT_EQ(mock.sends[1].num_sge, 0);
    RVT_EQ(mock.sends[2].num_sge, 2);
    RVT_EQ(mock.sends[3].invalidate_rkey, 9u);
    RVT_EQ(mock.built, 0u);
}

Test(nic, a_full_queue_is_enomem_for_every_request) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        mock.most_sends = 0;
        const Opened opened(mock);
        core::Owned<core::Qp> qp;
        RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
        for (const Known& known : kKnown) {
            RVT_EQ(qp->post_send(request_of(known.opcode, {kParts.data(), 1})), ENOMEM);
        }
        mock.most_sends = 1;
        RVT_OK(qp->post_send(request_of(WrOpcode::kWriteImm, {kParts.data(), 1})));
        RVT_EQ(mock.sends.size(), 1u);
    }
}

Test(nic, what_is_refused_does_not_complete_and_what_is_posted_is_flushed_once) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        const Opened opened(mock);
        core::Owned<core::Qp> qp;
        RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
        mock.error = EINVAL;
        for (const Known& known : kKnown) {
            mock.failing = "post_send";
            RVT_EQ(qp->post_send(request_of(known.opcode, {kParts.data(), 1})), EINVAL);
            mock.failing = {};
            RVT_OK(qp->post_send(request_of(known.opcode, {kParts.data(), 1})));
        }
        mock.fail_pair(qp->qpn());
        core::Wc taken[std::size(kKnown) + 1];
        RVT_EQ(opened.cq->poll(taken), std::size(kKnown));
        for (std::size_t i = 0; i < std::size(kKnown); ++i) {
            RVT_EQ(taken[i].status, core::WcStatus::kWrFlushErr);
            RVT_EQ(taken[i].wr_id, static_cast<std::uint64_t>(kKnown[i].opcode) + 100);
        }
    }
}

namespace {

/// A datagram without immediate data, one with, one inline, and one of no bytes; each to its own.
void datagrams_arrive_whole(MockNic& mock) {
    const Opened opened(mock);
    core::QpInit init = opened.pair();
    init.type = QpType::kUd;
    init.cap.max_send_sge = 2;
    core::Owned<core::Ah> ah;
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(
        ah,
        core::create_ah(*opened.pd, {.dest = core::to_address({.family = AF_INET, .ip = {10}})})));
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, init)));
    SendWr wr{.flags = SendFlags::kSignaled, .imm = kImm, .ah = ah.get(), .remote_qkey = 0x11};
    for (const std::size_t count : {1, 2, 0, 1}) {
        ++wr.wr_id;
        wr.remote_qpn = static_cast<std::uint32_t>(wr.wr_id) * 10;
        wr.sg_list = {kParts.data(), count};
        wr.opcode = count == 2 ? WrOpcode::kSendImm : WrOpcode::kSend;
        wr.flags = wr.wr_id == 4 ? SendFlags::kInline : SendFlags::kSignaled;
        RVT_OK(qp->post_send(wr));
        const ibv_send_wr& sent = mock.sends.back();
        RVT_EQ(sent.wr_id, wr.wr_id);
        RVT_EQ(sent.opcode, count == 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
        RVT_EQ(sent.send_flags, unsigned{wr.wr_id == 4 ? IBV_SEND_INLINE : IBV_SEND_SIGNALED});
        RVT_ASSERT(count != 2 || sent.imm_data == htonl(kImm));
        RVT_ASSERT(sent.wr.ud.ah == ah->priv());
        RVT_EQ(sent.wr.ud.remote_qpn, wr.remote_qpn);
        RVT_EQ(sent.wr.ud.remote_qkey, 0x11u);
        RVT_EQ(mock.lists.back().size(), count);
        RVT_ASSERT(count == 0 || mock.lists.back()[0].addr == 0x1000u);
    }
    wr.ah = nullptr;
    RVT_EQ(qp->post_send(wr), EINVAL);
    RVT_EQ(mock.sends.size(), 4u);
}

}  // namespace

Test(nic, datagrams_are_built_with_their_addresses) {
    MockNic mock;
    add_rocev2(mock);
    datagrams_arrive_whole(mock);
    RVT_EQ(mock.built, 4u);
}

Test(nic, without_extended_verbs_datagrams_arrive_whole) {
    MockNic mock;
    add_rocev2(mock);
    mock.extends = false;
    datagrams_arrive_whole(mock);
    RVT_EQ(mock.built, 0u);
}

Test(nic, a_driver_that_builds_connected_requests_alone_gets_datagrams_as_lists) {
    for (const bool refuses : {true, false}) {
        MockNic mock;
        add_rocev2(mock);
        mock.refuses_operations = refuses;
        mock.ud_operations = 0;
        datagrams_arrive_whole(mock);
        RVT_EQ(mock.built, 0u);
    }
}

namespace {

void completions_carry_what_it_says(MockNic& mock) {
    const Opened opened(mock);
    ibv_wc wc{};
    wc.wr_id = 3;
    wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.byte_len = 12;
    wc.imm_data = htonl(0xabcd);
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.qp_num = 77;
    mock.completions.push_back(wc);
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = IBV_WC_GRH;
    wc.src_qp = 5;
    mock.completions.push_back(wc);
    wc.status = IBV_WC_REM_ACCESS_ERR;
    wc.vendor_err = 88;
    mock.completions.push_back(wc);
    core::Wc taken[4];
    RVT_EQ(opened.cq->poll(taken), 3);
    RVT_EQ(taken[0].opcode, core::WcOpcode::kRecvWriteImm);
    RVT_EQ(taken[0].byte_len, 12);
    RVT_EQ(taken[0].imm, 0xabcd);
    RVT_EQ(taken[0].qpn, 77);
    RVT_EQ(taken[1].opcode, core::WcOpcode::kRecv);
    RVT_EQ(taken[1].flags, core::WcFlags::kGrh);
    RVT_EQ(taken[1].src_qpn, 5);
    RVT_EQ(taken[2].status, core::WcStatus::kRemAccessErr);
    RVT_EQ(taken[2].vendor_err, 88);
    RVT_EQ(taken[2].wr_id, 3);
    RVT_EQ(taken[2].qpn, 77);
    RVT_EQ(opened.cq->poll(taken), 0);
}

void every_failure_is_one(MockNic& mock) {
    const Opened opened(mock);
    for (int status = IBV_WC_SUCCESS + 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        ibv_wc wc{};
        wc.status = static_cast<ibv_wc_status>(status);
        mock.completions.push_back(wc);
        core::Wc taken;
        RVT_EQ(opened.cq->poll({&taken, 1}), 1);
        RVT_ASSERT(taken.status != core::WcStatus::kSuccess);
        // What is in flight when a pair ends is told apart from what ended it.
        RVT_EQ(taken.status == core::WcStatus::kWrFlushErr, status == IBV_WC_WR_FLUSH_ERR);
    }
}

}  // namespace

Test(nic, completions_carry_what_it_says) {
    MockNic mock;
    completions_carry_what_it_says(mock);
    RVT_NE(mock.extended_queues, 0u);
    mock.extends = false;
    completions_carry_what_it_says(mock);
}

Test(nic, no_more_completions_are_taken_than_there_is_room_for) {
    for (const bool extends : {true, false}) {
        MockNic mock;
        mock.extends = extends;
        const Opened opened(mock);
        ibv_wc wc{};
        for (wc.wr_id = 0; wc.wr_id < 3; ++wc.wr_id) {
            mock.completions.push_back(wc);
        }
        core::Wc taken[2];
        RVT_EQ(opened.cq->poll({taken, 0}), 0);
        RVT_EQ(opened.cq->poll(taken), 2);
        RVT_EQ(taken[1].wr_id, 1);
        RVT_EQ(opened.cq->poll(taken), 1);
        RVT_EQ(taken[0].wr_id, 2);
    }
}

Test(nic, every_failure_that_it_reports_is_one) {
    MockNic mock;
    every_failure_is_one(mock);
    mock.extends = false;
    every_failure_is_one(mock);
}

Test(nic, several_shared_receives_are_posted_by_one_call) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Srq> receives;
    RVT_OK(core::keep(receives, core::create_srq(*opened.pd, {.max_wr = 32, .max_sge = 1})));
    std::array<std::byte, 8> memory{};
    const Sge room{.addr = reinterpret_cast<std::uint64_t>(memory.data()), .length = 8, .lkey = 2};
    std::array<RecvWr, 20> wrs;
    for (std::size_t i = 0; i < wrs.size(); ++i) {
        wrs[i] = {.wr_id = i, .sg_list = {&room, 1}};
    }
    RVT_OK(receives->post_recvs(wrs));
    RVT_EQ(mock.shared_receives.size(), 2u);
    std::uint64_t next = 0;
    for (const auto& call : mock.shared_receives) {
        for (const std::uint64_t id : call) {
            RVT_EQ(id, next++);
        }
    }
    RVT_EQ(next, 20u);
}

Test(nic, a_receive_of_too_many_pieces_is_refused_with_those_it_comes_with) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Srq> receives;
    RVT_OK(core::keep(receives, core::create_srq(*opened.pd, {.max_wr = 32, .max_sge = 1})));
    const std::array<Sge, 2> rooms{};
    const std::array<RecvWr, 2> wrs{RecvWr{.wr_id = 0, .sg_list = {rooms.data(), 1}},
                                    RecvWr{.wr_id = 1, .sg_list = rooms}};
    RVT_EQ(receives->post_recvs(wrs).error(), EINVAL);
    RVT_ASSERT(mock.shared_receives.empty());
}
