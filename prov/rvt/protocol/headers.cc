// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Encoding and decoding, header by header in the order in which they stand in a packet.
#include "protocol/headers.h"

#include "protocol/wire.h"

namespace rvt::protocol {
namespace {

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

void take_bth(PacketHeader& header, const Bth& bth) noexcept {
    header.opcode = bth.opcode;
    header.solicited = bth.solicited;
    header.migrated = bth.migrated;
    header.ack_request = bth.ack_request;
    header.pad = bth.pad;
    header.reserved = bth.reserved;
    header.pkey = bth.pkey;
    header.dest_qpn = bth.dest_qpn;
    header.psn = bth.psn;
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
    write_bth({.opcode = header.opcode,
               .solicited = header.solicited,
               .migrated = header.migrated,
               .ack_request = header.ack_request,
               .pad = header.pad,
               .reserved = header.reserved,
               .pkey = header.pkey,
               .dest_qpn = header.dest_qpn,
               .psn = header.psn},
              to);
    if (info.ext != Ext::kNone) {
        WireWriter out(to + kBthBytes);
        write_extensions(header, info, out);
    }
    return info.header_bytes;
}

bool decode(std::span<const std::byte> packet, DecodedPacket& decoded) noexcept {
    if (packet.size() < kBthBytes) {
        return false;
    }
    const OpcodeInfo* info = opcode_info(static_cast<std::uint8_t>(packet[0]));
    if (info == nullptr || !has_known_version(packet.data()) ||
        packet.size() < info->header_bytes) {
        return false;
    }
    take_bth(decoded.header, read_bth(packet.data()));
    if (info->ext != Ext::kNone) {
        WireReader in(packet.data() + kBthBytes);
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
