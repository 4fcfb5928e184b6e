// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What NICs of families that are not at hand are asked for, and what becomes of their answers.
#include "backend/verbs/nic.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "backend/verbs/mock_nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "util/params.h"

using namespace rvt;
using namespace rvt::verbs;

namespace {

constexpr NicAddress kAddress() {
    return {.device = "mock0", .port = 2, .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}};
}

/// The mock, opened, with objects on it. Destroyed in the order that the objects demand.
struct Opened {
    explicit Opened(MockNic& mock) : nic(Nic::open(registry, kAddress()).take()) {
        static_cast<void>(mock);
        RVT_OK(core::keep(context, core::open_device(nic->device())));
        RVT_OK(core::keep(pd, core::alloc_pd(*context)));
        RVT_OK(core::keep(cq, core::create_cq(*context, 16)));
    }
    core::QpInit pair() const {
        return {.send_cq = cq.get(), .recv_cq = cq.get(), .cap = {.max_inline_bytes = 64}};
    }

    core::Registry registry;
    std::shared_ptr<Nic> nic;
    core::Owned<core::Context> context;
    core::Owned<core::Pd> pd;
    core::Owned<core::VerbsCq> cq;
};

Status open_status(const NicAddress& address = kAddress()) {
    core::Registry registry;
    return Nic::open(registry, address).status();
}

}  // namespace

Test(nic, nothing_stays_of_one_that_was_opened_and_closed) {
    MockNic mock;
    { const Opened opened(mock); }
    RVT_EQ(mock.live, 0);
}

Test(nic, a_device_that_is_not_there_is_enodev) {
    MockNic mock;
    NicAddress other = kAddress();
    other.device = "mlx5_7";
    RVT_EQ(open_status(other), ENODEV);
    RVT_EQ(mock.live, 0);
}

Test(nic, each_call_that_fails_is_its_error_and_leaves_nothing) {
    for (const char* call : {"open_device", "query_device", "query_port", "create_comp_channel",
                             "alloc_pd", "create_cq"}) {
        MockNic mock;
        mock.failing = call;
        RVT_EQ(open_status(), EMFILE);
        RVT_EQ(mock.live, 0);
    }
    MockNic mock;
    mock.failing = "get_device_list";
    RVT_EQ(open_status(), ENODEV);
}

Test(nic, a_port_that_it_does_not_have_is_einval) {
    MockNic mock;
    NicAddress other = kAddress();
    other.port = 3;
    RVT_EQ(open_status(other), EINVAL);
    RVT_EQ(mock.live, 0);
}

Test(nic, one_without_reliable_connections_is_enodev) {
    MockNic mock;
    mock.attr.vendor_id = 0x1d0f;  // efa
    RVT_EQ(open_status(), ENODEV);
    RVT_EQ(mock.live, 0);
}

Test(nic, another_one_comes_while_the_first_is_still_used_though_it_is_gone) {
    MockNic mock;
    core::Registry registry;
    const auto first = Nic::open(registry, kAddress()).take();
    core::Owned<core::Context> user;
    RVT_OK(keep(user, core::open_device(first->device())));
    first->device().begin_removal();
    const auto second = Nic::open(registry, kAddress());
    RVT_OK(second.status());
    RVT_ASSERT(second.value()->device().name() == first->device().name() + "-2");
    core::Owned<core::Context> another;
    RVT_OK(keep(another, core::open_device(second.value()->device())));
}

Test(nic, one_that_makes_no_pairs_has_nothing_inline) {
    MockNic mock;
    mock.max_inline = 31;
    const Opened opened(mock);
    RVT_EQ(opened.nic->device().limits().max_inline_bytes, 0);
}

Test(nic, its_limits_are_the_devices) {
    MockNic mock;
    const Opened opened(mock);
    const DeviceLimits& limits = opened.nic->device().limits();
    RVT_EQ(limits.max_inline_bytes, 128);
    RVT_EQ(limits.max_qp_wr, 2048);
    RVT_EQ(limits.max_sge, 16);
    RVT_EQ(limits.max_message_bytes, std::uint64_t{1} << 30);
    RVT_EQ(opened.nic->limits().max_reads_in, 8);
    RVT_EQ(opened.nic->limits().max_reads_out, 4);
    RVT_ASSERT(opened.nic->limits().has_atomics);
    RVT_ASSERT(!opened.nic->quirks().is_software);
}

