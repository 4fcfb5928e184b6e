// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The base transport header, with which each packet begins. IBTA vol. 1, 9.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <endian.h>

#include "protocol/header_sizes.h"
#include "protocol/opcodes.h"
#include "protocol/psn.h"
#include "rvt/types.h"

namespace rvt::protocol {

inline constexpr std::uint16_t kDefaultPkey = 0xffff;

// Its fields that are smaller than bytes, or beside such.
inline constexpr std::uint8_t kSolicited = 0x80;
inline constexpr std::uint8_t kMigrated = 0x40;
inline constexpr unsigned kPadShift = 4;
inline constexpr std::uint8_t kPadMask = 3;
inline constexpr std::uint8_t kVersionMask = 0x0f;  // 0 is the only one there is
inline constexpr std::uint32_t kAckRequest = 0x80000000;

/// Members as those of PacketHeader.
struct Bth {
    Opcode opcode = Opcode::kRcSendOnly;
    bool solicited = false;
    bool migrated = true;
    bool ack_request = false;
    std::uint8_t pad = 0;
    std::uint8_t reserved = 0;
    std::uint16_t pkey = kDefaultPkey;
    std::uint32_t dest_qpn = 0;
    Psn psn{};
};

/// Writes a header, for which there is room. In two large parts: who copies the packet reads it at
/// once, in parts that must not be larger than those that were written.
inline void write_bth(const Bth& header, std::byte* to) noexcept {
    const std::uint32_t flags = (header.solicited ? kSolicited : 0u) |
                                (header.migrated ? kMigrated : 0u) |
                                std::uint32_t{header.pad} << kPadShift;
    const std::uint32_t first =
        static_cast<std::uint32_t>(header.opcode) << 24 | flags << 16 | header.pkey;
    const std::uint32_t dest = std::uint32_t{header.reserved} << 24 | (header.dest_qpn & kQpnMask);
    const std::uint64_t front = htobe64(std::uint64_t{first} << 32 | dest);
    const std::uint32_t psn = htobe32((header.ack_request ? kAckRequest : 0) | header.psn.value());
    static_assert(sizeof front + sizeof psn == kBthBytes);
    std::memcpy(to, &front, sizeof front);
    std::memcpy(to + sizeof front, &psn, sizeof psn);
}

/// The opcode may be of a number that is none, and the version is left to the caller.
inline Bth read_bth(const std::byte* from) noexcept {
    std::uint32_t words[3];
    static_assert(sizeof words == kBthBytes);
    std::memcpy(words, from, sizeof words);
    const std::uint32_t first = be32toh(words[0]);
    const std::uint32_t dest = be32toh(words[1]);
    const std::uint32_t psn = be32toh(words[2]);
    const auto flags = static_cast<std::uint8_t>(first >> 16);
    return {.opcode = static_cast<Opcode>(first >> 24),
            .solicited = (flags & kSolicited) != 0,
            .migrated = (flags & kMigrated) != 0,
            .ack_request = (psn & kAckRequest) != 0,
            .pad = static_cast<std::uint8_t>(flags >> kPadShift & kPadMask),
            .reserved = static_cast<std::uint8_t>(dest >> 24),
            .pkey = static_cast<std::uint16_t>(first),
            .dest_qpn = dest & kQpnMask,
            .psn = Psn(psn)};
}

/// Whether the version is the one that there is.
inline bool has_known_version(const std::byte* bth) noexcept {
    return (static_cast<std::uint8_t>(bth[1]) & kVersionMask) == 0;
}

}  // namespace rvt::protocol
