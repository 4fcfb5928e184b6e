// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Asks the system for the addresses of its interfaces.
#include "ofi/local_addresses.h"

#include <ifaddrs.h>
#include <sys/socket.h>

namespace rvt::ofi {
namespace {

bool has_same_ip(const util::SockAddr& address, const ifaddrs& interface) {
    if (interface.ifa_addr == nullptr) {
        return false;
    }
    const std::size_t bytes =
        interface.ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const util::Result<util::SockAddr> own = util::SockAddr::from(interface.ifa_addr, bytes);
    return own.is_ok() && own.value().family == address.family && own.value().ip == address.ip;
}

}  // namespace

bool is_local_address(const util::SockAddr& address) {
    if (address.is_any() || address.is_loopback()) {
        return true;
    }
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    bool is_found = false;
    for (const ifaddrs* interface = all; interface != nullptr && !is_found;
         interface = interface->ifa_next) {
        is_found = has_same_ip(address, *interface);
    }
    freeifaddrs(all);
    return is_found;
}

}  // namespace rvt::ofi