Test(nic, the_gid_is_that_of_the_address_by_rocev2_not_the_first) {
    MockNic mock;
    mock.gids.resize(4);
    for (ibv_gid_entry& entry : mock.gids) {
        entry.gid_type = IBV_GID_TYPE_ROCE_V1;
    }
    const std::uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
    std::memcpy(mock.gids[2].gid.raw, mapped, sizeof mapped);
    std::memcpy(mock.gids[3].gid.raw, mapped, sizeof mapped);
    mock.gids[3].gid_type = IBV_GID_TYPE_ROCE_V2;
    RVT_EQ(Opened(mock).nic->gid_index(), 3);
}

Test(nic, iwarp_is_told_by_its_transport) {
    MockNic mock;
    mock.device.transport_type = IBV_TRANSPORT_IWARP;
    RVT_ASSERT(Opened(mock).nic->quirks().cm_moves_pairs);
}

Test(nic, attributes_of_pairs_name_the_port_that_the_nic_has) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    RVT_EQ(qp->qpn(), 77);
    RVT_OK(qp->modify({.state = QpState::kInit, .access = Access::kRemoteRead},
                      QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess));
    RVT_EQ(mock.modified.back().port_num, 2);
    RVT_EQ(mock.modified.back().qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ});
    RVT_EQ(mock.masks.back(), IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

Test(nic, a_pair_that_it_does_not_make_is_its_error) {
    MockNic mock;
    const Opened opened(mock);
    mock.create_qp_error = ENOSPC;
    RVT_EQ(core::create_qp(*opened.pd, opened.pair()).status(), ENOSPC);
}

Test(nic, a_region_has_the_keys_that_it_gives) {
    MockNic mock;
    const Opened opened(mock);
    char bytes[100];
    const iovec segment{bytes, sizeof bytes};
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(
        mr, core::reg_mr(*opened.pd, {.segments = {&segment, 1}, .access = Access::kLocalWrite})));
    RVT_EQ(mr->lkey(), 2);
    RVT_EQ(mr->rkey(), 3);
    RVT_EQ(mock.regions[0].iova, reinterpret_cast<std::uintptr_t>(bytes));
    RVT_EQ(mock.regions[0].access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
}

namespace {

constexpr ibv_odp_caps kAllOnDemand{
    .general_caps = IBV_ODP_SUPPORT,
    .per_transport_caps = {.rc_odp_caps = 0x3f, .uc_odp_caps = 0, .ud_odp_caps = 0}};

char region_bytes[200];
constexpr iovec kWhole{region_bytes, 200};
constexpr iovec kHalf{region_bytes + 100, 100};

/// What the latest registration of a region with these rights asked for.
int asked_access(MockNic& mock, const Opened& opened, Access access) {
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}, .access = access})));
    return mock.regions.back().access;
}

core::Owned<core::Mr> region_of(const Opened& opened) {
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}})));
    return mr;
}

const core::MrRereg kSmaller{.changes = MrChange::kTranslation, .attr = {.segments = {&kHalf, 1}}};

}  // namespace

Test(nic, memory_that_peers_write_is_written_in_order_unless_asked) {
    MockNic mock;
    const Opened opened(mock);
    const Access written = Access::kLocalWrite | Access::kRemoteWrite;
    RVT_EQ(asked_access(mock, opened, written) & IBV_ACCESS_RELAXED_ORDERING, 0);
    RVT_NE(asked_access(mock, opened, written | Access::kRelaxedOrdering) &
               IBV_ACCESS_RELAXED_ORDERING,
           0);
    RVT_NE(asked_access(mock, opened, Access::kRemoteRead) & IBV_ACCESS_RELAXED_ORDERING, 0);
}

Test(nic, all_memory_is_written_in_order_where_that_is_set) {
    util::set_param_number(util::ParamId::kVerbsRelaxedOrdering, 0);
    MockNic mock;
    const Opened opened(mock);
    RVT_EQ(asked_access(mock, opened, Access::kLocalWrite), IBV_ACCESS_LOCAL_WRITE);
}

Test(nic, memory_is_written_in_order_by_one_that_knows_nothing_else) {
    MockNic mock;
    mock.refused_access = IBV_ACCESS_RELAXED_ORDERING;
    const Opened opened(mock);
    RVT_EQ(asked_access(mock, opened, Access::kLocalWrite), IBV_ACCESS_LOCAL_WRITE);
    RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}, .access = Access::kRelaxedOrdering})
               .status(),
           EOPNOTSUPP);
}

