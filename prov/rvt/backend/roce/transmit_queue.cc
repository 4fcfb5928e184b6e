// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Gathering packets into messages.
#include "backend/roce/transmit_queue.h"

#include "core/addresses.h"
#include "util/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <endian.h>
#include <netinet/udp.h>

namespace rvt::roce {
namespace {

std::size_t payload_bytes(const OutPacket& packet) noexcept {
    std::size_t bytes = 0;
    for (const iovec& piece : packet.payload) {
        bytes += piece.iov_len;
    }
    return bytes;
}

}  // namespace

TransmitQueue::TransmitQueue(const UdpSocket& socket, protocol::PcapInterface capture) noexcept
    : socket_(socket),
      own_(core::to_address(socket.port.address)),
      capture_(std::move(capture)),
      can_segment_(socket.can_segment) {}

std::uint64_t TransmitQueue::refused() const noexcept {
    const util::Guard guard(lock_);
    return refused_;
}

/// Returns: false when there is no memory.
bool TransmitQueue::open_batch_locked() noexcept {
    batch_.reset(new (std::nothrow) Batch);
    if (batch_ == nullptr) {
        return false;
    }
    for (std::size_t i = 0; i < kMaxMessages; ++i) {
        batch_->headers[i].msg_hdr = {.msg_name = &batch_->names[i],
                                      .msg_namelen = 0,
                                      .msg_iov = &batch_->pieces[i],
                                      .msg_iovlen = 1,
                                      .msg_control = nullptr,
                                      .msg_controllen = 0,
                                      .msg_flags = 0};
    }
    return true;
}

unsigned TransmitQueue::send(const AhAttr& dest, std::span<const OutPacket> packets) noexcept {
    const util::Guard guard(lock_);
    if (batch_ == nullptr && !open_batch_locked()) [[unlikely]] {
        return 0;
    }
    unsigned taken = 0;
    while (taken < packets.size() && take_locked(dest, packets[taken])) {
        ++taken;
    }
    if (arena_used_ >= kMaxMessageBytes) {
        flush_locked();  // more would not leave in fewer messages
    }
    return taken;
}

void TransmitQueue::flush_held() noexcept {
    const util::Guard guard(lock_);
    if (messages_ != 0) {
        flush_locked();
    }
}

bool TransmitQueue::send_now(const AhAttr& dest, const OutPacket& packet) noexcept {
    const util::Guard guard(lock_);
    if (batch_ == nullptr && !open_batch_locked()) [[unlikely]] {
        return false;
    }
    if (messages_ == 0 && !capture_.is_on() && send_alone_locked(dest.dest, packet)) [[likely]] {
        return true;
    }
    const bool is_taken = take_locked(dest, packet);
    flush_locked();
    return is_taken;
}

// ---- building ----

/// Adds one packet, making room if that is necessary. Returns: false when there is none.
bool TransmitQueue::take_locked(const AhAttr& dest, const OutPacket& packet) noexcept {
    const std::size_t payload = payload_bytes(packet);
    if (append_locked(dest, packet, payload)) [[likely]] {
        return true;
    }
    flush_locked();
    return append_locked(dest, packet, payload);
}

/// Adds one packet. Returns: false when there is no room.
bool TransmitQueue::append_locked(const AhAttr& dest, const OutPacket& packet,
                                  std::size_t payload) noexcept {
    const std::size_t bytes = packet.headers.size() + payload + packet.pad + protocol::kIcrcBytes;
    Message* const message =
        arena_used_ + bytes > kArenaBytes ? nullptr : message_for_locked(dest.dest, bytes);
    if (message == nullptr) {
        return false;
    }
    write_locked(*message, packet, bytes);
    message->bytes += static_cast<std::uint32_t>(bytes);
    message->is_closed = bytes < message->segment_bytes;
    ++message->segments;
    return true;
}

/// The newest message if the packet fits behind what it has, else a new one.
TransmitQueue::Message* TransmitQueue::message_for_locked(const Address& dest,
                                                          std::size_t bytes) noexcept {
    if (messages_ != 0 && can_segment_) {
        Message& newest = batch_->messages[messages_ - 1];
        if (!newest.is_closed && newest.dest == dest && bytes <= newest.segment_bytes &&
            newest.segments < kMaxSegments && newest.bytes + bytes <= kMaxMessageBytes) {
            return &newest;
        }
    }
    if (messages_ == kMaxMessages) {
        return nullptr;
    }
    Message& message = batch_->messages[messages_++];
    holds_packets_.store(true, std::memory_order_relaxed);  // relaxed: see holds_packets()
    message = {.dest = dest,
               .begin = static_cast<std::uint32_t>(arena_used_),
               .segment_bytes = static_cast<std::uint16_t>(bytes)};
    return &message;
}

protocol::IpPath TransmitQueue::path_to(const Address& dest) const noexcept {
    return {.source = own_.gid, .dest = dest.gid, .source_port = own_.port, .dest_port = dest.port};
}

/// Appends the packet as it stands on the wire, behind what the message has.
void TransmitQueue::write_locked(const Message& message, const OutPacket& packet,
                                 std::size_t bytes) noexcept {
    protocol::write_packet(
        batch_->arena.data() + arena_used_, path_to(message.dest),
        {.headers = packet.headers, .payload = packet.payload, .pad = packet.pad},
        message.segments);
    arena_used_ += bytes;
}

// ---- sending ----

/// A packet that has no company leaves without becoming a message. Returns: whether the kernel took
/// it; if not, flush_locked() finds out why.
RVT_ALWAYS_INLINE bool TransmitQueue::send_alone_locked(const Address& dest,
                                                        const OutPacket& packet) noexcept {
    name_locked(0, dest);
    std::byte* const begin = batch_->arena.data();
    const std::byte* const end = protocol::write_packet(
        begin, path_to(dest),
        {.headers = packet.headers, .payload = packet.payload, .pad = packet.pad});
    batch_->pieces[0] = {.iov_base = begin, .iov_len = static_cast<std::size_t>(end - begin)};
    if (send_packet(socket_.fd(), batch_->headers[0].msg_hdr) > 0) [[likely]] {
        return true;
    }
    // relaxed: a hint to who polls. What the kernel had to tell of an earlier packet it has told.
    has_report_.store(true, std::memory_order_relaxed);
    return false;
}

/// Has the i-th message's header name its destination.
RVT_ALWAYS_INLINE void TransmitQueue::name_locked(std::size_t i, const Address& dest) noexcept {
    msghdr& header = batch_->headers[i].msg_hdr;
    if (header.msg_namelen == 0 || batch_->named[i] != dest) [[unlikely]] {
        header.msg_namelen = static_cast<socklen_t>(core::to_sock_addr(dest).to(&batch_->names[i]));
        batch_->named[i] = dest;
    }
}

/// The i-th message in the form that sendmmsg(2) takes.
void TransmitQueue::prepare_locked(std::size_t i) noexcept {
    const Message& message = batch_->messages[i];
    msghdr& header = batch_->headers[i].msg_hdr;
    name_locked(i, message.dest);
    batch_->pieces[i] = {.iov_base = batch_->arena.data() + message.begin,
                         .iov_len = message.bytes};
    header.msg_control = nullptr;
    header.msg_controllen = 0;
    if (message.segments > 1) {
        Control& control = batch_->controls[i];
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof control.bytes;
        cmsghdr* first = CMSG_FIRSTHDR(&header);
        first->cmsg_level = IPPROTO_UDP;
        first->cmsg_type = UDP_SEGMENT;
        first->cmsg_len = CMSG_LEN(sizeof message.segment_bytes);
        std::memcpy(CMSG_DATA(first), &message.segment_bytes, sizeof message.segment_bytes);
    }
}

/// Whether a message that an interface has no room for waits until it has. It says the same of what
/// it drops for another reason, as a veth does of packets that its other end does not take: these
/// would keep all others waiting.
bool TransmitQueue::waits_for_room_locked() noexcept {
    const Clock::time_point now = Clock::now();
    if (now < no_room_until_) {
        return false;
    }
    if (waits_since_ == Clock::time_point{}) {
        waits_since_ = now;
    }
    if (now - waits_since_ < kRoomTime) {
        return true;
    }
    waits_since_ = {};
    no_room_until_ = now + kNoRoomTime;
    return false;
}

/// The kernel refuses a message for good.
void TransmitQueue::lose_locked(const Message& refused, int error) noexcept {
    const bool is_run = refused.segments > 1;
    if (is_run && (error == EINVAL || error == EIO || error == EOPNOTSUPP)) {
        can_segment_ = false;  // this way out cannot: from now on packet by packet
    }
    RVT_INFO(kEpData, "%u packets to %s are lost: %s", refused.segments,
             core::to_sock_addr(refused.dest).to_string().c_str(), strerrordesc_np(error));
    refused_ += refused.segments;
    if (error == EMSGSIZE || error == EINVAL) {  // EINVAL: so it is with segments
        too_large_ = {
            .dest = refused.dest, .packet_bytes = refused.segment_bytes, .is_run = is_run};
    }
    has_trouble_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
}

std::optional<TransmitQueue::TooLarge> TransmitQueue::take_too_large() noexcept {
    const util::Guard guard(lock_);
    return std::exchange(too_large_, std::nullopt);
}

void TransmitQueue::try_all_again() noexcept {
    const util::Guard guard(lock_);
    can_segment_ = socket_.can_segment;
}

void TransmitQueue::stop_runs() noexcept {
    const util::Guard guard(lock_);
    can_segment_ = false;
}

/// Hands messages from `first` on to the kernel. Returns: how many it took, or an error less than
/// 0.
int TransmitQueue::send_locked(std::size_t first) noexcept {
    const std::size_t count = messages_ - first;
    if (count == 1) {
        const msghdr& header = batch_->headers[first].msg_hdr;
        return batch_->messages[first].segments == 1 ? send_packet(socket_.fd(), header)
                                                     : send_message(socket_.fd(), header);
    }
    return send_messages(socket_.fd(), std::span(batch_->headers).subspan(first, count));
}

/// Sends what the socket has room for. What it refuses for another reason is lost, as packets may
/// be.
void TransmitQueue::flush_locked() noexcept {
    for (std::size_t i = 0; i < messages_; ++i) {
        prepare_locked(i);
    }
    // As of before the call: a peer on this host may have received before it returns.
    const std::uint64_t at_ns = capture_.is_on() ? protocol::PcapWriter::now_ns() : 0;
    std::size_t done = 0;
    std::size_t doubted = messages_;
    while (done < messages_) {
        const int sent = send_locked(done);
        if (sent > 0) {
            if (capture_.is_on()) [[unlikely]] {
                capture_locked(done, done + static_cast<std::size_t>(sent), at_ns);
            }
            done += static_cast<std::size_t>(sent);
            waits_since_ = {};
            if (done < messages_) {
                // What has stopped the call it does not say: it may have been a report, of which
                // no other call tells any more.
                has_report_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
            }
            continue;
        }
        const int error = -sent;
        if (error == EAGAIN || error == EWOULDBLOCK ||
            (error == ENOBUFS && waits_for_room_locked())) {
            break;
        }
        if (error == EINTR) {
            continue;
        }
        // Mostly not of this packet: a report that an earlier one found nobody, or no way to its
        // host. One that is refused twice is meant.
        if (error == ECONNREFUSED || doubted != done) {
            doubted = done;
            has_report_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
            continue;
        }
        lose_locked(batch_->messages[done], error);
        ++done;
    }
    drop_sent_locked(done);
}

/// The packets of messages `first` to `end`, as the kernel has cut them.
void TransmitQueue::capture_locked(std::size_t first, std::size_t end,
                                   std::uint64_t at_ns) noexcept {
    for (std::size_t i = first; i < end; ++i) {
        const Message& message = batch_->messages[i];
        std::span<const std::byte> left = bytes_of_locked(message);
        for (std::uint16_t segment = 0; segment < message.segments; ++segment) {
            const auto packet =
                left.first(std::min<std::size_t>(left.size(), message.segment_bytes));
            left = left.subspan(packet.size());
            capture_.sent(
                {.path = path_to(message.dest), .identification = segment, .bytes = packet}, at_ns);
        }
    }
}

/// Forgets the first `sent` messages; what waits keeps its memory until nothing does.
void TransmitQueue::drop_sent_locked(std::size_t sent) noexcept {
    const auto begin = batch_->messages.begin();
    std::copy(begin + static_cast<std::ptrdiff_t>(sent),
              begin + static_cast<std::ptrdiff_t>(messages_), begin);
    messages_ -= sent;
    if (messages_ == 0) {
        arena_used_ = 0;
        holds_packets_.store(false, std::memory_order_relaxed);  // relaxed: see holds_packets()
    }
}

}  // namespace rvt::roce
