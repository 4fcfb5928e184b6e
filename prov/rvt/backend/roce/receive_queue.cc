// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Cutting messages into packets, and their ICRCs.
#include "backend/roce/receive_queue.h"

#include "core/addresses.h"
#include "core/device.h"
#include "protocol/header_sizes.h"
#include "protocol/icrc.h"
#include "util/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>

#include <endian.h>
#include <netinet/udp.h>

namespace rvt::roce {
namespace {

constexpr std::uint16_t kRocePort = 4791;
// What this backend sends has identification 0, or its place in a message of the kernel's.
constexpr std::uint16_t kMostSegments = IdentificationTap::kLeast;

/// Of how many bytes each packet of a message is, but for the last; the message's own length where
/// the kernel joined none.
std::size_t segment_bytes(msghdr& header, std::size_t bytes) noexcept {
    if (header.msg_controllen == 0) {
        return bytes;
    }
    for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
        if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
            int size = 0;
            std::memcpy(&size, CMSG_DATA(one), sizeof size);
            return size > 0 ? static_cast<std::size_t>(size) : bytes;
        }
    }
    return bytes;
}

/// Whether two names of so many bytes are the same.
bool is_same(const sockaddr_storage& a, const sockaddr_storage& b, socklen_t bytes) noexcept {
    return bytes == sizeof(sockaddr_in) ? std::memcmp(&a, &b, sizeof(sockaddr_in)) == 0
                                        : std::memcmp(&a, &b, bytes) == 0;
}

/// With which identification the packet is whole. That of IPv4, which a socket does not show, may
/// be any that such a peer sends. Returns: nothing when the packet is not whole.
RVT_ALWAYS_INLINE std::optional<std::uint16_t> true_identification(
    const protocol::WirePacket& packet) noexcept {
    if (packet.bytes.size() < protocol::kBthBytes + protocol::kIcrcBytes) {
        return std::nullopt;
    }
    const auto body = packet.bytes.first(packet.bytes.size() - protocol::kIcrcBytes);
    std::uint32_t icrc = 0;
    std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
    const std::uint32_t difference =
        le32toh(icrc) ^ protocol::icrc_of(packet.path, body, packet.identification);
    if (difference == 0) [[likely]] {
        return packet.identification;
    }
    if (!protocol::is_v4(packet.path.source)) {
        return std::nullopt;
    }
    const auto changed = protocol::identification_of(difference, body.size());
    if (!changed) {
        return std::nullopt;
    }
    // Linear: what explains the difference is the difference of the identifications.
    const auto identification = static_cast<std::uint16_t>(*changed ^ packet.identification);
    const bool may_be_any = packet.path.dest_port == kRocePort;
    return may_be_any || identification < kMostSegments ? std::optional(identification)
                                                        : std::nullopt;
}

/// What shows the identifications of packets to the port of all devices; none where they need not
/// be known, or may not be.
std::unique_ptr<IdentificationTap> open_tap(const UdpSocket& socket) {
    const util::SockAddr& own = socket.port.address;
    if (own.port != kRocePort || own.family != AF_INET) {
        return nullptr;
    }
    auto tap = IdentificationTap::open(socket);
    if (!tap.is_ok()) {
        RVT_INFO(kEpCtrl,
                 "of the ICRC of packets to %s 16 bits are checked: it covers the IPv4 "
                 "identification, which a raw socket would show (%s)",
                 own.to_string().c_str(), strerrordesc_np(tap.status().error()));
        return nullptr;
    }
    return tap.take();
}

}  // namespace

ReceiveQueue::ReceiveQueue(const UdpSocket& socket, const protocol::FaultPlan& faults,
                           protocol::PcapInterface capture) noexcept
    : socket_(socket),
      own_(core::to_address(socket.port.address)),
      capture_(std::move(capture)),
      faults_(faults.has_faults() ? std::make_unique<protocol::FaultyLine>(faults) : nullptr),
      is_plain_(faults_ == nullptr && !capture_.is_on()),
      tap_(open_tap(socket)) {}

/// Sets up what receives find there.
void ReceiveQueue::prepare() noexcept {
    for (std::size_t i = 0; i < kMessages; ++i) {
        batch_->pieces[i] = {.iov_base = batch_->bytes[i].data(), .iov_len = kMessageBytes};
        batch_->headers[i].msg_hdr = {.msg_name = &batch_->names[i],
                                      .msg_namelen = sizeof batch_->names[i],
                                      .msg_iov = &batch_->pieces[i],
                                      .msg_iovlen = 1,
                                      .msg_control = batch_->controls[i].data(),
                                      .msg_controllen = kControlBytes,
                                      .msg_flags = 0};
    }
}

