// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What tests of endpoints over the mock for NICs begin with.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include <sys/socket.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/registry.h"
#include "util/memory_watch.h"

namespace rvt::test {

/// The NIC "mock0", whose only port has the RoCEv2 address 10.1.2.3.
inline std::shared_ptr<verbs::Nic> open_mock_nic(verbs::MockNic& mock, core::Registry& registry) {
    ibv_gid_entry gid{};
    const std::uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
    std::memcpy(gid.gid.raw, mapped, sizeof mapped);
    gid.gid_type = IBV_GID_TYPE_ROCE_V2;
    mock.gids.push_back(gid);
    mock.attr.max_cqe = 1 << 16;
    return verbs::Nic::open(
               registry,
               {.device = "mock0", .port = 1, .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}})
        .take();
}

/// Where memory cannot be watched, the test is not counted as one that ran: scripts/run-suite
/// misses it then.
inline std::shared_ptr<util::MemoryWatch> watch_or_skip() {
    auto watch = util::MemoryWatch::acquire();
    if (!watch.is_ok()) {
        cr_skip_test("userfaultfd cannot be used here");
    }
    return watch.take();
}

}  // namespace rvt::test
