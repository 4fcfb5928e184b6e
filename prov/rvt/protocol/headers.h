// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The transport headers of a packet as values, and their form on the wire. All wire fields are in
// network byte order; all members here in the host's. IBTA vol. 1, 9.2 and 9.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/bth.h"
#include "protocol/header_sizes.h"
#include "protocol/opcodes.h"
#include "protocol/psn.h"
#include "rvt/status.h"

namespace rvt::protocol {

/// Everything that stands in front of a packet's payload. Which members count is said by the row of
/// the opcode.
struct PacketHeader {
    Opcode opcode = Opcode::kRcSendOnly;
    bool solicited = false;
    bool migrated = true;  // path migration: of pairs without an alternate path always set
    bool ack_request = false;
    std::uint8_t pad = 0;       // bytes behind the payload, to a multiple of four
    std::uint8_t reserved = 0;  // FECN, BECN and six reserved bits, which no check covers
    std::uint16_t pkey = kDefaultPkey;
    std::uint32_t dest_qpn = 0;
    Psn psn{};

    std::uint32_t qkey = 0;         // DETH
    std::uint32_t src_qpn = 0;      // DETH
    std::uint32_t flush = 0;        // FETH: protocol/feth.h
    std::uint64_t remote_addr = 0;  // RETH, AtomicETH
    std::uint32_t rkey = 0;         // RETH, AtomicETH
    std::uint32_t dma_bytes = 0;    // RETH
    std::uint64_t swap_add = 0;     // AtomicETH
    std::uint64_t compare = 0;      // AtomicETH
    std::uint8_t syndrome = 0;      // AETH: protocol/syndrome.h
    std::uint32_t msn = 0;          // AETH: 24 bits
    std::uint64_t original = 0;     // AtomicAckETH
    std::uint32_t imm = 0;          // ImmDt, or IETH: the key
    std::uint32_t atomic = 0;       // of an extended atomic: protocol/atomic_word.h

    [[nodiscard]] const OpcodeInfo& info() const noexcept { return opcode_info(opcode); }
};

/// Writes the headers. Returns: their length, OpcodeInfo::header_bytes.
/// Precondition: `to` has room for kMaxHeaderBytes.
std::size_t encode(const PacketHeader& header, std::byte* to) noexcept;

struct DecodedPacket {
    PacketHeader header;
    std::span<const std::byte> payload;  // without padding
};

/// Takes a packet apart, from the base transport header to the padding; the ICRC has been taken
/// off.
/// Returns: EBADMSG for an opcode or version that is not known, a packet shorter than its headers,
///          padding that the payload does not have, or payload behind a packet that carries none.
Result<DecodedPacket> decode(std::span<const std::byte> packet) noexcept;
/// The same, into one that has not been written to. Returns: false for EBADMSG.
bool decode(std::span<const std::byte> packet, DecodedPacket& decoded) noexcept;

}  // namespace rvt::protocol
