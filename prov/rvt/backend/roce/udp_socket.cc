// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Socket options, and the interface behind an address.
#include "backend/roce/udp_socket.h"

#include <algorithm>
#include <cstring>

#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "backend/roce/run_trial.h"
#include "core/device.h"
#include "protocol/header_sizes.h"
#include "util/log.h"

namespace rvt::roce {
namespace {

// What a burst of a few flows needs; the kernel gives at most net.core.rmem_max and wmem_max of it
// where the process may not ask for more.
constexpr int kBufferBytes = 4 << 20;
constexpr std::uint32_t kIpBytes = 20;
constexpr std::uint32_t kIp6Bytes = 40;
// Of IPv6 and UDP, the base header, those of a write with immediate data, and the ICRC.
constexpr std::uint32_t kHeaderBytes = kIp6Bytes + 8 + 12 + 16 + 4 + 4;

bool set(int fd, int level, int option, int value) noexcept {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/// Of an unconnected socket with this setting, each packet has identification 0, and segments of
/// one call have 0, 1, 2 ...
bool forbid_fragments(int fd, int family) noexcept {
    return family == AF_INET ? set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                             : set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
}

/// Keeps what hosts say of packets that they could not deliver, for read_refusal().
bool keep_errors(int fd, int family) noexcept {
    return family == AF_INET ? set(fd, IPPROTO_IP, IP_RECVERR, 1)
                             : set(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
}

/// The error that a report is of; 0: it names none.
std::uint32_t error_of(msghdr& report) noexcept {
    for (cmsghdr* one = CMSG_FIRSTHDR(&report); one != nullptr; one = CMSG_NXTHDR(&report, one)) {
        const bool is_error = (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_RECVERR) ||
                              (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_RECVERR);
        if (is_error) {
            sock_extended_err error{};
            std::memcpy(&error, CMSG_DATA(one), sizeof error);
            return error.ee_errno;
        }
    }
    return 0;
}

/// Calls `visit(interface)` for each address of each interface until it returns true.
/// Returns: ENODEV when it never did; errors of getifaddrs(3), which say nothing of interfaces.
template <class Visit>
Status find_interface(Visit visit) {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) {
        return errno;
    }
    bool found = false;
    for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
        found = one->ifa_addr != nullptr && visit(*one);
    }
    freeifaddrs(all);
    return found ? kOk : Status(ENODEV);
}

/// Several interfaces may have one link-local address: its scope says which.
bool has_ip(const ifaddrs& interface, util::SockAddr address) {
    if (address.is_loopback()) {
        return (interface.ifa_flags & IFF_LOOPBACK) != 0;  // it has all of 127.0.0.0/8
    }
    const std::size_t bytes =
        interface.ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const auto own = util::SockAddr::from(interface.ifa_addr, bytes);
    address.port = 0;
    return own.is_ok() && own.value() == address;
}

/// Datagrams to groups leave by the interface of the address, wherever routes lead.
bool send_groups_by(int fd, const util::SockAddr& address) {
    if (address.family == AF_INET) {
        in_addr own{};
        std::memcpy(&own, address.ip.data(), sizeof own);
        return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &own, sizeof own) == 0;
    }
    return set(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface_of(address)));
}

/// A hop limit of 0 ends at the members of this host.
bool keep_groups_here(int fd, int family) noexcept {
    return family == AF_INET ? set(fd, IPPROTO_IP, IP_MULTICAST_TTL, 0)
                             : set(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 0);
}

/// The address of all interfaces is none that packets come from.
bool is_one_address(const util::SockAddr& address) {
    if (address.is_any()) {
        RVT_WARN(kEpCtrl, "cannot open a RoCEv2 socket on %s: it needs one address of this host",
                 address.to_string().c_str());
    }
    return !address.is_any();
}

bool join_v4(int fd, const util::SockAddr& group, const util::SockAddr& own) noexcept {
    ip_mreqn request{};
    std::memcpy(&request.imr_multiaddr, group.ip.data(), sizeof request.imr_multiaddr);
    std::memcpy(&request.imr_address, own.ip.data(), sizeof request.imr_address);
    // What other sockets have joined by other interfaces is not for this one.
    return set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) &&
           setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) == 0;
}

bool join_v6(int fd, const util::SockAddr& group, unsigned interface) noexcept {
    ipv6_mreq request{};
    std::memcpy(&request.ipv6mr_multiaddr, group.ip.data(), sizeof request.ipv6mr_multiaddr);
    request.ipv6mr_interface = interface;
    // IPV6_MULTICAST_ALL, unlike that of join_v4(), leaves what has come by an interface where
    // another socket has joined the group. Of link-local scope, a group is bound already, and older
    // kernels refuse: then it stays with that.
    set(fd, SOL_SOCKET, SO_BINDTOIFINDEX, static_cast<int>(interface));
    return set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0) &&
           setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &request, sizeof request) == 0;
}

