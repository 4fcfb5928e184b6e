// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A UDP socket set up for RoCEv2: packets leave with "don't fragment", hence with an IPv4
// identification that the ICRC can foresee, and the kernel cuts and joins runs of packets where it
// can. ip(7), udp(7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/socket.h>
#include <sys/syscall.h>

#include "util/cpu.h"
#include "util/system_call.h"
#include "util/udp_port.h"

namespace rvt::roce {

struct UdpSocket {
    util::UdpPort port;
    // UDP_SEGMENT: one call sends many packets of one size, and they arrive (may_join_packets()).
    bool can_segment = false;

    [[nodiscard]] int fd() const noexcept { return port.socket.get(); }
};

/// Binds `address`, which has to be one IP address of this host; port 0 lets the system choose a
/// port.
/// Returns: errors of util::bind_udp_port(); EADDRNOTAVAIL for the address of all interfaces: the
///          ICRC covers the one that packets come from.
Result<UdpSocket> open_udp_socket(const util::SockAddr& address);
/// The same with a port that is bound already.
Result<UdpSocket> open_udp_socket(util::UdpPort port);

/// Asks for the room that a burst of a few flows needs.
void ask_for_buffers(int fd) noexcept;

/// sendmmsg(2) and recvmmsg(2) without waiting. Unlike the C library's these are no cancellation
/// points: a thread that ended in one would keep the locks of its queue. Returns: how many
/// messages, or an error less than 0.
int send_messages(int fd, std::span<mmsghdr> messages) noexcept;
int receive_messages(int fd, std::span<mmsghdr> messages) noexcept;
/// The same for one message, by sendmsg(2). Returns: 1, or an error less than 0.
int send_message(int fd, const msghdr& message) noexcept;
/// The same for one of one piece without control data, for which the kernel has less to
/// read (sendto(2)).
RVT_ALWAYS_INLINE int send_packet(int fd, const msghdr& message) noexcept {
    const iovec& piece = *message.msg_iov;
    const long sent = util::system_call(SYS_sendto, fd, reinterpret_cast<long>(piece.iov_base),
                                        static_cast<long>(piece.iov_len), MSG_DONTWAIT,
                                        reinterpret_cast<long>(message.msg_name),
                                        static_cast<long>(message.msg_namelen));
    return sent < 0 ? static_cast<int>(sent) : 1;
}
/// The same into the first piece of one message, whose control data is none afterwards: recvfrom(2)
/// finds out sooner than recvmmsg(2) that there is none. Of packets that the kernel has joined it
/// does not say where they end. Returns: 1, or an error less than 0.
RVT_ALWAYS_INLINE int receive_packet(int fd, mmsghdr& message) noexcept {
    msghdr& header = message.msg_hdr;
    const iovec& piece = *header.msg_iov;
    const long bytes = util::system_call(SYS_recvfrom, fd, reinterpret_cast<long>(piece.iov_base),
                                         static_cast<long>(piece.iov_len), MSG_DONTWAIT,
                                         reinterpret_cast<long>(header.msg_name),
                                         reinterpret_cast<long>(&header.msg_namelen));
    if (bytes < 0) {
        return static_cast<int>(bytes);
    }
    header.msg_controllen = 0;
    message.msg_len = static_cast<unsigned>(bytes);
    return 1;
}
/// A socket that sends to groups, by the interface of its address and to members on this host.
/// Returns: EADDRNOTAVAIL as open_udp_socket(); errors of setsockopt(2).
Result<UdpSocket> open_group_sender(util::UdpPort port);
/// A socket for what is sent to a group, by the interface of `own`. Others of this host may have
/// one for the same group. Returns: errors of util::bind_udp_port() and of setsockopt(2): ENODEV
/// when no interface has
///          `own`, ENOBUFS when the host joins no more groups (net.ipv4.igmp_max_memberships).
Result<UdpSocket> open_group_socket(util::SockAddr group, const util::SockAddr& own);
/// Has a socket of the first two kinds send to groups by the interface that has its address now.
/// Returns: errors of setsockopt(2).
Status send_groups_by_interface(const UdpSocket& socket);

/// What became of a packet that did not arrive.
struct Refusal {
    enum class Reason : std::uint8_t { kNobody, kTooLarge };
    Reason reason = Reason::kNobody;  // listens at the port, or the way there takes less
    util::SockAddr dest;
    std::uint32_t dest_qpn = 0;  // where nobody listens
};
/// Takes the next report of such a packet. Returns: ENODATA when there is no further one.
/// Source:  IP_RECVERR of ip(7).
Result<Refusal> read_refusal(const UdpSocket& socket) noexcept;

/// The largest payload of a RoCEv2 packet that the interface of `address` takes, as in DeviceInfo;
/// headers take up to 84 bytes beside it.
/// Returns: ENODEV when no interface has the address, EMSGSIZE when it takes less than 256 bytes;
///          EMFILE and the like, which say nothing of it.
Result<std::uint32_t> payload_of(const util::SockAddr& address);

/// The same of the way from `own`, an address of this host, to `dest`, as its routes and routers
/// have told by now; at least core::kMinPayload.
/// Returns: errors of socket(2), bind(2) and connect(2).
/// Source:  IP_MTU of ip(7), IPV6_MTU of ipv6(7).
Result<std::uint32_t> path_payload_of(const util::SockAddr& own,
                                      const util::SockAddr& dest) noexcept;
/// Whether that way takes a packet of so many bytes behind its UDP header, as far as is known.
bool path_takes(const util::SockAddr& own, const util::SockAddr& dest, std::size_t bytes) noexcept;

/// The number that the kernel has for the interface of `address`; 0: none has it.
unsigned interface_of(const util::SockAddr& address);

}  // namespace rvt::roce
