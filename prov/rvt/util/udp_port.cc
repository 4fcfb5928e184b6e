// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Binding of UDP ports.
#include "util/udp_port.h"

#include <cstring>
#include <string>

#include <fcntl.h>

#include "util/log.h"
#include "util/port_owner.h"

namespace rvt::util {
namespace {

Status bind_socket(int socket, const SockAddr& address, PortUse use) noexcept {
    const int on = 1;
    if (use == PortUse::kShared &&
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
        return errno;
    }
    // An IPv6 address is that address alone: the same port stays free for IPv4.
    if (address.family == AF_INET6 &&
        setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) {
        return errno;
    }
    sockaddr_storage wanted{};
    const auto length = static_cast<socklen_t>(address.to(&wanted));
    return ::bind(socket, reinterpret_cast<const sockaddr*>(&wanted), length) == 0 ? kOk
                                                                                   : Status(errno);
}

Result<SockAddr> bound_address(int socket) noexcept {
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
        return errno;
    }
    return SockAddr::from(reinterpret_cast<const sockaddr*>(&bound), length);
}

std::string advice(const SockAddr& address, PortUse use, int error) {
    if (error == EADDRINUSE) {
        const std::string owner = udp_port_owner(address);
        return "; " + (owner.empty() ? "another process, or the kernel," : owner) +
               (use == PortUse::kFixed ? " owns this port, another address of this host may be free"
                                       : " owns this port, port 0 chooses a free one");
    }
    switch (error) {
        case EADDRNOTAVAIL: return "; this host has no such address";
        case EACCES: return "; the port is reserved for privileged programs";
        case EMFILE: return "; raise RLIMIT_NOFILE (ulimit -n)";
        default: return "";
    }
}

Status refuse(const SockAddr& address, PortUse use, int error) {
    RVT_WARN(kEpCtrl, "cannot bind udp port %s: %s%s", address.to_string().c_str(),
             strerrordesc_np(error), advice(address, use, error).c_str());
    return error;
}

}  // namespace

Result<UdpPort> bind_udp_port(const SockAddr& address, PortUse use) {
    const ForkHold hold;
    UdpPort port;
    port.socket = ProcessFd(
        UniqueFd(::socket(address.family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP)));
    if (!port.socket.is_open()) {
        return refuse(address, use, errno);
    }
    const Status status = bind_socket(port.socket.get(), address, use);
    if (!status.is_ok()) {
        return refuse(address, use, status.error());
    }
    const Result<SockAddr> bound = bound_address(port.socket.get());
    if (!bound.is_ok()) {
        return refuse(address, use, bound.error());
    }
    port.address = bound.value();
    return port;
}

Result<UdpPort> share(const UdpPort& port) {
    const ForkHold hold;
    UdpPort same;
    same.socket = ProcessFd(UniqueFd(fcntl(port.socket.get(), F_DUPFD_CLOEXEC, 0)));
    same.address = port.address;
    return same.socket.is_open() ? Result<UdpPort>(std::move(same)) : Result<UdpPort>(errno);
}

}  // namespace rvt::util
