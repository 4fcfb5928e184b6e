// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions of an application in the domain of a NIC: how it wishes them to be, and what becomes of
// them. rdma/fi_ext_rvt.h.
#include <rdma/fi_ext_rvt.h>

#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;

namespace {

constexpr std::uint64_t kAccess = FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;

void let_page_on_demand(verbs::MockNic& mock) {
    mock.on_demand.general_caps = IBV_ODP_SUPPORT;
    mock.on_demand.per_transport_caps.rc_odp_caps = 0x3f;
}

/// An application with one region more.
struct With {
    int reg(std::uint64_t flags) {
        return fi_mr_reg(app.domain, memory.data(), memory.size(), kAccess, 0, 0, flags, &mr,
                         nullptr);
    }
    fi_rvt_ops_mr& ops() const {
        void* table = nullptr;
        RVT_EQ(fi_open_ops(&mr->fid, FI_RVT_MR_OPS, 0, &table, nullptr), 0);
        return *static_cast<fi_rvt_ops_mr*>(table);
    }
    int change(char* at, std::size_t bytes, std::uint64_t access, std::uint64_t flags = 0) const {
        const iovec one{at, bytes};
        return ops().reregister(mr, &one, 1, access, flags);
    }
    ~With() { RVT_EQ(mr != nullptr ? fi_close(&mr->fid) : 0, 0); }

    Endpoints app;
    std::vector<char> memory = std::vector<char>(4096);
    fid_mr* mr = nullptr;
};

}  // namespace

Test(nic_region, is_on_demand_where_the_application_wishes_it) {
    World on(let_page_on_demand);
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_ON_DEMAND), 0);
    RVT_NE(on.mock.regions.back().access & IBV_ACCESS_ON_DEMAND, 0);
    RVT_EQ(on.mock.regions.front().access & IBV_ACCESS_ON_DEMAND, 0);
}

Test(nic_region, on_demand_is_refused_by_a_nic_that_has_it_not) {
    World on;
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_ON_DEMAND), -FI_EOPNOTSUPP);
}

Test(nic_region, is_written_in_any_order_where_the_application_wishes_it) {
    World on;
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_RELAXED_ORDERING), 0);
    RVT_NE(on.mock.regions.back().access & IBV_ACCESS_RELAXED_ORDERING, 0);
}

Test(nic_region, is_written_in_order_by_a_nic_that_knows_nothing_else) {
    World on([](verbs::MockNic& mock) { mock.refused_access = IBV_ACCESS_RELAXED_ORDERING; });
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_RELAXED_ORDERING), 0);
    RVT_EQ(on.mock.regions.back().access & IBV_ACCESS_RELAXED_ORDERING, 0);
}

Test(nic_region, has_the_other_buffer_and_the_key_that_the_nic_gives) {
    World on;
    With with;
    RVT_EQ(with.reg(0), 0);
    const std::uint64_t before = fi_mr_key(with.mr);
    RVT_EQ(with.change(with.memory.data() + 100, 200, FI_SEND), 0);
    RVT_EQ(on.mock.changes.size(), 1);
    RVT_EQ(on.mock.changes[0].flags, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS);
    RVT_EQ(on.mock.changes[0].addr, reinterpret_cast<std::uintptr_t>(with.memory.data() + 100));
    RVT_EQ(on.mock.changes[0].length, 200);
    RVT_EQ(on.mock.changes[0].access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE), 0);
    RVT_EQ(fi_mr_key(with.mr), before + 1000);
    std::uint64_t base = 0;
    std::uint64_t key = 0;
    std::size_t bytes = sizeof key;
    RVT_EQ(fi_mr_raw_attr(with.mr, &base, reinterpret_cast<std::uint8_t*>(&key), &bytes, 0), 0);
    RVT_EQ(base, reinterpret_cast<std::uintptr_t>(with.memory.data() + 100));
}

Test(nic_region, keeps_its_buffers_when_only_the_access_changes) {
    World on;
    With with;
    RVT_EQ(with.reg(0), 0);
    RVT_EQ(with.ops().reregister(with.mr, nullptr, 0, FI_SEND, FI_RVT_MR_RELAXED_ORDERING), 0);
    RVT_EQ(on.mock.changes[0].flags, IBV_REREG_MR_CHANGE_ACCESS);
    RVT_EQ(on.mock.changes[0].length, with.memory.size());
}

Test(nic_region, that_cannot_be_changed_stays_what_it_was) {
    World on;
    With with;
    RVT_EQ(with.reg(0), 0);
    const std::uint64_t before = fi_mr_key(with.mr);
    RVT_EQ(with.change(with.memory.data(), 200, FI_SEND, FI_RVT_MR_ON_DEMAND), -FI_EOPNOTSUPP);
    on.mock.reg_mr_error = ENOMEM;
    on.mock.rereg_mr_result = IBV_REREG_MR_ERR_INPUT;
    RVT_EQ(with.change(with.memory.data(), 200, FI_SEND), -FI_ENOMEM);
    RVT_EQ(fi_mr_key(with.mr), before);
    on.mock.rereg_mr_result = IBV_REREG_MR_ERR_CMD;
    RVT_EQ(with.change(with.memory.data(), 200, FI_SEND), -ENOTRECOVERABLE);
}

Test(nic_region, advice_reaches_a_nic_that_has_regions_on_demand) {
    {
        World on;
        With with;
        RVT_EQ(with.reg(0), 0);
        RVT_EQ(with.ops().advise(with.mr, FI_RVT_MR_PREFETCH, 0, 8), -FI_EOPNOTSUPP);
    }
    World on(let_page_on_demand);
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_ON_DEMAND), 0);
    RVT_EQ(with.ops().advise(with.mr, FI_RVT_MR_PREFETCH_WRITE, 50, 100), 0);
    RVT_EQ(with.ops().advise(with.mr, FI_RVT_MR_PREFETCH, 50, 4096), -FI_EINVAL);
    RVT_EQ(on.mock.advised.size(), 1);
    RVT_EQ(on.mock.advised[0].first, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
    RVT_EQ(on.mock.advised[0].second.addr,
           reinterpret_cast<std::uintptr_t>(with.memory.data() + 50));
    RVT_EQ(on.mock.advised[0].second.length, 100);
}

Test(nic_region, that_is_pinned_is_registered_anew_when_its_pages_have_changed) {
    World on(let_page_on_demand);
    With with;
    RVT_EQ(with.reg(0), 0);
    const iovec part{with.memory.data() + 100, 100};
    RVT_EQ(fi_mr_refresh(with.mr, &part, 1, 0), 0);
    RVT_EQ(on.mock.changes.size(), 1);
    RVT_EQ(on.mock.changes[0].flags, IBV_REREG_MR_CHANGE_TRANSLATION);
    RVT_EQ(on.mock.changes[0].addr, reinterpret_cast<std::uintptr_t>(with.memory.data()));
    RVT_EQ(on.mock.changes[0].length, with.memory.size());
    RVT_EQ(fi_mr_key(with.mr) % 1000, 5);
}

Test(nic_region, on_demand_needs_no_word_of_pages_that_change) {
    World on(let_page_on_demand);
    With with;
    RVT_EQ(with.reg(FI_RVT_MR_ON_DEMAND), 0);
    RVT_EQ(fi_mr_refresh(with.mr, nullptr, 0, 0), 0);
    RVT_EQ(on.mock.changes.size(), 0);
}
