// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Looking for NICs.
#include "backend/verbs/nics.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>

#include <arpa/inet.h>
#include <endian.h>

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

std::uint64_t guid_of(ibv_device& device) noexcept {
    return be64toh(lib().ibv_get_device_guid(&device));
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
                 .address = address,
                 .guid = guid_of(*id->verbs->device)};
        found->address.port = 0;
        const rdma_ib_addr& ib = id->route.addr.addr.ibaddr;
        std::memcpy(found->gid.data(), ib.sgid.raw, found->gid.size());
        found->pkey = ntohs(ib.pkey);
    }
    rdma.rdma_destroy_id(id);
    return found;
}

/// The devices that rdma_cm keeps open are called there as they were when it opened them. What
/// only one device has leads from there to what libibverbs calls that now.
void name_anew(std::vector<NicAddress>& nics) {
    int count = 0;
    const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(
        lib().ibv_get_device_list(&count), lib().ibv_free_device_list);
    const std::span<ibv_device*> devices(list.get(), list != nullptr ? std::size_t(count) : 0);
    for (NicAddress& nic : nics) {
        const auto has_guid = [&](ibv_device* one) { return guid_of(*one) == nic.guid; };
        const auto owners = std::ranges::count_if(devices, has_guid);
        if (nic.guid == 0 || owners > 1) {
            nic.guid = 0;
        } else if (owners == 1) {
            nic.device = lib().ibv_get_device_name(*std::ranges::find_if(devices, has_guid));
        }
    }
}

std::string guid_text(std::uint64_t guid) {
    std::array<char, 20> text{};
    std::snprintf(text.data(), text.size(), "%04x:%04x:%04x:%04x",
                  static_cast<unsigned>(guid >> 48), static_cast<unsigned>(guid >> 32 & 0xffff),
                  static_cast<unsigned>(guid >> 16 & 0xffff), static_cast<unsigned>(guid & 0xffff));
    return text.data();
}

bool is_bound_to(const NicAddress& nic, const util::SockAddr& address) noexcept {
    return nic.address.family == address.family && nic.address.ip == address.ip;
}

/// What a device's name means: the device that has the address now, as names change hands.
const NicAddress* find_named(std::span<const NicAddress> all, const NicWanted& wanted) {
    const bool is_at_address = wanted.source.family != 0 && !wanted.source.is_any();
    const auto found = std::ranges::find_if(all, [&](const NicAddress& one) {
        return is_at_address ? is_bound_to(one, wanted.source) : one.device == wanted.name;
    });
    const bool is_it = found != all.end() && (found->device == wanted.name || !wanted.is_interface);
    return is_it ? &*found : nullptr;
}

}  // namespace

std::string identity_of(const NicAddress& nic) {
    return nic.guid != 0 ? guid_text(nic.guid) : nic.device;
}

std::string stable_name(const NicAddress& nic) {
    return nic.guid != 0 ? guid_text(nic.guid) + "/" + std::to_string(nic.port) : "";
}

bool is_device_of(const NicAddress& nic, ibv_device& device) noexcept {
    return nic.guid != 0 ? guid_of(device) == nic.guid
                         : nic.device == lib().ibv_get_device_name(&device);
}

const NicAddress* find_wanted(std::span<const NicAddress> all, const NicWanted& wanted) {
    if (wanted.name.find('/') != std::string_view::npos) {  // a stable one, and no device's
        const auto found = std::ranges::find(all, wanted.name, stable_name);
        return found != all.end() ? &*found : nullptr;
    }
    const NicAddress* const named = find_named(all, wanted);
    const std::string identity = !wanted.identity.empty() ? std::string(wanted.identity)
                                 : named != nullptr       ? identity_of(*named)
                                                          : "";
    const auto found = std::ranges::find(all, identity, identity_of);
    return found != all.end() ? &*found : nullptr;
}

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
    if (!found.empty()) {
        name_anew(found);
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
