// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What NICs of families that are not at hand are asked for, and what becomes of their answers.
#include "backend/verbs/nic.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include <endian.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/opened_nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/verbs_cq.h"
#include "util/log.h"
#include "util/params.h"

using namespace rvt;
using namespace rvt::verbs;

namespace {

Status open_status(const NicAddress& address = mock_address()) {
    core::Registry registry;
    return Nic::open(registry, address).status();
}

}  // namespace

Test(nic, who_has_got_its_name_is_not_opened_in_its_place) {
    MockNic mock;
    NicAddress address = mock_address();
    address.guid = 0x505400fffe123456;
    mock.others.push_back({.device = mock.device, .guid = htobe64(address.guid + 1)});
    std::strcpy(mock.device.name, "renamed");
    RVT_EQ(open_status(address).error(), ENODEV);  // it is not there
    mock.attr.node_guid = htobe64(address.guid);
    RVT_OK(open_status(address));
}

Test(nic, nothing_stays_of_one_that_was_opened_and_closed) {
    MockNic mock;
    { const Opened opened(mock); }
    RVT_EQ(mock.live, 0);
}

Test(nic, a_device_that_is_not_there_is_enodev) {
    MockNic mock;
    NicAddress other = mock_address();
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
    NicAddress other = mock_address();
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
    const auto first = Nic::open(registry, mock_address()).take();
    core::Owned<core::Context> user;
    RVT_OK(keep(user, core::open_device(first->device())));
    first->device().begin_removal();
    const auto second = Nic::open(registry, mock_address());
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
    mock.attr.max_cq = 300;
    mock.attr.max_mr = 700;
    const Opened opened(mock);
    const DeviceLimits& limits = opened.nic->device().limits();
    RVT_EQ(limits.max_inline_bytes, 128);
    RVT_EQ(limits.own_max_qp, 1000);
    RVT_EQ(limits.own_max_cq, 300);
    RVT_EQ(limits.own_max_mr, 700);
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

namespace {

/// Which row of the table a device is to have, with the vendor that the kernel's driver names.
struct Expected {
    std::uint32_t vendor;
    ibv_transport_type transport;
    Quirks quirks;
};
constexpr ibv_transport_type kIb = IBV_TRANSPORT_IB;
constexpr ibv_transport_type kIwarp = IBV_TRANSPORT_IWARP;
// clang-format off
constexpr Expected kExpected[] = {
    {0xffffff, kIb,    {"rxe",                true,  true,  false, true,  Misbuilt::kLists,     true,  true}},
    {0x626d74, kIwarp, {"siw",                true,  true,  true,  false, Misbuilt::kNone,      false, true}},
    {0x0002c9, kIb,    {"mlx4, mlx5",         false, true,  false, false, Misbuilt::kNone,      false, false}},
    {0x0015b3, kIb,    {"mlx4, mlx5",         false, true,  false, false, Misbuilt::kNone,      false, false}},
    {0x008086, kIb,    {"irdma",              false, true,  false, false, Misbuilt::kNone,      false, false}},
    {0x008086, kIwarp, {"iWARP",              false, true,  true,  false, Misbuilt::kNone,      false, false}},
    {0x0014e4, kIb,    {"bnxt_re",            false, true,  false, false, Misbuilt::kDatagrams, false, false}},
    {0x0019e5, kIb,    {"hns",                false, true,  false, false, Misbuilt::kNone,      false, false}},
    {0x001d0f, kIb,    {"efa",                false, false, false, false, Misbuilt::kNone,      false, false}},
    {0x001175, kIb,    {"hfi1, qib",          false, true,  false, false, Misbuilt::kNone,      false, false}},
    {0x001425, kIwarp, {"iWARP",              false, true,  true,  false, Misbuilt::kNone,      false, false}},  // cxgb4
    {0x00abcd, kIb,    {"of no known family", false, true,  false, false, Misbuilt::kNone,      false, false}},
};
// clang-format on

/// Whether it is asked to build what it builds right, and that alone.
bool is_given_lists(const Nic& nic, Misbuilt misbuilt) {
    const bool has_ud = nic.limits().has_ud && misbuilt != Misbuilt::kDatagrams;
    const Builds& connected = nic.limits().builds_of(QpType::kRc);
    return connected.is_any() && (connected.lists == 0) == (misbuilt == Misbuilt::kLists) &&
           nic.limits().builds_of(QpType::kUd).is_any() == has_ud;
}

/// Whether the driver's extended queues are polled.
bool has_extended_queues(const MockNic& mock) {
    return mock.extended_queues != 0;
}

}  // namespace

Test(nic, each_family_is_told_by_its_vendor_and_treated_as_its_row_says) {
    for (const auto& [vendor, transport, quirks] : kExpected) {
        MockNic mock;
        mock.attr.vendor_id = vendor;
        mock.device.transport_type = transport;
        add_rocev2(mock);
        mock.on_demand = {
            .general_caps = IBV_ODP_SUPPORT,
            .per_transport_caps = {.rc_odp_caps = 0x3f, .uc_odp_caps = 0, .ud_odp_caps = 0}};
        if (!quirks.has_rc) {
            RVT_EQ(open_status(), ENODEV);
            continue;
        }
        const Opened opened(mock);
        const Quirks& found = opened.nic->quirks();
        cr_assert(std::string_view(found.family) == quirks.family, "0x%x: %s", vendor,
                  found.family);
        cr_assert(found.is_software == quirks.is_software, "%s", found.family);
        cr_assert(found.is_tried == quirks.is_tried, "%s", found.family);
        cr_assert(found.cm_moves_pairs == quirks.cm_moves_pairs, "%s", found.family);
        cr_assert(has_extended_queues(mock) == !quirks.breaks_next_poll, "%s", found.family);
        cr_assert(is_given_lists(*opened.nic, quirks.misbuilt), "%s", found.family);
        cr_assert(opened.nic->limits().has_on_demand == !quirks.misplaces_on_demand, "%s",
                  found.family);
    }
}

Test(nic, iwarp_is_told_by_its_transport) {
    MockNic mock;
    mock.device.transport_type = IBV_TRANSPORT_IWARP;
    const Opened opened(mock);
    RVT_ASSERT(opened.nic->quirks().cm_moves_pairs);
    RVT_ASSERT(!opened.nic->device().limits().has_immediate);
    RVT_ASSERT(opened.nic->device().limits().reads_need_remote_write);
}

namespace {

std::string heard;
int warnings = 0;

constexpr util::LogSink kSink{
    .is_enabled =
        [](util::LogLevel level, util::LogArea /*area*/) noexcept {
            return level == util::LogLevel::kWarn || level == util::LogLevel::kInfo;
        },
    .write =
        [](util::LogLevel level, util::LogArea /*area*/, const char* /*function*/, int /*line*/,
           const char* text) noexcept {
            warnings += level == util::LogLevel::kWarn ? 1 : 0;
            heard += text;
            heard += '\n';
        },
};

/// What is said when a port of RoCE is opened whose table has such an entry for its address.
void open_with_gid(MockNic& mock, ibv_gid_type type, std::uint8_t last_byte) {
    ibv_gid_entry entry{};
    const std::uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, last_byte};
    std::memcpy(entry.gid.raw, mapped, sizeof mapped);
    entry.gid_type = type;
    mock.port.link_layer = IBV_LINK_LAYER_ETHERNET;
    mock.gids = {ibv_gid_entry{}, entry};
    heard.clear();
    warnings = 0;
    util::set_log_sink(&kSink);
    const Opened opened(mock);
    RVT_EQ(opened.nic->limits().has_rocev2, type == IBV_GID_TYPE_ROCE_V2 && last_byte == 3);
}

bool is_heard(std::string_view what) {
    return heard.find(what) != std::string::npos;
}

}  // namespace