/// Of both kinds of socket.
void ask_for_joining(UdpSocket& socket, bool may_join) noexcept {
    // Kernel rxe sends no UDP checksums, which IPv6 otherwise drops; the ICRC covers more.
    if (socket.port.address.family == AF_INET6) {
        set(socket.fd(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
    }
    ask_for_buffers(socket.fd());
    if (may_join) {
        set(socket.fd(), IPPROTO_UDP, UDP_GRO, 1);
    }
}

/// Names one end of a socket, with bind(2) or connect(2).
bool name_end(int (*call)(int, const sockaddr*, socklen_t), int fd, const util::SockAddr& address) {
    sockaddr_storage name{};
    const auto bytes = static_cast<socklen_t>(address.to(&name));
    return call(fd, reinterpret_cast<const sockaddr*>(&name), bytes) == 0;
}

/// Of packets of that many bytes, rounded down; may be less than any device has.
std::uint32_t payload_within(std::uint32_t mtu) noexcept {
    const std::uint32_t payload = std::min(mtu - std::min(mtu, kHeaderBytes), kMaxPayload);
    return payload / core::kPayloadStep * core::kPayloadStep;
}

/// Returns: ENODEV when it has gone; errors of socket(2).
Result<std::uint32_t> link_mtu(const char* interface) noexcept {
    const util::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, interface, sizeof request.ifr_name - 1);
    if (!fd.is_open() || ioctl(fd.get(), SIOCGIFMTU, &request) != 0) {
        return errno;
    }
    return static_cast<std::uint32_t>(std::max(request.ifr_mtu, 0));
}

/// Returns: errors of socket(2), bind(2) and connect(2).
Result<std::uint32_t> path_mtu(util::SockAddr own, const util::SockAddr& dest) noexcept {
    const util::UniqueFd fd(::socket(own.family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    own.port = 0;
    // The route may depend on the address that packets come from.
    if (!fd.is_open() || !name_end(bind, fd.get(), own) || !name_end(connect, fd.get(), dest)) {
        return errno;
    }
    int mtu = 0;
    socklen_t bytes = sizeof mtu;
    const bool is_v4 = own.family == AF_INET;
    if (getsockopt(fd.get(), is_v4 ? IPPROTO_IP : IPPROTO_IPV6, is_v4 ? IP_MTU : IPV6_MTU, &mtu,
                   &bytes) != 0) {
        return errno;
    }
    return static_cast<std::uint32_t>(mtu);
}

}  // namespace

void ask_for_buffers(int fd) noexcept {
    if (!set(fd, SOL_SOCKET, SO_RCVBUFFORCE, kBufferBytes)) {
        set(fd, SOL_SOCKET, SO_RCVBUF, kBufferBytes);
    }
    if (!set(fd, SOL_SOCKET, SO_SNDBUFFORCE, kBufferBytes)) {
        set(fd, SOL_SOCKET, SO_SNDBUF, kBufferBytes);
    }
}

Result<UdpSocket> open_udp_socket(const util::SockAddr& address) {
    auto port = util::bind_udp_port(address);
    return port.is_ok() ? open_udp_socket(port.take()) : port.status();
}

Result<UdpSocket> open_udp_socket(util::UdpPort port) {
    const util::SockAddr address = port.address;
    if (!is_one_address(address)) {
        return EADDRNOTAVAIL;
    }
    UdpSocket socket{.port = std::move(port)};
    if (!forbid_fragments(socket.fd(), address.family) ||
        !keep_errors(socket.fd(), address.family) || !send_groups_by(socket.fd(), address)) {
        return errno;
    }
    const bool may_join = may_join_packets(address.family);
    ask_for_joining(socket, may_join);
    socket.can_segment = may_join && set(socket.fd(), IPPROTO_UDP, UDP_SEGMENT, 0);
    return socket;
}

Result<UdpSocket> open_group_sender(util::UdpPort port) {
    const util::SockAddr address = port.address;
    if (!is_one_address(address)) {
        return EADDRNOTAVAIL;
    }
    UdpSocket socket{.port = std::move(port)};
    if (!forbid_fragments(socket.fd(), address.family) || !send_groups_by(socket.fd(), address) ||
        !keep_groups_here(socket.fd(), address.family)) {
        return errno;
    }
    return socket;
}

Result<UdpSocket> open_group_socket(util::SockAddr group, const util::SockAddr& own) {
    const unsigned interface = interface_of(own);
    group.scope_id = group.family == AF_INET6 ? interface : 0;
    auto port = util::bind_udp_port(group, util::PortUse::kShared);
    if (!port.is_ok()) {
        return port.status();
    }
    UdpSocket socket{.port = port.take()};
    const bool has_joined = group.family == AF_INET ? join_v4(socket.fd(), group, own)
                                                    : join_v6(socket.fd(), group, interface);
    if (!has_joined) {
        return errno;
    }
    ask_for_joining(socket, may_join_packets(group.family));
    return socket;
}

Status send_groups_by_interface(const UdpSocket& socket) {
    return send_groups_by(socket.fd(), socket.port.address) ? kOk : Status(errno);
}

Result<Refusal> read_refusal(const UdpSocket& socket) noexcept {
    sockaddr_storage name{};
    alignas(cmsghdr) std::byte control[512];
    std::byte bth[protocol::kBthBytes] = {};
    iovec start{bth, sizeof bth};
    msghdr header{};
    header.msg_name = &name;
    header.msg_iov = &start;
    header.msg_iovlen = 1;
    header.msg_control = control;
    for (;;) {
        header.msg_namelen = sizeof name;
        header.msg_controllen = sizeof control;
        const ssize_t bytes = recvmsg(socket.fd(), &header, MSG_ERRQUEUE | MSG_DONTWAIT);
        if (bytes < 0) {
            return ENODATA;
        }
        const auto dest =
            util::SockAddr::from(reinterpret_cast<const sockaddr*>(&name), header.msg_namelen);
        const std::uint32_t error = dest.is_ok() ? error_of(header) : 0;
        if (error == ECONNREFUSED && bytes == sizeof bth) {
            const auto qpn = [&](std::size_t i) { return std::to_integer<std::uint32_t>(bth[i]); };
            return Refusal{.dest = dest.value(), .dest_qpn = qpn(5) << 16 | qpn(6) << 8 | qpn(7)};
        }
        if (error == EMSGSIZE) {
            return Refusal{.reason = Refusal::Reason::kTooLarge, .dest = dest.value()};
        }
    }
}

int send_messages(int fd, std::span<mmsghdr> messages) noexcept {
    return static_cast<int>(
        util::system_call(SYS_sendmmsg, fd, reinterpret_cast<long>(messages.data()),
                          static_cast<long>(messages.size()), MSG_DONTWAIT, 0, 0));
}

int send_message(int fd, const msghdr& message) noexcept {
    const long sent =
        util::system_call(SYS_sendmsg, fd, reinterpret_cast<long>(&message), MSG_DONTWAIT, 0, 0, 0);
    return sent < 0 ? static_cast<int>(sent) : 1;
}

int receive_messages(int fd, std::span<mmsghdr> messages) noexcept {
    return static_cast<int>(
        util::system_call(SYS_recvmmsg, fd, reinterpret_cast<long>(messages.data()),
                          static_cast<long>(messages.size()), MSG_DONTWAIT, 0, 0));
}

Result<std::uint32_t> payload_of(const util::SockAddr& address) {
    Result<std::uint32_t> link = ENODEV;
    const Status found = find_interface([&](const ifaddrs& interface) {
        const bool has_address = has_ip(interface, address);
        if (has_address) {
            link = link_mtu(interface.ifa_name);
        }
        return has_address;
    });
    if (!found.is_ok()) {
        return found;
    }
    if (!link.is_ok()) {
        return link;
    }
    const std::uint32_t payload = payload_within(link.value());
    return payload < core::kMinPayload ? Result<std::uint32_t>(EMSGSIZE) : payload;
}

Result<std::uint32_t> path_payload_of(const util::SockAddr& own,
                                      const util::SockAddr& dest) noexcept {
    const auto mtu = path_mtu(own, dest);
    return mtu.is_ok() ? std::max(payload_within(mtu.value()), core::kMinPayload) : mtu;
}

bool path_takes(const util::SockAddr& own, const util::SockAddr& dest, std::size_t bytes) noexcept {
    const auto mtu = path_mtu(own, dest);
    const std::size_t headers = sizeof(udphdr) + (own.family == AF_INET ? kIpBytes : kIp6Bytes);
    return mtu.is_ok() && headers + bytes <= mtu.value();
}

unsigned interface_of(const util::SockAddr& address) {
    unsigned index = 0;
    [[maybe_unused]] const Status found = find_interface([&](const ifaddrs& interface) {
        index = has_ip(interface, address) ? if_nametoindex(interface.ifa_name) : 0;
        return index != 0;
    });
    return index;
}

}  // namespace rvt::roce
