// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions of the mock.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "backend/verbs/mock_objects.h"

namespace rvt::verbs {
namespace {

struct MockMr : ibv_mr {
    std::size_t bytes = 0;
};

ibv_mr* region(ibv_pd* pd, const MockNic::Region& asked, int error) {
    if (error != 0) {
        errno = error;
        return nullptr;
    }
    if ((asked.access & mock->refused_access) != 0) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    const bool is_pinned = (asked.access & IBV_ACCESS_ON_DEMAND) == 0;
    const auto there =
        static_cast<std::size_t>(std::ranges::count_if(mock->regions, &MockNic::Region::is_there));
    if (fails("reg_mr") || there >= mock->most_regions ||
        asked.length > mock->most_registered - mock->registered ||
        (is_pinned && asked.length > mock->most_pinned)) {
        errno = mock->is_gone ? EIO : ENOMEM;
        return nullptr;
    }
    mock->regions.push_back(asked);
    mock->registered += asked.length;
    MockMr made{};
    made.pd = pd;
    made.lkey = static_cast<std::uint32_t>(2 * mock->regions.size());
    made.rkey = made.lkey + 1;
    made.bytes = asked.length;
    return make(made);
}
int end_region(ibv_mr* region) {
    auto* const mine = static_cast<MockMr*>(region);
    mock->regions[mine->lkey / 2 - 1].is_there = false;
    mock->registered -= mine->bytes;
    return destroy(mine);
}
ibv_mr* make_region(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                    unsigned access) {
    return region(pd,
                  {.addr = reinterpret_cast<std::uintptr_t>(addr),
                   .length = length,
                   .iova = iova,
                   .offset = 0,
                   .fd = -1,
                   .access = static_cast<int>(access)},
                  mock->reg_mr_error);
}
ibv_mr* reg_dmabuf(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                   int access) {
    return region(
        pd,
        {.addr = 0, .length = length, .iova = iova, .offset = offset, .fd = fd, .access = access},
        mock->dmabuf_error);
}

int change_region(ibv_mr* region, int flags, ibv_pd* pd, void* addr, std::size_t length,
                  int access) {
    mock->changes.push_back({.flags = flags,
                             .addr = reinterpret_cast<std::uintptr_t>(addr),
                             .length = length,
                             .access = access});
    if (access != 0 && (flags & IBV_REREG_MR_CHANGE_ACCESS) == 0) {
        return IBV_REREG_MR_ERR_INPUT;  // as libibverbs says of it
    }
    if (mock->rereg_mr_result == 0) {
        auto& mine = *static_cast<MockMr*>(region);
        mine.pd = pd;
        mock->registered += length - std::exchange(mine.bytes, length);
        mine.rkey += 1000;
    }
    errno = mock->rereg_mr_error;
    return mock->rereg_mr_result;
}
int advise_region(ibv_pd*, ibv_advise_mr_advice advice, std::uint32_t, ibv_sge* list,
                  std::uint32_t) {
    if (fails("advise_mr")) {
        return errno;
    }
    mock->advised.emplace_back(advice, *list);
    return 0;
}
int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attr,
                    std::size_t) {
    if (fails("query_device_ex")) {
        return errno;
    }
    attr->odp_caps = mock->on_demand;
    return 0;
}

}  // namespace

void add_memory(verbs_context& context, Library& functions) {
    context.query_device_ex = query_device_ex;
    context.advise_mr = advise_region;
    functions.ibv_reg_mr_iova2 = make_region;
    functions.ibv_reg_dmabuf_mr = reg_dmabuf;
    functions.ibv_dereg_mr = end_region;
    functions.ibv_rereg_mr = change_region;
}

}  // namespace rvt::verbs