Test(nic, a_region_on_demand_needs_a_nic_that_has_them) {
    MockNic mock;
    {
        const Opened opened(mock);
        RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}, .access = Access::kOnDemand})
                   .status(),
               EOPNOTSUPP);
    }
    mock.on_demand = kAllOnDemand;
    const Opened opened(mock);
    RVT_NE(asked_access(mock, opened, Access::kOnDemand) & IBV_ACCESS_ON_DEMAND, 0);
    RVT_EQ(asked_access(mock, opened, Access::kLocalWrite) & IBV_ACCESS_ON_DEMAND, 0);
}

Test(nic, what_may_not_be_pinned_is_registered_on_demand) {
    MockNic mock;
    mock.most_pinned = 100;
    {
        const Opened opened(mock);
        RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}}).status(), ENOMEM);
    }
    mock.on_demand = kAllOnDemand;
    {
        const Opened opened(mock);
        RVT_NE(asked_access(mock, opened, Access::kLocalWrite) & IBV_ACCESS_ON_DEMAND, 0);
    }
    util::set_param_number(util::ParamId::kVerbsOnDemand, 0);
    const Opened opened(mock);
    RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}}).status(), ENOMEM);
}

Test(nic, advice_reaches_a_nic_that_has_regions_on_demand) {
    MockNic mock;
    {
        const Opened opened(mock);
        const auto mr = region_of(opened);
        RVT_EQ(core::advise_mr(*mr, MrAdvice::kPrefetch, 0, 100), EOPNOTSUPP);
    }
    mock.on_demand = kAllOnDemand;
    const Opened opened(mock);
    const auto mr = region_of(opened);
    RVT_OK(core::advise_mr(*mr, MrAdvice::kPrefetchWrite, 50, 100));
    RVT_EQ(core::advise_mr(*mr, MrAdvice::kPrefetch, 50, 151), EINVAL);
    RVT_EQ(mock.advised.size(), 1);
    RVT_EQ(mock.advised[0].first, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
    RVT_EQ(mock.advised[0].second.addr, reinterpret_cast<std::uintptr_t>(region_bytes + 50));
    RVT_EQ(mock.advised[0].second.length, 100);
    RVT_EQ(mock.advised[0].second.lkey, mr->lkey());
}

Test(nic, a_region_is_changed_in_its_place) {
    MockNic mock;
    const Opened opened(mock);
    const auto mr = region_of(opened);
    const std::uint32_t before = mr->rkey();
    RVT_OK(core::rereg_mr(*mr, kSmaller));
    RVT_EQ(mock.changes.size(), 1);
    RVT_EQ(mock.changes[0].flags, IBV_REREG_MR_CHANGE_TRANSLATION);
    RVT_EQ(mock.changes[0].addr, reinterpret_cast<std::uintptr_t>(kHalf.iov_base));
    RVT_EQ(mock.changes[0].length, 100);
    RVT_EQ(mr->length(), 100);
    RVT_EQ(mr->rkey(), before + 1000);  // as it says
    RVT_EQ(mock.regions.size(), 1);
}

Test(nic, a_region_that_it_does_not_change_is_registered_anew) {
    for (const int result : {int{IBV_REREG_MR_ERR_INPUT}, int{IBV_REREG_MR_ERR_CMD}}) {
        MockNic mock;
        const Opened opened(mock);
        const auto mr = region_of(opened);
        mock.rereg_mr_result = result;
        RVT_OK(core::rereg_mr(*mr, kSmaller));
        RVT_EQ(mock.regions.size(), 2);
        RVT_EQ(mock.regions[1].length, 100);
        RVT_EQ(mock.registered, 100);  // and the first one is gone
        RVT_EQ(mr->lkey(), 4);
    }
}

Test(nic, a_region_that_cannot_be_changed_stays_or_is_lost) {
    MockNic mock;
    const Opened opened(mock);
    auto mr = region_of(opened);
    mock.reg_mr_error = ENOMEM;
    mock.rereg_mr_result = IBV_REREG_MR_ERR_INPUT;
    RVT_EQ(core::rereg_mr(*mr, kSmaller), ENOMEM);
    RVT_EQ(mr->length(), 200);
    RVT_EQ(mr->lkey(), 2);
    mock.rereg_mr_result = IBV_REREG_MR_ERR_CMD;
    RVT_EQ(core::rereg_mr(*mr, kSmaller), ENOTRECOVERABLE);
    mr.reset();
    RVT_EQ(mock.registered, 0);
}

Test(nic, memory_that_it_does_not_take_is_its_error) {
    MockNic mock;
    const Opened opened(mock);
    char byte = 0;
    const iovec segment{&byte, 1};
    const iovec two[] = {{&byte, 1}, {&byte, 1}};
    mock.reg_mr_error = EFAULT;
    RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&segment, 1}}).status(), EFAULT);
    RVT_EQ(core::reg_mr(*opened.pd, {.segments = two}).status(), EOPNOTSUPP);
}