Test(nic, what_pairs_of_a_port_use_is_logged) {
    MockNic mock;
    mock.pkeys = {0x8001};
    mock.failing = "query_pkey";
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V2, 3);
    cr_assert(is_heard("P_Key index 0, which is not there"), "%s", heard.c_str());
    mock.failing = {};
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V2, 3);
    cr_assert(is_heard("port 2, GID index 1, P_Key index 0 (0x8001), for 10.1.2.3"), "%s",
              heard.c_str());
    RVT_EQ(warnings, 0);
    mock.pkeys.clear();
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V2, 3);
    cr_assert(is_heard("P_Key index 0, which is not there"), "%s", heard.c_str());
}

Test(nic, a_port_of_roce_without_rocev2_says_what_it_is_not_used_for_and_why) {
    MockNic mock;
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V1, 3);
    RVT_EQ(warnings, 1);
    cr_assert(is_heard("NIC mock0, port 2, cannot be used by RoCEv2, so not for RDM endpoints"),
              "%s", heard.c_str());
    cr_assert(is_heard("the GID of 10.1.2.3") && is_heard("for RoCE v1 only"), "%s", heard.c_str());
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V2, 4);
    RVT_EQ(warnings, 1);
    cr_assert(is_heard("no GID of 10.1.2.3"), "%s", heard.c_str());
}