/// What the last call asks for, before the next one rather than behind it: who has a message goes
/// on with that first.
void ReceiveQueue::make_ready() noexcept {
    ++in_row_;
    if (taken_ < wanted_) {
        note_vain();  // the call has looked further itself
    } else if (asks_where_packets_end()) {
        wanted_ = more_than(taken_);
    }
    asked_left_ -= std::min(asked_left_, static_cast<unsigned>(taken_));
    for (std::size_t i = 0; i < taken_; ++i) {
        msghdr& header = batch_->headers[i].msg_hdr;
        header.msg_namelen = sizeof batch_->names[i];
        header.msg_controllen = kControlBytes;
    }
    taken_ = 0;
}

/// Returns: how many messages have come, or an error less than 0.
int ReceiveQueue::receive_many() noexcept {
    if (batch_ == nullptr) [[unlikely]] {
        batch_.reset(new (std::nothrow) Batch);
        if (batch_ == nullptr) {
            return -ENOMEM;
        }
        prepare();
        may_cut_ = is_plain_ && own_.port != kRocePort;
    }
    return receive_messages(socket_.fd(), std::span(batch_->headers).first(wanted_));
}

/// What a call has brought: `received` messages, or an error less than 0.
unsigned ReceiveQueue::take_in(core::Device& device, int received, bool asked,
                               bool has_report) noexcept {
    if (has_report || (received < 0 && received != -EAGAIN)) {
        take_refusals(device);
    }
    const auto messages = static_cast<std::size_t>(std::max(received, 0));
    taken_ = messages;
    if (messages == 0) {
        note_vain();
        if (capture_.is_on()) [[unlikely]] {
            capture_.writer().flush_when_idle();
        }
    }
    if (!asked && messages != 0) [[likely]] {
        return deliver_joined(device);
    }
    unsigned whole = 0;
    if (faults_ != nullptr) [[unlikely]] {
        whole = deliver_through_faults(device, messages);
    } else {
        for_each_packet(messages, [&](const protocol::WirePacket& packet) {
            whole += deliver_one(device, packet) ? 1 : 0;
        });
    }
    return whole;
}

/// How many messages to ask for after a call that has brought as many as it was asked for.
std::size_t ReceiveQueue::more_than(std::size_t messages) const noexcept {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < messages; ++i) {
        bytes += batch_->headers[i].msg_len;
    }
    const std::size_t mean = std::max<std::size_t>(bytes / messages, 1);
    return std::min({2 * messages, kMessages, std::max<std::size_t>(kCallBytes / mean, 1)});
}

/// Passes on what hosts have said of ports where nothing listens, and routers of narrow ways.
void ReceiveQueue::take_refusals(core::Device& device) noexcept {
    for (auto one = read_refusal(socket_); one.is_ok(); one = read_refusal(socket_)) {
        const Address dest = core::to_address(one.value().dest);
        if (one.value().reason == Refusal::Reason::kTooLarge) {
            path_narrowed(device, dest);
        } else {
            peer_refused(device, dest, one.value().dest_qpn);
        }
    }
}

/// Has sender_ be that of a message. Returns: false when its address is none of a packet's.
RVT_ALWAYS_INLINE bool ReceiveQueue::find_sender(std::size_t message) noexcept {
    const sockaddr_storage& name = batch_->names[message];
    const socklen_t bytes = batch_->headers[message].msg_hdr.msg_namelen;
    if (bytes == sender_.name_bytes && is_same(name, sender_.name, bytes)) [[likely]] {
        return true;
    }
    const auto from = util::SockAddr::from(reinterpret_cast<const sockaddr*>(&name), bytes);
    if (!from.is_ok()) {
        return false;
    }
    const Address source = core::to_address(from.value());
    sender_ = {.name = name,
               .name_bytes = bytes,
               .path = {.source = source.gid,
                        .dest = own_.gid,
                        .source_port = source.port,
                        .dest_port = own_.port}};
    return true;
}

/// Visits the packets of `each` bytes that a message consists of from `at` on.
template <class Visit>
RVT_ALWAYS_INLINE void ReceiveQueue::for_each_in(std::span<const std::byte> message,
                                                 std::size_t each, std::size_t at,
                                                 Visit visit) const noexcept {
    protocol::WirePacket packet{.path = sender_.path};
    for (packet.identification = at == 0 ? 0 : 1; at < message.size();
         at += each, ++packet.identification) {
        packet.bytes = message.subspan(at, std::min(each, message.size() - at));
        visit(packet);
    }
}