namespace {

/// Memory of a device that nobody touches here.
struct Elsewhere final : core::DeviceMemory {
    util::Status begin_cpu_access(core::CpuAccess) noexcept override { return EOPNOTSUPP; }
    void end_cpu_access(core::CpuAccess) noexcept override {}
    [[nodiscard]] File file() const noexcept override { return {.fd = 9, .offset = 8192}; }
};

}  // namespace

Test(nic, memory_of_a_device_is_imported_by_its_descriptor) {
    MockNic mock;
    const Opened opened(mock);
    Elsewhere memory;
    const iovec segment{nullptr, 4096};
    const core::MrAttr attr{.segments = {&segment, 1},
                            .access = Access::kRemoteRead,
                            .iova = 0x7000,
                            .device = &memory};
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, core::reg_mr(*opened.pd, attr)));
    const MockNic::Region& asked = mock.regions[0];
    RVT_EQ(asked.fd, 9);
    RVT_EQ(asked.offset, 8192);
    RVT_EQ(asked.length, 4096);
    RVT_EQ(asked.iova, 0x7000);
    mr.reset();
    mock.dmabuf_error = EOPNOTSUPP;
    RVT_EQ(core::reg_mr(*opened.pd, attr).status(), EOPNOTSUPP);
}

Test(nic, what_it_does_not_have_is_refused_before_it_is_asked) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    RVT_EQ(qp->post_send({.opcode = WrOpcode::kFlush}), EOPNOTSUPP);
    RVT_EQ(qp->post_send({.opcode = WrOpcode::kExtendedAtomic}), EOPNOTSUPP);
    RVT_EQ(qp->post_send({.opcode = WrOpcode::kRead, .flags = SendFlags::kInline}), EINVAL);
    RVT_ASSERT(mock.sends.empty());
    RVT_EQ(core::alloc_mw(*opened.pd).status(), EOPNOTSUPP);
    RVT_EQ(qp->post_recv({}), ENOMEM);
}

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

Test(nic, what_cannot_be_built_goes_to_an_extended_pair_as_a_list) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    const std::array parts{Sge{.addr = 0x1000, .length = 8, .lkey = 6},
                           Sge{.addr = 0x2000, .length = 4, .lkey = 6}};
    RVT_OK(qp->post_send({.sg_list = parts}));
    RVT_OK(qp->post_send({}));
    RVT_OK(qp->post_send({.opcode = WrOpcode::kSendImm, .imm = 1, .sg_list = {parts.data(), 1}}));
    RVT_EQ(mock.sends.size(), 3u);
    RVT_EQ(mock.sends[0].num_sge, 2);
    RVT_EQ(mock.sends[1].num_sge, 0);
    RVT_EQ(mock.sends[2].imm_data, htonl(1));
    RVT_EQ(mock.built, 0u);
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

Test(nic, a_port_that_goes_down_and_comes_back_is_told_of) {
    MockNic mock;
    const Opened opened(mock);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_PORT_ERR;
    event.element.port_num = 1;  // another one
    mock.events.push_back(event);
    opened.nic->take_events();
    RVT_ASSERT(!opened.nic->device().is_port_down());
    event.element.port_num = 2;
    mock.events.push_back(event);
    opened.nic->take_events();
    RVT_ASSERT(opened.nic->device().is_port_down());
    RVT_EQ(opened.context->events().poll()->type, EventType::kPortErr);
    event.event_type = IBV_EVENT_PORT_ACTIVE;
    mock.events.push_back(event);
    opened.nic->take_events();
    RVT_ASSERT(!opened.nic->device().is_port_down());
    RVT_EQ(mock.acknowledged, 3);
}

Test(nic, an_error_of_a_pair_is_its_event) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    event.element.qp = mock.last_pair;
    mock.events.push_back(event);
    opened.nic->take_events();
    const auto told = opened.context->events().poll();
    RVT_ASSERT(told.has_value());
    RVT_EQ(told->type, EventType::kQpAccessErr);
    RVT_ASSERT(told->object == qp.get());
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
