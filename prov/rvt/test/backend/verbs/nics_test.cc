// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which NICs belong to addresses, as rdma_cm says.
#include "backend/verbs/nics.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <arpa/inet.h>

#include "backend/verbs/mock_cm.h"
#include "backend/verbs/mock_nic.h"
#include "common/check.h"

namespace rvt::verbs {
namespace {

const util::SockAddr kBound[] = {
    {.family = AF_INET, .port = 7, .ip = {10, 1, 2, 3}},
    {.family = AF_INET, .ip = {10, 1, 2, 4}},
};

/// A NIC, and an rdma_cm whose ids are bound to it.
struct BoundHost {
    BoundHost() {
        use_library(&functions);
        context.device = &nic.device;
        cm.nic = &context;
    }
    MockNic nic;
    Library functions = lib();
    MockCm cm{functions};
    ibv_context context{};
};

}  // namespace

Test(nics, an_address_has_the_port_that_rdma_cm_binds_it_to) {
    const BoundHost host;
    const std::vector<NicAddress> found = nics_at(kBound);
    RVT_EQ(found.size(), 2);
    RVT_ASSERT(found[0].device == "mock0" && found[1].device == "mock0");
    RVT_EQ(found[0].port, 1);
    for (std::size_t i = 0; i < found.size(); ++i) {
        RVT_ASSERT(found[i].address.ip == kBound[i].ip);
        RVT_EQ(found[i].address.port, 0);
    }
    RVT_EQ(host.cm.live(), 0);
}

Test(nics, an_interface_of_ip_over_infiniband_has_a_gid_and_a_p_key) {
    BoundHost host;
    host.cm.ib.sgid.raw[15] = 9;
    host.cm.ib.pkey = htons(0x8005);
    const std::vector<NicAddress> found = nics_at({kBound, 1});
    RVT_EQ(found.size(), 1);
    RVT_EQ(found[0].gid[15], 9);
    RVT_EQ(found[0].pkey, 0x8005);
}

Test(nics, an_address_that_no_nic_has_has_none) {
    BoundHost host;
    host.cm.nic = nullptr;
    RVT_ASSERT(nics_at(kBound).empty());
    for (const char* call : {"bind_addr", "create_id", "create_event_channel"}) {
        host.cm.nic = &host.context;
        host.cm.failing = call;
        RVT_ASSERT(nics_at(kBound).empty());
        RVT_EQ(host.cm.live(), 0);
    }
}

}  // namespace rvt::verbs
