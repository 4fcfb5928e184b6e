// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The mock NIC opened as a device of the core, with the objects that most tests need.
#pragma once

#include <cstring>
#include <memory>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/addresses.h"
#include "core/context.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/verbs_cq.h"

namespace rvt::verbs {

inline NicAddress mock_address() {
    return {.device = "mock0", .port = 2, .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}};
}

/// Gives its port the address by RoCEv2, so that it has datagrams.
inline void add_rocev2(MockNic& mock) {
    const Address own = core::to_address(mock_address().address);
    ibv_gid_entry& entry = mock.gids.emplace_back();
    entry.gid_type = IBV_GID_TYPE_ROCE_V2;
    std::memcpy(entry.gid.raw, own.gid.data(), own.gid.size());
}

/// The mock, opened, with objects on it. Destroyed in the order that the objects demand.
struct Opened {
    explicit Opened(MockNic& mock) : nic(Nic::open(registry, mock_address()).take()) {
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

}  // namespace rvt::verbs
