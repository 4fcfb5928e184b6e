// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Looking for NICs.
#include "backend/verbs/nics.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>

#include <arpa/inet.h>

#include "backend/verbs/library.h"
#include "util/local_addresses.h"

namespace rvt::verbs {
namespace {

/// Spares hosts without RDMA devices the loading of rdma-core.
bool has_devices() {
    std::error_code error;
    const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
    return !error && devices != std::filesystem::directory_iterator();
}

using EventChannel = std::unique_ptr<rdma_event_channel, void (*)(rdma_event_channel*)>;

std::optional<NicAddress> nic_of(rdma_event_channel* events, const util::SockAddr& address) {
    const Library& rdma = lib();
    rdma_cm_id* id = nullptr;
    if (rdma.rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) != 0) {
        return {};
    }
    sockaddr_storage own{};
    address.to(&own);
    std::optional<NicAddress> found;
    if (rdma.rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&own)) == 0 && id->verbs != nullptr) {
        found = {.device = rdma.ibv_get_device_name(id->verbs->device),
                 .port = id->port_num,
                 .address = address};
        found->address.port = 0;
        const rdma_ib_addr& ib = id->route.addr.addr.ibaddr;
        std::memcpy(found->gid.data(), ib.sgid.raw, found->gid.size());
        found->pkey = ntohs(ib.pkey);
    }
    rdma.rdma_destroy_id(id);
    return found;
}

}  // namespace

std::vector<NicAddress> nics_at(std::span<const util::SockAddr> addresses) {
    std::vector<NicAddress> found;
    const EventChannel events(lib().rdma_create_event_channel(), lib().rdma_destroy_event_channel);
    if (events == nullptr) {
        return found;  // its module is not loaded
    }
    for (const util::SockAddr& address : addresses) {
        if (auto nic = nic_of(events.get(), address)) {
            found.push_back(*std::move(nic));
        }
    }
    return found;
}

std::vector<NicAddress> find_nics() {
    if (!has_devices() || library() == nullptr) {
        return {};
    }
    std::vector<NicAddress> found;
    for (const int family : {AF_INET, AF_INET6}) {
        for (NicAddress& nic : nics_at(util::network_addresses(family))) {
            found.push_back(std::move(nic));
        }
    }
    std::ranges::stable_sort(found, [](const NicAddress& a, const NicAddress& b) {
        return std::tie(a.device, a.port) < std::tie(b.device, b.port);
    });
    return found;
}

}  // namespace rvt::verbs