Test(nic, a_port_of_iwarp_lacks_nothing) {
    MockNic mock;
    open_with_gid(mock, IBV_GID_TYPE_ROCE_V2, 3);
    mock.device.transport_type = IBV_TRANSPORT_IWARP;
    heard.clear();
    mock.gids.clear();
    { const Opened opened(mock); }
    RVT_EQ(warnings, 0);
    cr_assert(is_heard("GID index 0 (not of RoCEv2)"), "%s", heard.c_str());
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
    RVT_EQ(asked_access(mock, opened,
                        Access::kRemoteWrite | Access::kLocalWrite | Access::kRelaxedOrdering) &
               IBV_ACCESS_RELAXED_ORDERING,
           0);
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

Test(nic, one_without_atomics_on_demand_has_nothing_on_demand_unless_it_has_no_atomics) {
    MockNic mock;
    mock.on_demand = kAllOnDemand;
    mock.on_demand.per_transport_caps.rc_odp_caps &= ~static_cast<unsigned>(IBV_ODP_SUPPORT_ATOMIC);
    mock.most_pinned = 100;
    {
        const Opened opened(mock);
        RVT_EQ(core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}}).status(), ENOMEM);
    }
    mock.attr.atomic_cap = IBV_ATOMIC_NONE;
    const Opened opened(mock);
    RVT_NE(asked_access(mock, opened, Access::kLocalWrite) & IBV_ACCESS_ON_DEMAND, 0);
}

Test(nic, a_nic_that_misplaces_data_on_demand_is_not_asked_for_it) {
    MockNic mock;
    mock.attr.vendor_id = 0xffffff;  // rxe
    mock.on_demand = kAllOnDemand;
    mock.most_pinned = 100;
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
    // So libibverbs says that a driver changes none.
    mock.rereg_mr_result = IBV_REREG_MR_ERR_CMD;
    mock.rereg_mr_error = EOPNOTSUPP;
    RVT_EQ(core::rereg_mr(*mr, kSmaller), ENOMEM);
    RVT_EQ(mr->lkey(), 2);
    mock.rereg_mr_error = EIO;
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

Test(nic, one_that_tells_nothing_any_more_is_gone) {
    MockNic mock;
    const Opened opened(mock);
    RVT_ASSERT(opened.nic->take_events());
    RVT_ASSERT(!opened.nic->device().is_going());
    mock.has_no_more_events = true;
    RVT_ASSERT(!opened.nic->take_events());
    RVT_ASSERT(opened.nic->device().is_going());
    RVT_EQ(opened.context->events().poll()->type, EventType::kDeviceFatal);
    RVT_ASSERT(!opened.nic->take_events());
    RVT_ASSERT(!opened.context->events().poll().has_value());
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
