// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What each kind of segment is as a packet.
#include "core/segment_capture.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include <endian.h>

#include "core/responder.h"
#include "core/segment_wire.h"
#include "core/wr_table.h"
#include "protocol/atomic_word.h"
#include "protocol/cm_messages.h"
#include "protocol/headers.h"
#include "protocol/syndrome.h"

namespace rvt::core {
namespace {

using protocol::Ext;
using protocol::Kind;
using protocol::Opcode;
using protocol::PacketHeader;
using protocol::Part;

constexpr std::uint8_t kRnrCodes = 32;

Part part_of(const SegmentHeader& segment, std::size_t bytes) noexcept {
    return protocol::part_of(segment.offset == 0, segment.offset + bytes >= segment.message_bytes);
}

Ext trailer_of(WrOpcode opcode) noexcept {
    switch (opcode) {
        case WrOpcode::kSendImm:
        case WrOpcode::kWriteImm: return Ext::kImm;
        case WrOpcode::kSendInv: return Ext::kIeth;
        default: return Ext::kNone;
    }
}

/// The opcode of a request. Returns: nothing for what is no request.
std::optional<Opcode> request_opcode(const SegmentHeader& segment, Part part) noexcept {
    const auto service = static_cast<QpType>(segment.qp_type);
    const auto opcode = static_cast<WrOpcode>(segment.opcode);
    const bool ends = part == Part::kLast || part == Part::kOnly;
    const Ext trailer = ends ? trailer_of(opcode) : Ext::kNone;
    switch (opcode) {
        case WrOpcode::kSend:
        case WrOpcode::kSendImm:
        case WrOpcode::kSendInv: return protocol::opcode_of(service, Kind::kSend, part, trailer);
        case WrOpcode::kWrite:
        case WrOpcode::kWriteImm: return protocol::opcode_of(service, Kind::kWrite, part, trailer);
        case WrOpcode::kRead: return Opcode::kRcReadRequest;
        case WrOpcode::kCas: return Opcode::kRcCompareSwap;
        case WrOpcode::kFetchAdd: return Opcode::kRcFetchAdd;
        case WrOpcode::kFlush: return Opcode::kRcFlush;
        case WrOpcode::kAtomicWrite: return Opcode::kRcAtomicWrite;
        case WrOpcode::kExtendedAtomic: return Opcode::kRvtAtomic;
        case WrOpcode::kLocalInv:
        case WrOpcode::kBindMw: break;
    }
    return std::nullopt;
}

Opcode ack_opcode(const SegmentHeader& segment) noexcept {
    if (segment.kind != SegmentKind::kAck) {
        return Opcode::kRcAck;
    }
    switch (static_cast<WrOpcode>(segment.opcode)) {
        case WrOpcode::kCas:
        case WrOpcode::kFetchAdd: return Opcode::kRcAtomicAck;
        case WrOpcode::kExtendedAtomic: return Opcode::kRvtAtomicResult;
        default: return Opcode::kRcAck;
    }
}

std::optional<Opcode> opcode_of(const SegmentHeader& segment, std::size_t bytes) noexcept {
    switch (segment.kind) {
        case SegmentKind::kRequest: return request_opcode(segment, part_of(segment, bytes));
        case SegmentKind::kReadData:
            return protocol::opcode_of(QpType::kRc, Kind::kReadResponse, part_of(segment, bytes));
        case SegmentKind::kAck:
        case SegmentKind::kNak: return ack_opcode(segment);
        case SegmentKind::kMad: return Opcode::kUdSendOnly;
    }
    return std::nullopt;
}

protocol::Syndrome syndrome_of(const SegmentHeader& segment) noexcept {
    if (segment.kind != SegmentKind::kNak) {
        return protocol::ack();
    }
    switch (static_cast<Nak>(segment.nak)) {
        case Nak::kNotReady: {
            std::uint8_t code = 1;
            while (code + 1 < kRnrCodes && rnr_timer_us(code) < segment.retry_after_us) {
                ++code;
            }
            return protocol::rnr_nak(code);
        }
        case Nak::kAccess: return protocol::nak(protocol::NakCode::kRemoteAccess);
        case Nak::kNone:
        case Nak::kInvalid:
        case Nak::kTooLong: return protocol::nak(protocol::NakCode::kInvalidRequest);
        case Nak::kLocalFault:
        case Nak::kUnreachable: break;
    }
    return protocol::nak(protocol::NakCode::kRemoteOperational);
}

PacketHeader header_of(const SegmentHeader& segment, Opcode opcode, std::size_t bytes) noexcept {
    const bool is_swap = opcode == Opcode::kRcCompareSwap;
    PacketHeader header{
        .opcode = opcode,
        .solicited = segment.is_solicited != 0,
        .pad = static_cast<std::uint8_t>(-bytes & 3),
        .dest_qpn = segment.dest_qpn & kQpnMask,
        .psn = protocol::Psn(segment.msn & kQpnMask),
        .qkey = segment.qkey,
        .src_qpn = segment.src_qpn & kQpnMask,
        .flush = segment.flush,
        .remote_addr = segment.remote_addr,
        .rkey = segment.rkey,
        .dma_bytes = static_cast<std::uint32_t>(segment.message_bytes),
        .swap_add = is_swap ? segment.swap : segment.compare_add,
        .compare = is_swap ? segment.compare_add : 0,
        .syndrome = protocol::to_wire(syndrome_of(segment)),
        .msn = segment.msn & kQpnMask,
        .original = segment.compare_add,
        .imm = segment.imm,
        .atomic = protocol::atomic_word({.form = static_cast<AtomicForm>(segment.atomic_form),
                                         .datatype = segment.atomic_datatype,
                                         .op = segment.atomic_op})};
    if (segment.kind == SegmentKind::kMad) {
        header.dest_qpn = header.src_qpn = protocol::kGsiQpn;
        header.qkey = protocol::kGsiQkey;
    }
    header.ack_request = segment.kind == SegmentKind::kRequest && header.info().ends() &&
                         header.info().service == QpType::kRc;
    return header;
}

std::size_t total(std::span<const iovec> pieces) noexcept {
    std::size_t bytes = 0;
    for (const iovec& piece : pieces) {
        bytes += piece.iov_len;
    }
    return bytes;
}

/// As opcode_of() of protocol/ needs it: not every service has every kind, nor parts.
bool has_packet(const SegmentHeader& segment, std::size_t bytes) noexcept {
    const WrInfo* const info = wr_info(static_cast<WrOpcode>(segment.opcode));
    const bool is_datagram = segment.qp_type == static_cast<std::uint8_t>(QpType::kUd);
    if (is_datagram && (segment.offset != 0 || segment.message_bytes != bytes)) {
        return segment.kind == SegmentKind::kMad;
    }
    return segment.kind == SegmentKind::kMad ||
           (segment.qp_type <= static_cast<std::uint8_t>(QpType::kUd) && info != nullptr &&
            takes(*info, static_cast<QpType>(segment.qp_type)));
}

}  // namespace

void capture_segment(const protocol::PcapInterface& capture, std::optional<std::uint64_t> sent_ns,
                     const SegmentPath& path, std::span<const std::byte> header,
                     std::span<const iovec> payload) noexcept {
    SegmentHeader segment{};
    if (header.size() != sizeof segment) {
        return;
    }
    std::memcpy(&segment, header.data(), sizeof segment);
    const std::size_t bytes = total(payload);
    const auto opcode = has_packet(segment, bytes) ? opcode_of(segment, bytes) : std::nullopt;
    if (!opcode) {
        return;
    }
    const PacketHeader packet_header = header_of(segment, *opcode, bytes);
    std::vector<std::byte> packet(protocol::kMaxHeaderBytes);
    packet.resize(protocol::encode(packet_header, packet.data()));
    for (const iovec& piece : payload) {
        const auto* const from = static_cast<const std::byte*>(piece.iov_base);
        packet.insert(packet.end(), from, from + piece.iov_len);
    }
    packet.resize(packet.size() + packet_header.pad);
    const protocol::IpPath ip{.source = path.source.gid,
                              .dest = path.dest.gid,
                              .source_port = path.source.port,
                              .dest_port = path.dest.port};
    const std::uint32_t icrc = htole32(protocol::icrc_of(ip, packet));
    const auto* const trailer = reinterpret_cast<const std::byte*>(&icrc);
    packet.insert(packet.end(), trailer, trailer + sizeof icrc);
    const protocol::WirePacket captured{.path = ip, .bytes = packet};
    if (sent_ns) {
        capture.sent(captured, *sent_ns);
    } else {
        capture.received(captured, true);
    }
}

}  // namespace rvt::core
