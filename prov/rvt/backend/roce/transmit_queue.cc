// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Gathering packets into messages.
#include "backend/roce/transmit_queue.h"

#include "core/addresses.h"
#include "util/iov_cursor.h"
#include "util/log.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <numeric>

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

/// The ICRC of a packet that is the `segment`-th of its message, as it stands on the wire.
std::uint32_t wire_icrc(const protocol::IpPath& path, const OutPacket& packet, std::size_t bytes,
                        std::uint16_t segment) noexcept {
    static constexpr std::byte kPad[4] = {};
    protocol::Icrc icrc(path, bytes - protocol::kIcrcBytes, packet.headers, segment);
    for (const iovec& piece : packet.payload) {
        icrc.add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
    }
    if (packet.pad != 0) {
        icrc.add({kPad, packet.pad});
    }
    return htole32(icrc.value());
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

unsigned TransmitQueue::send(const AhAttr& dest, std::span<const OutPacket> packets) noexcept {
    const util::Guard guard(lock_);
    ++call_;
    if (batch_ == nullptr) {
        batch_.reset(new (std::nothrow) Batch);
    }
    unsigned taken = 0;
    while (batch_ != nullptr && taken < packets.size()) {
        if (append_locked(dest, packets[taken])) {
            ++taken;
            continue;
        }
        flush_locked();
        if (!append_locked(dest, packets[taken])) {
            break;
        }
        ++taken;
    }
    if (has_borrowed_) {
        flush_locked();
        taken -= give_back_locked();
    }
    return taken;
}

void TransmitQueue::flush() noexcept {
    const util::Guard guard(lock_);
    if (messages_ != 0) {
        flush_locked();
    }
}

// ---- building ----

/// Adds one packet. Returns: false when there is no room.
bool TransmitQueue::append_locked(const AhAttr& dest, const OutPacket& packet) noexcept {
    const std::size_t payload = payload_bytes(packet);
    const std::size_t bytes = packet.headers.size() + payload + packet.pad + protocol::kIcrcBytes;
    const std::size_t copied = bytes - (payload > kCopyBytes ? payload : 0);
    if (arena_used_ + copied > kArenaBytes || pieces_ + packet.payload.size() + 2 > kMaxPieces) {
        return false;
    }
    Message* message = message_for_locked(dest.dest, bytes, payload > kCopyBytes);
    if (message == nullptr) {
        return false;
    }
    write_locked(*message, packet);
    message->bytes += static_cast<std::uint32_t>(bytes);
    message->is_closed = bytes < message->segment_bytes;
    ++message->segments;
    return true;
}

/// The newest message if the packet fits behind what it has, else a new one.
TransmitQueue::Message* TransmitQueue::message_for_locked(const Address& dest, std::size_t bytes,
                                                          bool borrows) noexcept {
    if (messages_ != 0 && can_segment_) {
        Message& newest = batch_->messages[messages_ - 1];
        // What may be given back stands in no message with what was taken earlier.
        const bool mixes = borrows && newest.call != call_;
        const bool fits = bytes == newest.segment_bytes ||
                          (bytes < newest.segment_bytes && newest.segments >= kWorthCutting);
        if (!newest.is_closed && !mixes && newest.dest == dest && fits &&
            newest.segments < kMaxSegments && newest.bytes + bytes <= kMaxMessageBytes) {
            return &newest;
        }
    }
    if (messages_ == kMaxMessages) {
        return nullptr;
    }
    Message& message = batch_->messages[messages_++];
    message = {.dest = dest,
               .first_piece = static_cast<std::uint32_t>(pieces_),
               .segment_bytes = static_cast<std::uint16_t>(bytes),
               .call = call_};
    return &message;
}

std::byte* TransmitQueue::take_arena_locked(std::size_t bytes) noexcept {
    std::byte* taken = batch_->arena.data() + arena_used_;
    arena_used_ += bytes;
    return taken;
}

/// Appends to the message's list, or to its last piece where that ends there.
void TransmitQueue::add_piece_locked(Message& message, const void* data,
                                     std::size_t bytes) noexcept {
    if (message.pieces != 0) {
        iovec& last = batch_->pieces[pieces_ - 1];
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
            last.iov_len += bytes;
            return;
        }
    }
    batch_->pieces[pieces_++] = {.iov_base = const_cast<void*>(data), .iov_len = bytes};
    ++message.pieces;
}

protocol::IpPath TransmitQueue::path_to(const Address& dest) const noexcept {
    return {.source = own_.gid, .dest = dest.gid, .source_port = own_.port, .dest_port = dest.port};
}

