// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Encoding and decoding, header by header in the order in which they stand in a packet.
#include "protocol/headers.h"

#include "protocol/wire.h"

namespace rvt::protocol {
namespace {

// Fields of the base transport header.
constexpr std::uint8_t kSolicited = 0x80;
constexpr std::uint8_t kMigrated = 0x40;
constexpr unsigned kPadShift = 4;
constexpr std::uint8_t kPadMask = 3;
constexpr std::uint8_t kVersionMask = 0x0f;  // 0 is the only one there is
constexpr std::uint32_t kAckRequest = 0x80000000;

// In few large parts: who copies the packet reads it at once, in parts that must not be larger than
// those that were written.

void write_bth(const PacketHeader& header, WireWriter& out) noexcept {
    const std::uint32_t flags = (header.solicited ? kSolicited : 0) |
                                (header.migrated ? kMigrated : 0) |
                                (std::uint32_t{header.pad} << kPadShift);
    out.u32(static_cast<std::uint32_t>(header.opcode) << 24 | flags << 16 | header.pkey);
    out.u32(std::uint32_t{header.reserved} << 24 | (header.dest_qpn & kQpnMask));
    out.u32((header.ack_request ? kAckRequest : 0) | header.psn.value());
}

void write_extensions(const PacketHeader& header, const OpcodeInfo& info,
                      WireWriter& out) noexcept {
    if (info.has(Ext::kDeth)) {
        out.u32(header.qkey);
        out.u32(header.src_qpn & kQpnMask);
    }
    if (info.has(Ext::kFeth)) {
        out.u32(header.flush);
    }
    if (info.has(Ext::kReth)) {
        out.u64(header.remote_addr);
        out.u64(std::uint64_t{header.rkey} << 32 | header.dma_bytes);
    }
    if (info.has(Ext::kAtomicEth)) {
        out.u64(header.remote_addr);
        out.u32(header.rkey);
        out.u64(header.swap_add);
        out.u64(header.compare);
    }
    if (info.has(Ext::kAeth)) {
        out.u32(std::uint32_t{header.syndrome} << 24 | (header.msn & Psn::kMask));
    }
    if (info.has(Ext::kAtomicAckEth)) {
        out.u64(header.original);
    }
    if (info.has(Ext::kImm | Ext::kIeth)) {
        out.u32(header.imm);
    }
    if (info.has(Ext::kRvtAtomicEth)) {
        out.u32(header.atomic);
    }
}

void read_bth(PacketHeader& header, WireReader& in) noexcept {
    header.opcode = static_cast<Opcode>(in.u8());
    const std::uint8_t flags = in.u8();
    header.solicited = (flags & kSolicited) != 0;
    header.migrated = (flags & kMigrated) != 0;
    header.pad = flags >> kPadShift & kPadMask;
    header.pkey = in.u16();
    const std::uint32_t dest = in.u32();
    header.reserved = static_cast<std::uint8_t>(dest >> 24);
    header.dest_qpn = dest & kQpnMask;
    const std::uint32_t psn = in.u32();
    header.ack_request = (psn & kAckRequest) != 0;
    header.psn = Psn(psn);
}

void read_extensions(PacketHeader& header, const OpcodeInfo& info, WireReader& in) noexcept {
    if (info.has(Ext::kDeth)) {
        header.qkey = in.u32();
        header.src_qpn = in.u32() & kQpnMask;
    }
    if (info.has(Ext::kFeth)) {
        header.flush = in.u32();
    }
    if (info.has(Ext::kReth)) {
        header.remote_addr = in.u64();
        header.rkey = in.u32();
        header.dma_bytes = in.u32();
    }
    if (info.has(Ext::kAtomicEth)) {
        header.remote_addr = in.u64();
        header.rkey = in.u32();
        header.swap_add = in.u64();
        header.compare = in.u64();
    }
    if (info.has(Ext::kAeth)) {
        const std::uint32_t aeth = in.u32();
        header.syndrome = static_cast<std::uint8_t>(aeth >> 24);
        header.msn = aeth & Psn::kMask;
    }
    if (info.has(Ext::kAtomicAckEth)) {
        header.original = in.u64();
    }
    if (info.has(Ext::kImm | Ext::kIeth)) {
        header.imm = in.u32();
    }
    if (info.has(Ext::kRvtAtomicEth)) {
        header.atomic = in.u32();
    }
}

}  // namespace

std::size_t encode(const PacketHeader& header, std::byte* to) noexcept {
    const OpcodeInfo& info = header.info();
    WireWriter out(to);
    write_bth(header, out);
    if (info.ext != Ext::kNone) {
        write_extensions(header, info, out);
    }
    return info.header_bytes;
}

bool decode(std::span<const std::byte> packet, DecodedPacket& decoded) noexcept {
    if (packet.size() < kBthBytes) {
        return false;
    }
    const OpcodeInfo* info = opcode_info(static_cast<std::uint8_t>(packet[0]));
    const bool known =
        info != nullptr && (static_cast<std::uint8_t>(packet[1]) & kVersionMask) == 0;
    if (!known || packet.size() < info->header_bytes) {
        return false;
    }
    WireReader in(packet.data());
    read_bth(decoded.header, in);
    if (info->ext != Ext::kNone) {
        read_extensions(decoded.header, *info, in);
    }
    const std::span<const std::byte> rest = packet.subspan(info->header_bytes);
    const bool fits = info->has_payload ? decoded.header.pad <= rest.size()
                                        : rest.empty() && decoded.header.pad == 0;
    decoded.payload = fits ? rest.first(rest.size() - decoded.header.pad) : rest;
    return fits;
}

Result<DecodedPacket> decode(std::span<const std::byte> packet) noexcept {
    DecodedPacket decoded;
    return decode(packet, decoded) ? Result<DecodedPacket>(decoded) : EBADMSG;
}

}  // namespace rvt::protocol
