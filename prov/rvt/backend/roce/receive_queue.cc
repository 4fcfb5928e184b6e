// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Cutting messages into packets, and their ICRCs.
#include "backend/roce/receive_queue.h"

#include "backend/roce/addresses.h"
#include "protocol/header_sizes.h"
#include "protocol/icrc.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <endian.h>
#include <netinet/udp.h>

namespace rvt::roce {
namespace {

constexpr std::uint16_t kRocePort = 4791;
// What this backend sends has identification 0, or its place in a message of the kernel's.
constexpr std::uint16_t kMostSegments = 64;

/// Of how many bytes each packet of a message is, but for the last; the message's own length where
/// the kernel joined none.
std::size_t segment_bytes(msghdr& header, std::size_t bytes) noexcept {
    for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
        if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
            int size = 0;
            std::memcpy(&size, CMSG_DATA(one), sizeof size);
            return size > 0 ? static_cast<std::size_t>(size) : bytes;
        }
    }
    return bytes;
}

/// Whether the packet is whole. The IPv4 identification, which a socket does not show, may be any
/// that such a peer sends.
bool is_whole(const protocol::IpPath& path, std::span<const std::byte> packet, std::uint32_t icrc,
              std::uint16_t segment) noexcept {
    const std::uint32_t difference = icrc ^ protocol::icrc_of(path, packet, segment);
    if (difference == 0) [[likely]] {
        return true;
    }
    if (to_sock_addr({.gid = path.source, .port = 0}).family != AF_INET) {
        return false;
    }
    const auto changed = protocol::identification_of(difference, packet.size());
    if (!changed) {
        return false;
    }
    // Linear: what explains the difference is the difference of the identifications.
    return path.dest_port == kRocePort || (*changed ^ segment) < kMostSegments;
}

}  // namespace

ReceiveQueue::ReceiveQueue(const UdpSocket& socket) noexcept
    : socket_(socket), own_(to_address(socket.port.address)) {}

void ReceiveQueue::prepare() noexcept {
    for (std::size_t i = 0; i < kMessages; ++i) {
        batch_->pieces[i] = {.iov_base = batch_->bytes[i].data(), .iov_len = kMessageBytes};
        msghdr& header = batch_->headers[i].msg_hdr;
        header = {};
        header.msg_name = &batch_->names[i];
        header.msg_namelen = sizeof batch_->names[i];
        header.msg_iov = &batch_->pieces[i];
        header.msg_iovlen = 1;
        header.msg_control = batch_->controls[i].data();
        header.msg_controllen = kControlBytes;
    }
}

unsigned ReceiveQueue::poll(core::Device& device, bool has_report) noexcept {
    if (batch_ == nullptr) {
        batch_.reset(new (std::nothrow) Batch);
        if (batch_ == nullptr) {
            return 0;
        }
    }
    prepare();
    const int messages =
        recvmmsg(socket_.fd(), batch_->headers.data(), kMessages, MSG_DONTWAIT, nullptr);
    if (has_report || (messages < 0 && errno != EAGAIN)) {
        take_refusals(device);
    }
    unsigned packets = 0;
    for (int i = 0; i < messages; ++i) {
        const auto at = static_cast<std::size_t>(i);
        packets += deliver_message(device, at, batch_->headers[at].msg_len);
    }
    return packets;
}

/// Passes on what hosts have said of ports where nothing listens.
void ReceiveQueue::take_refusals(core::Device& device) noexcept {
    for (auto peer = read_refusal(socket_); peer.is_ok(); peer = read_refusal(socket_)) {
        peer_refused(device, to_address(peer.value()));
    }
}

/// Returns: how many packets of the message were whole.
unsigned ReceiveQueue::deliver_message(core::Device& device, std::size_t i,
                                       std::size_t bytes) noexcept {
    msghdr& header = batch_->headers[i].msg_hdr;
    const auto from = util::SockAddr::from(reinterpret_cast<const sockaddr*>(&batch_->names[i]),
                                           header.msg_namelen);
    if (!from.is_ok()) {
        return 0;
    }
    const Address source = to_address(from.value());
    const std::size_t each = segment_bytes(header, bytes);
    const std::span<const std::byte> all(batch_->bytes[i].data(), bytes);
    unsigned whole = 0;
    std::uint16_t segment = 0;
    for (std::size_t at = 0; at < bytes; at += each, ++segment) {
        const auto packet = all.subspan(at, std::min(each, bytes - at));
        whole += deliver_one(device, source, packet, segment) ? 1 : 0;
    }
    return whole;
}

bool ReceiveQueue::deliver_one(core::Device& device, const Address& source,
                               std::span<const std::byte> packet, std::uint16_t segment) noexcept {
    if (packet.size() < protocol::kBthBytes + protocol::kIcrcBytes) {
        count_corrupted();
        return false;
    }
    const auto body = packet.first(packet.size() - protocol::kIcrcBytes);
    std::uint32_t icrc = 0;
    std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
    const protocol::IpPath path{
        .source = source.gid, .dest = own_.gid, .source_port = source.port, .dest_port = own_.port};
    if (!is_whole(path, body, le32toh(icrc), segment)) {
        count_corrupted();
        return false;
    }
    // Peers at the port of the specification send from any: each of their pairs has one of its own.
    const std::uint16_t port = own_.port == kRocePort ? std::uint16_t{0} : source.port;
    deliver_packet(device, {.gid = source.gid, .port = port}, own_.gid, body);
    return true;
}

}  // namespace rvt::roce
