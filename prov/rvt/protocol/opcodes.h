// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The packet table: for each opcode of the base transport header the service that carries it, the
// headers that follow and what the packet is in its message. Encoding, decoding and the order
// checks of requester and responder are looks at a row of it. IBTA vol. 1, 9.2.1, table 38; FLUSH
// and ATOMIC WRITE: annex A19.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rvt/flags.h"
#include "rvt/types.h"

namespace rvt::protocol {

/// The opcode field: the service in the upper three bits, the operation in the lower five.
enum class Opcode : std::uint8_t {
    kRcSendFirst = 0x00,
    kRcSendMiddle,
    kRcSendLast,
    kRcSendLastImm,
    kRcSendOnly,
    kRcSendOnlyImm,
    kRcWriteFirst,
    kRcWriteMiddle,
    kRcWriteLast,
    kRcWriteLastImm,
    kRcWriteOnly,
    kRcWriteOnlyImm,
    kRcReadRequest,
    kRcReadResponseFirst,
    kRcReadResponseMiddle,
    kRcReadResponseLast,
    kRcReadResponseOnly,
    kRcAck,
    kRcAtomicAck,
    kRcCompareSwap,
    kRcFetchAdd,
    kRcSendLastInv = 0x16,
    kRcSendOnlyInv,
    kRcFlush = 0x1c,
    kRcAtomicWrite,
    kUcSendFirst = 0x20,
    kUcSendMiddle,
    kUcSendLast,
    kUcSendLastImm,
    kUcSendOnly,
    kUcSendOnlyImm,
    kUcWriteFirst,
    kUcWriteMiddle,
    kUcWriteLast,
    kUcWriteLastImm,
    kUcWriteOnly,
    kUcWriteOnlyImm,
    kUdSendOnly = 0x64,
    kUdSendOnlyImm,
    // Of the numbers that are manufacturers' own (110xxxxx and 111xxxxx). Between rvt devices
    // alone.
    kRvtAtomic = 0xc0,
    kRvtAtomicResult,
    kRvtSack,  // a NAK for the sequence, and which of the packets behind the missing one have come
};

/// The headers behind the base transport header, in the order in which they stand in a packet.
enum class Ext : std::uint16_t {
    kNone = 0,
    kDeth = 1u << 0,       // datagram: Q_Key, source pair
    kFeth = 1u << 1,       // FLUSH: placement type, selectivity
    kReth = 1u << 2,       // address, key and length of remote memory
    kAtomicEth = 1u << 3,  // address, key and operands of an atomic
    kAeth = 1u << 4,       // syndrome and message number
    kAtomicAckEth = 1u << 5,
    kImm = 1u << 6,
    kIeth = 1u << 7,          // the key that the receiver invalidates
    kRvtAtomicEth = 1u << 8,  // what an extended atomic does
};

/// What a packet is in its message.
enum class Part : std::uint8_t { kFirst, kMiddle, kLast, kOnly };
constexpr Part part_of(bool starts, bool ends) noexcept {
    return starts ? (ends ? Part::kOnly : Part::kFirst) : (ends ? Part::kLast : Part::kMiddle);
}

/// What a packet asks for or answers.
enum class Kind : std::uint8_t {
    kSend,
    kWrite,
    kRead,
    kReadResponse,
    kAck,
    kAtomicAck,
    kAtomic,
    kFlush,
    kAtomicWrite,
    kExtendedAtomic,
    kExtendedResult,
    kSack,
};

}  // namespace rvt::protocol

template <>
struct rvt::IsFlags<rvt::protocol::Ext> : std::true_type {};

namespace rvt::protocol {

struct OpcodeInfo {
    const char* name = nullptr;  // nullptr: a number that is no opcode
    QpType service = QpType::kRc;
    Kind kind = Kind::kSend;
    Part part = Part::kOnly;
    Ext ext = Ext::kNone;
    std::uint8_t header_bytes = 0;  // with the base transport header
    bool has_payload = false;       // may carry bytes behind its headers

    [[nodiscard]] constexpr bool has(Ext header) const noexcept {
        return (static_cast<unsigned>(ext) & static_cast<unsigned>(header)) != 0;
    }
    [[nodiscard]] constexpr bool starts() const noexcept {
        return part == Part::kFirst || part == Part::kOnly;
    }
    [[nodiscard]] constexpr bool ends() const noexcept {
        return part == Part::kLast || part == Part::kOnly;
    }
    /// Whether it goes to the responder rather than back to the requester.
    [[nodiscard]] constexpr bool is_request() const noexcept {
        return kind != Kind::kReadResponse && kind != Kind::kAck && kind != Kind::kAtomicAck &&
               kind != Kind::kExtendedResult && kind != Kind::kSack;
    }
};

namespace detail {
extern const std::array<OpcodeInfo, 256> kOpcodeTable;  // by number
}

/// The row of an opcode as it stands in a packet, or nullptr for a number that is none.
inline const OpcodeInfo* opcode_info(std::uint8_t opcode) noexcept {
    const OpcodeInfo& row = detail::kOpcodeTable[opcode];
    return row.name != nullptr ? &row : nullptr;
}
inline const OpcodeInfo& opcode_info(Opcode opcode) noexcept {
    return detail::kOpcodeTable[static_cast<std::uint8_t>(opcode)];
}

/// The opcode of a SEND, WRITE or READ response of a service. Precondition: there is one.
Opcode opcode_of(QpType service, Kind kind, Part part, Ext trailer = Ext::kNone) noexcept;

}  // namespace rvt::protocol
