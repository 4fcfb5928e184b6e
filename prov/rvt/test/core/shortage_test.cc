// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who is told what, where a NIC makes no region or no pair: over the one that exists only here.
#include "core/shortage.h"

#include <cerrno>
#include <string>
#include <vector>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/opened_nic.h"
#include "common/check.h"
#include "core/mr.h"
#include "core/owned.h"

using namespace rvt;
using verbs::MockNic;
using verbs::Opened;

namespace {

char bytes[100];
constexpr iovec kWhole{bytes, sizeof bytes};

Status register_into(const Opened& opened, std::vector<core::Owned<core::Mr>>& all) {
    core::Owned<core::Mr> mr;
    const Status made = keep(mr, core::reg_mr(*opened.pd, {.segments = {&kWhole, 1}}));
    if (made.is_ok()) {
        all.push_back(std::move(mr));
    }
    return made;
}

Status make_pair_into(const Opened& opened, std::vector<core::Owned<core::Qp>>& all) {
    core::Owned<core::Qp> qp;
    const Status made = keep(qp, core::create_qp(*opened.pd, opened.pair()));
    if (made.is_ok()) {
        all.push_back(std::move(qp));
    }
    return made;
}

bool names(const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
}

}  // namespace

Test(shortage, regions_that_are_all_in_use_are_told_from_locked_memory) {
    MockNic mock;
    mock.attr.max_mr = 2;
    mock.most_regions = 2;
    const Opened opened(mock);
    std::vector<core::Owned<core::Mr>> all;
    RVT_OK(register_into(opened, all));
    mock.most_registered = mock.registered;
    const Status locked = register_into(opened, all);
    RVT_EQ(locked, ENOMEM);
    const std::string at_limit = core::region_shortage(opened.nic->device(), locked);
    RVT_ASSERT(names(at_limit, "ulimit -l") && names(at_limit, "2 regions (max_mr)"));
    mock.most_registered = 1 << 20;
    RVT_OK(register_into(opened, all));
    const Status full = register_into(opened, all);
    RVT_EQ(full, ENOSPC);
    const std::string in_use = core::region_shortage(opened.nic->device(), full);
    RVT_ASSERT(!names(in_use, "ulimit -l") && names(in_use, "all 2 regions (max_mr)"));
    all.pop_back();
    RVT_OK(register_into(opened, all));
}

Test(shortage, pairs_that_are_all_in_use_are_named) {
    MockNic mock;
    mock.attr.max_qp = 2;
    mock.most_pairs = 2;
    const Opened opened(mock);
    std::vector<core::Owned<core::Qp>> all;
    RVT_OK(make_pair_into(opened, all));
    mock.most_pairs = 1;  // others have them
    const Status others = make_pair_into(opened, all);
    RVT_EQ(others, ENOMEM);
    RVT_ASSERT(names(core::pair_shortage(opened.nic->device(), others), "2 queue pairs (max_qp)"));
    mock.most_pairs = 2;
    RVT_OK(make_pair_into(opened, all));
    const Status full = make_pair_into(opened, all);
    RVT_EQ(full, ENOSPC);
    RVT_ASSERT(
        names(core::pair_shortage(opened.nic->device(), full), "all 2 queue pairs (max_qp)"));
    all.pop_back();
    RVT_OK(make_pair_into(opened, all));
}

Test(shortage, a_nic_that_does_not_say_how_many_it_has_is_not_quoted) {
    MockNic mock;
    mock.attr.max_mr = 0;
    mock.most_regions = 0;
    const Opened opened(mock);
    std::vector<core::Owned<core::Mr>> all;
    const Status refused = register_into(opened, all);
    RVT_EQ(refused, ENOMEM);
    const std::string text = core::region_shortage(opened.nic->device(), refused);
    RVT_ASSERT(names(text, "ulimit -l") && !names(text, "max_mr"));
}

Test(shortage, a_control_group_that_has_all_it_may_have_is_named) {
    MockNic mock;
    const Opened opened(mock);
    std::vector<core::Owned<core::Mr>> regions;
    std::vector<core::Owned<core::Qp>> pairs;
    mock.error = EAGAIN;
    mock.reg_mr_error = EAGAIN;
    const Status region = register_into(opened, regions);
    RVT_EQ(region, EDQUOT);
    RVT_ASSERT(names(core::region_shortage(opened.nic->device(), region), "rdma.max"));
    mock.failing = "create_qp";
    const Status pair = make_pair_into(opened, pairs);
    RVT_EQ(pair, EDQUOT);
    RVT_ASSERT(names(core::pair_shortage(opened.nic->device(), pair), "rdma.max"));
    mock.failing = "";
    mock.reg_mr_error = 0;
    RVT_OK(register_into(opened, regions));
    RVT_OK(make_pair_into(opened, pairs));
}

Test(shortage, other_errors_are_no_want_of_room) {
    MockNic mock;
    const Opened opened(mock);
    RVT_ASSERT(core::region_shortage(opened.nic->device(), EFAULT).empty());
    RVT_ASSERT(core::pair_shortage(opened.nic->device(), EINVAL).empty());
}
