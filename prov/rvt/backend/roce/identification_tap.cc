// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The raw socket, and the filter that lets it have no more than headers.
#include "backend/roce/identification_tap.h"

#include "protocol/wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>

namespace rvt::roce {
namespace {

constexpr std::size_t kMaxIpBytes = 60;
constexpr std::size_t kSeenBytes = kMaxIpBytes + sizeof(udphdr) + protocol::kBthBytes;

/// Of packets to `port` whose identification is not below kLeast: from the IPv4 header to the base
/// transport header.
bool let_headers_pass(int fd, std::uint16_t port) noexcept {
    constexpr std::uint32_t kBehindIp = sizeof(udphdr) + protocol::kBthBytes;
    std::array program{
        sock_filter BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),  // the IPv4 header's length
        sock_filter BPF_STMT(BPF_LD | BPF_H | BPF_IND, offsetof(udphdr, dest)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 5),
        sock_filter BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(iphdr, id)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, IdentificationTap::kLeast, 0, 3),
        sock_filter BPF_STMT(BPF_MISC | BPF_TXA, 0),
        sock_filter BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, kBehindIp),
        sock_filter BPF_STMT(BPF_RET | BPF_A, 0),
        sock_filter BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog filter{program.size(), program.data()};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

}  // namespace

util::Result<std::unique_ptr<IdentificationTap>> IdentificationTap::open(const UdpSocket& beside) {
    util::SockAddr address = beside.port.address;
    util::UniqueFd fd(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP));
    if (!fd.is_open() || !let_headers_pass(fd.get(), address.port)) {
        return errno;
    }
    // The kernel counts a header as the packet it is of: where that finds room, so does this.
    ask_for_buffers(fd.get());
    address.port = 0;
    sockaddr_storage name{};
    const auto bytes = static_cast<socklen_t>(address.to(&name));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
        return errno;
    }
    std::unique_ptr<IdentificationTap> tap(new (std::nothrow)
                                               IdentificationTap(util::ProcessFd(std::move(fd))));
    if (tap == nullptr) {
        return ENOMEM;
    }
    return tap;
}

/// Returns: how many further headers there are now.
std::size_t IdentificationTap::receive() noexcept {
    std::array<std::array<std::byte, kSeenBytes>, kCall> seen;
    std::array<iovec, kCall> pieces;
    std::array<mmsghdr, kCall> messages{};
    for (std::size_t i = 0; i < kCall; ++i) {
        pieces[i] = {.iov_base = seen[i].data(), .iov_len = kSeenBytes};
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int received = receive_messages(socket_.get(), messages);
    for (int i = 0; i < received; ++i) {
        keep(seen[i].data(), messages[i].msg_len);
    }
    return static_cast<std::size_t>(std::max(received, 0));
}

void IdentificationTap::keep(const std::byte* packet, std::size_t bytes) noexcept {
    if (bytes < sizeof(iphdr)) {
        return;
    }
    iphdr ip{};
    std::memcpy(&ip, packet, sizeof ip);
    const std::size_t ip_bytes = std::size_t{4} * ip.ihl;
    if (bytes < ip_bytes + sizeof(udphdr) + protocol::kBthBytes) {
        return;
    }
    Header& header = kept_[next_];
    next_ = (next_ + 1) % kKept;
    std::memcpy(header.source.data(), &ip.saddr, header.source.size());
    header.identification = ntohs(ip.id);
    header.source_port = protocol::WireReader(packet + ip_bytes).u16();
    std::memcpy(header.bth.data(), packet + ip_bytes + sizeof(udphdr), header.bth.size());
}

bool IdentificationTap::find(const Header& wanted) noexcept {
    for (std::size_t i = 0; i < kKept; ++i) {
        const std::size_t at = (likely_ + i) % kKept;
        if (kept_[at] == wanted) {
            likely_ = (at + 1) % kKept;
            return true;
        }
    }
    return false;
}

bool IdentificationTap::has_come(const protocol::WirePacket& packet,
                                 std::uint16_t identification) noexcept {
    Header wanted{.source_port = packet.path.source_port, .identification = identification};
    const std::span<const std::uint8_t> mapped(packet.path.source);
    std::memcpy(wanted.source.data(), mapped.last(wanted.source.size()).data(),
                wanted.source.size());
    std::memcpy(wanted.bth.data(), packet.bytes.data(), wanted.bth.size());
    if (likely_ == next_) {
        receive();  // all that is kept has been asked about
    }
    for (unsigned i = 0; i < kMostCalls; ++i) {
        if (find(wanted)) {
            return true;
        }
        if (receive() == 0) {
            break;
        }
    }
    return false;
}

void IdentificationTap::pass_over() noexcept {
    if (likely_ != next_ || receive() != 0) {
        likely_ = (likely_ + 1) % kKept;  // a guess: find() looks at all
    }
}

}  // namespace rvt::roce
