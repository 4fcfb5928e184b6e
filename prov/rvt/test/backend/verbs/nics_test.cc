// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which NICs belong to addresses, as rdma_cm says.
#include "backend/verbs/nics.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <endian.h>

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

constexpr std::uint64_t kGuid = 0x505400fffe123456;

/// A NIC that has been renamed, and another that has got its name since.
const NicAddress kSwapped[] = {
    {.device = "mlx5_0", .port = 1, .address = kBound[1], .guid = kGuid + 1},
    {.device = "old", .port = 1, .address = kBound[0], .guid = kGuid},
    {.device = "old",
     .port = 2,
     .address = {.family = AF_INET, .ip = {10, 1, 2, 5}},
     .guid = kGuid},
};

/// Of kSwapped; -1: none.
std::ptrdiff_t meant_at(const NicWanted& wanted, std::span<const NicAddress> all = kSwapped) {
    const NicAddress* const found = find_wanted(all, wanted);
    return found != nullptr ? found - all.data() : -1;
}

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

/// rdma_cm keeps devices open, and calls them as they were called then.
Test(nics, a_device_that_was_renamed_is_called_as_it_is_now) {
    BoundHost host;
    ibv_device before = host.nic.device;
    host.nic.attr.node_guid = htobe64(kGuid);
    std::strcpy(host.nic.device.name, "renamed");
    host.context.device = &before;
    host.nic.others.push_back({.device = before, .guid = htobe64(kGuid + 1)});
    const std::vector<NicAddress> found = nics_at({kBound, 1});
    RVT_EQ(found.size(), 1);
    RVT_ASSERT(found[0].device == "renamed");
    RVT_ASSERT(is_device_of(found[0], before) && is_device_of(found[0], host.nic.device));
    RVT_ASSERT(!is_device_of(found[0], host.nic.others[0].device));
}

Test(nics, the_name_that_stays_is_the_node_guid_and_the_port) {
    BoundHost host;
    host.nic.attr.node_guid = htobe64(kGuid);
    const std::vector<NicAddress> found = nics_at({kBound, 1});
    RVT_ASSERT(stable_name(found[0]) == "5054:00ff:fe12:3456/1");
    RVT_ASSERT(identity_of(found[0]) == "5054:00ff:fe12:3456");
}

/// As devices of rxe over one interface and its VLANs have.
Test(nics, without_a_guid_of_its_own_a_device_has_no_name_that_stays) {
    BoundHost host;
    RVT_ASSERT(stable_name(nics_at({kBound, 1})[0]) == "");
    host.nic.attr.node_guid = htobe64(kGuid);
    host.nic.others.push_back({.device = host.nic.device, .guid = htobe64(kGuid)});
    std::strcpy(host.nic.others[0].device.name, "vlan");
    const std::vector<NicAddress> found = nics_at({kBound, 1});
    RVT_ASSERT(stable_name(found[0]) == "");
    RVT_ASSERT(identity_of(found[0]) == "mock0");
    RVT_ASSERT(is_device_of(found[0], host.nic.device));
    RVT_ASSERT(!is_device_of(found[0], host.nic.others[0].device));
}

Test(nics, a_name_that_stays_means_the_port_whatever_the_device_is_called) {
    RVT_EQ(meant_at({.name = "5054:00ff:fe12:3456/2"}), 2);
    RVT_EQ(meant_at({.name = "5054:00ff:fe12:3457/1", .source = kBound[0]}), 0);
    RVT_EQ(meant_at({.name = "5054:00ff:fe12:3458/1"}), -1);
    RVT_EQ(meant_at({.name = "5054:00ff:fe12:3458/1", .source = kBound[0]}), -1);
}

Test(nics, an_info_means_the_nic_that_it_was_of_not_who_has_got_its_name) {
    RVT_EQ(meant_at({.name = "mlx5_0", .source = kBound[0], .identity = "5054:00ff:fe12:3456"}), 1);
    RVT_EQ(meant_at({.name = "mlx5_0", .source = kBound[0]}), 1);  // another process had it
    RVT_EQ(meant_at({.name = "mlx5_0", .source = kBound[1]}), 0);
    RVT_EQ(meant_at({.name = "mlx5_0", .source = kSwapped[2].address}), 1);
}

Test(nics, an_info_of_a_nic_that_is_gone_means_none) {
    RVT_EQ(meant_at({.name = "mlx5_0", .source = kBound[1], .identity = "5054:00ff:fe12:3455"}),
           -1);
    const util::SockAddr gone{.family = AF_INET, .ip = {10, 9, 9, 9}};
    RVT_EQ(meant_at({.name = "mlx5_0", .source = gone}), -1);
}

Test(nics, without_an_address_a_name_is_that_of_now) {
    RVT_EQ(meant_at({.name = "mlx5_0"}), 0);
    RVT_EQ(meant_at({.name = "old", .source = {.family = AF_INET}}), 1);
    RVT_EQ(meant_at({.name = "older"}), -1);
}

Test(nics, the_name_of_an_interface_is_a_nics_only_if_that_is_called_so) {
    RVT_EQ(meant_at({.name = "eth0", .source = kBound[0], .is_interface = true}), -1);
    RVT_EQ(meant_at({.name = "old", .source = kBound[0], .is_interface = true}), 1);
}

}  // namespace rvt::verbs