/// Cuts the first messages of the batch into their packets.
template <class Visit>
RVT_ALWAYS_INLINE void ReceiveQueue::for_each_packet(std::size_t messages, Visit visit) noexcept {
    for (std::size_t i = 0; i < messages; ++i) {
        if (find_sender(i)) {
            const std::size_t bytes = batch_->headers[i].msg_len;
            for_each_in({batch_->bytes[i].data(), bytes},
                        segment_bytes(batch_->headers[i].msg_hdr, bytes), 0, visit);
        }
    }
}

/// The first message of the batch, of which the kernel has not said where its packets end.
unsigned ReceiveQueue::deliver_joined(core::Device& device) noexcept {
    if (!find_sender(0)) {
        return 0;
    }
    const std::span<const std::byte> message(batch_->bytes[0].data(), batch_->headers[0].msg_len);
    protocol::WirePacket first{.path = sender_.path};
    const std::size_t each = cut_.first_packet(first.path, message);
    if (each == 0) [[unlikely]] {
        first.bytes = message;  // not the first one of what its sender had joined, perhaps
        if (deliver_one(device, first)) {
            return 1;
        }
        asked_left_ = kAskedAfterLoss;
        return 0;
    }
    first.bytes = message.first(each);
    hand_over(device, first);
    unsigned whole = 1;
    for_each_in(message, each, each, [&](const protocol::WirePacket& packet) {
        whole += deliver_one(device, packet) ? 1 : 0;
    });
    return whole;
}

unsigned ReceiveQueue::deliver_through_faults(core::Device& device, std::size_t messages) noexcept {
    const std::uint64_t now = device.now_us();
    unsigned whole = 0;
    const auto deliver_due = [&] {
        while (const auto held = faults_->take_due(now)) {
            whole += deliver_one(device, held->packet()) ? 1 : 0;
        }
    };
    for_each_packet(messages, [&](const protocol::WirePacket& packet) {
        if (faults_->passes(packet, now)) {
            whole += deliver_one(device, packet) ? 1 : 0;
        }
        deliver_due();
    });
    deliver_due();
    // relaxed: see holds_packets().
    holds_packets_.store(faults_->held() != 0, std::memory_order_relaxed);
    return whole;
}

/// Whether a packet to the port of all devices really had the identification that would make it
/// whole, as far as this process may know. The kernel joins packets behind the header of the first;
/// the others have had the same identification, or one more each.
bool ReceiveQueue::has_come_with(const protocol::WirePacket& packet,
                                 std::uint16_t identification) noexcept {
    if (tap_ == nullptr || identification < kMostSegments) {
        return true;
    }
    const std::uint16_t place = packet.identification;
    if (place == 0) {
        joined_from_ = tap_->has_come(packet, identification) ? identification : 0;
        return joined_from_ != 0;
    }
    return joined_from_ != 0 &&
           (identification == joined_from_ ||
            identification == static_cast<std::uint16_t>(joined_from_ + place));
}

/// Returns: whether the packet was whole.
RVT_ALWAYS_INLINE bool ReceiveQueue::deliver_one(core::Device& device,
                                                 const protocol::WirePacket& packet) noexcept {
    auto identification = true_identification(packet);
    if (identification && *identification != packet.identification &&
        !has_come_with(packet, *identification)) [[unlikely]] {
        identification.reset();
    }
    if (capture_.is_on()) [[unlikely]] {
        protocol::WirePacket captured = packet;
        captured.identification = identification.value_or(packet.identification);
        capture_.received(captured, identification.has_value());
    }
    if (!identification) {
        count_corrupted();
        if (tap_ != nullptr) {
            tap_->pass_over();
        }
        return false;
    }
    hand_over(device, packet);
    return true;
}

/// Gives the core a packet that is whole.
RVT_ALWAYS_INLINE void ReceiveQueue::hand_over(core::Device& device,
                                               const protocol::WirePacket& packet) noexcept {
    // Peers at the port of the specification send from any: each of their pairs has one of its own.
    const bool is_any_port = own_.port == kRocePort && !core::is_multicast(own_.gid);
    const std::uint16_t port = is_any_port ? std::uint16_t{0} : packet.path.source_port;
    deliver_packet(device, {.gid = packet.path.source, .port = port}, own_,
                   packet.bytes.first(packet.bytes.size() - protocol::kIcrcBytes));
}

}  // namespace rvt::roce