void TransmitQueue::write_locked(Message& message, const OutPacket& packet) noexcept {
    const std::size_t payload = payload_bytes(packet);
    const std::size_t bytes = packet.headers.size() + payload + packet.pad + protocol::kIcrcBytes;
    const std::uint32_t icrc = wire_icrc(path_to(message.dest), packet, bytes, message.segments);
    const bool copies = payload <= kCopyBytes;
    std::byte* to = take_arena_locked(packet.headers.size());
    std::copy(packet.headers.begin(), packet.headers.end(), to);
    add_piece_locked(message, to, packet.headers.size());
    for (const iovec& piece : packet.payload) {
        const void* from = piece.iov_base;
        if (copies) {
            from = std::memcpy(take_arena_locked(piece.iov_len), piece.iov_base, piece.iov_len);
        }
        add_piece_locked(message, from, piece.iov_len);
    }
    message.has_borrowed = message.has_borrowed || !copies;
    has_borrowed_ = has_borrowed_ || !copies;
    std::byte* trailer = take_arena_locked(packet.pad + sizeof icrc);
    std::memset(trailer, 0, packet.pad);
    std::memcpy(trailer + packet.pad, &icrc, sizeof icrc);
    add_piece_locked(message, trailer, packet.pad + sizeof icrc);
}

// ---- sending ----

/// The i-th message in the form that sendmmsg(2) takes.
void TransmitQueue::prepare_locked(std::size_t i) noexcept {
    const Message& message = batch_->messages[i];
    sockaddr_storage& name = batch_->names[i];
    msghdr& header = batch_->headers[i].msg_hdr;
    header = {};
    header.msg_name = &name;
    header.msg_namelen = static_cast<socklen_t>(core::to_sock_addr(message.dest).to(&name));
    header.msg_iov = &batch_->pieces[message.first_piece];
    header.msg_iovlen = message.pieces;
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

/// The kernel refuses a message for good.
void TransmitQueue::lose_locked(const Message& refused, int error) noexcept {
    if (refused.segments > 1 && (error == EINVAL || error == EIO)) {
        can_segment_ = false;  // this way out cannot: from now on packet by packet
    }
    RVT_INFO(kEpData, "%u packets to %s are lost: %s", refused.segments,
             core::to_sock_addr(refused.dest).to_string().c_str(), strerrordesc_np(error));
    refused_ += refused.segments;
    has_trouble_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
}

void TransmitQueue::try_all_again() noexcept {
    const util::Guard guard(lock_);
    can_segment_ = socket_.can_segment;
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
        const int sent =
            send_messages(socket_.fd(), std::span(batch_->headers).subspan(done, messages_ - done));
        if (sent > 0) {
            if (capture_.is_on()) [[unlikely]] {
                capture_locked(done, done + static_cast<std::size_t>(sent), at_ns);
            }
            done += static_cast<std::size_t>(sent);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
            break;
        }
        if (errno == EINTR) {
            continue;
        }
        // Mostly not of this packet: a report that an earlier one found nobody, or no way to its
        // host. One that is refused twice is meant.
        if (errno == ECONNREFUSED || doubted != done) {
            doubted = done;
            has_report_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
            continue;
        }
        lose_locked(batch_->messages[done], errno);
        ++done;
    }
    drop_sent_locked(done);
}

/// The packets of messages `first` to `end`, as the kernel has cut them.
void TransmitQueue::capture_locked(std::size_t first, std::size_t end,
                                   std::uint64_t at_ns) noexcept {
    for (std::size_t i = first; i < end; ++i) {
        const Message& message = batch_->messages[i];
        assert(message.segment_bytes <= kMaxPacketBytes);
        util::IovCursor from(&batch_->pieces[message.first_piece], message.pieces);
        for (std::uint16_t segment = 0; segment < message.segments; ++segment) {
            std::array<std::byte, kMaxPacketBytes> packet;
            const std::size_t bytes = from.gather(packet.data(), message.segment_bytes);
            capture_.sent({.path = path_to(message.dest),
                           .identification = segment,
                           .bytes = std::span(packet).first(bytes)},
                          at_ns);
        }
    }
}

/// Forgets the first `sent` messages; what waits keeps its memory until nothing does.
void TransmitQueue::drop_sent_locked(std::size_t sent) noexcept {
    const auto begin = batch_->messages.begin();
    std::copy(begin + static_cast<std::ptrdiff_t>(sent),
              begin + static_cast<std::ptrdiff_t>(messages_), begin);
    keep_locked(messages_ - sent);
}

/// Forgets all messages but the first `kept`, which take no more segments: their pieces are not the
/// last any more.
void TransmitQueue::keep_locked(std::size_t kept) noexcept {
    messages_ = kept;
    if (kept == 0) {
        pieces_ = 0;
        arena_used_ = 0;
    } else {
        batch_->messages[kept - 1].is_closed = true;
    }
}

/// Takes back what could not leave from the first message on that names memory of the caller: all
/// of it is of this send(). Returns: how many packets.
unsigned TransmitQueue::give_back_locked() noexcept {
    has_borrowed_ = false;
    const auto end = batch_->messages.begin() + static_cast<std::ptrdiff_t>(messages_);
    const auto first = std::find_if(batch_->messages.begin(), end,
                                    [](const Message& message) { return message.has_borrowed; });
    keep_locked(static_cast<std::size_t>(first - batch_->messages.begin()));
    return std::accumulate(first, end, 0u, [](unsigned packets, const Message& message) {
        return packets + message.segments;
    });
}

}  // namespace rvt::roce
