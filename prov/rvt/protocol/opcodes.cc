// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The packet table.
#include "protocol/opcodes.h"

#include "protocol/header_sizes.h"

namespace rvt::protocol {
namespace {

using enum Part;

constexpr std::uint8_t header_bytes(Ext ext) noexcept {
    std::size_t bytes = kBthBytes;
    for (const ExtSize& size : kExtSizes) {
        bytes += has_any(ext, size.ext) ? size.bytes : 0;
    }
    return static_cast<std::uint8_t>(bytes);
}

struct Row {
    Opcode opcode;
    const char* name;
    Kind kind;
    Part part;
    Ext ext;
    bool has_payload;
};

// clang-format off
constexpr Row kRows[] = {
    // opcode                       name                        kind                 part     headers behind the base          payload
    {Opcode::kRcSendFirst,          "RC SEND_FIRST",            Kind::kSend,         kFirst,  Ext::kNone,                      true},
    {Opcode::kRcSendMiddle,         "RC SEND_MIDDLE",           Kind::kSend,         kMiddle, Ext::kNone,                      true},
    {Opcode::kRcSendLast,           "RC SEND_LAST",             Kind::kSend,         kLast,   Ext::kNone,                      true},
    {Opcode::kRcSendLastImm,        "RC SEND_LAST_IMM",         Kind::kSend,         kLast,   Ext::kImm,                       true},
    {Opcode::kRcSendOnly,           "RC SEND_ONLY",             Kind::kSend,         kOnly,   Ext::kNone,                      true},
    {Opcode::kRcSendOnlyImm,        "RC SEND_ONLY_IMM",         Kind::kSend,         kOnly,   Ext::kImm,                       true},
    {Opcode::kRcWriteFirst,         "RC WRITE_FIRST",           Kind::kWrite,        kFirst,  Ext::kReth,                      true},
    {Opcode::kRcWriteMiddle,        "RC WRITE_MIDDLE",          Kind::kWrite,        kMiddle, Ext::kNone,                      true},
    {Opcode::kRcWriteLast,          "RC WRITE_LAST",            Kind::kWrite,        kLast,   Ext::kNone,                      true},
    {Opcode::kRcWriteLastImm,       "RC WRITE_LAST_IMM",        Kind::kWrite,        kLast,   Ext::kImm,                       true},
    {Opcode::kRcWriteOnly,          "RC WRITE_ONLY",            Kind::kWrite,        kOnly,   Ext::kReth,                      true},
    {Opcode::kRcWriteOnlyImm,       "RC WRITE_ONLY_IMM",        Kind::kWrite,        kOnly,   Ext::kReth | Ext::kImm,          true},
    {Opcode::kRcReadRequest,        "RC READ_REQUEST",          Kind::kRead,         kOnly,   Ext::kReth,                      false},
    {Opcode::kRcReadResponseFirst,  "RC READ_RESPONSE_FIRST",   Kind::kReadResponse, kFirst,  Ext::kAeth,                      true},
    {Opcode::kRcReadResponseMiddle, "RC READ_RESPONSE_MIDDLE",  Kind::kReadResponse, kMiddle, Ext::kNone,                      true},
    {Opcode::kRcReadResponseLast,   "RC READ_RESPONSE_LAST",    Kind::kReadResponse, kLast,   Ext::kAeth,                      true},
    {Opcode::kRcReadResponseOnly,   "RC READ_RESPONSE_ONLY",    Kind::kReadResponse, kOnly,   Ext::kAeth,                      true},
    {Opcode::kRcAck,                "RC ACK",                   Kind::kAck,          kOnly,   Ext::kAeth,                      false},
    {Opcode::kRcAtomicAck,          "RC ATOMIC_ACK",            Kind::kAtomicAck,    kOnly,   Ext::kAeth | Ext::kAtomicAckEth, false},
    {Opcode::kRcCompareSwap,        "RC COMPARE_SWAP",          Kind::kAtomic,       kOnly,   Ext::kAtomicEth,                 false},
    {Opcode::kRcFetchAdd,           "RC FETCH_ADD",             Kind::kAtomic,       kOnly,   Ext::kAtomicEth,                 false},
    {Opcode::kRcSendLastInv,        "RC SEND_LAST_INV",         Kind::kSend,         kLast,   Ext::kIeth,                      true},
    {Opcode::kRcSendOnlyInv,        "RC SEND_ONLY_INV",         Kind::kSend,         kOnly,   Ext::kIeth,                      true},
    {Opcode::kRcFlush,              "RC FLUSH",                 Kind::kFlush,        kOnly,   Ext::kFeth | Ext::kReth,         false},
    {Opcode::kRcAtomicWrite,        "RC ATOMIC_WRITE",          Kind::kAtomicWrite,  kOnly,   Ext::kReth,                      true},
    {Opcode::kUcSendFirst,          "UC SEND_FIRST",            Kind::kSend,         kFirst,  Ext::kNone,                      true},
    {Opcode::kUcSendMiddle,         "UC SEND_MIDDLE",           Kind::kSend,         kMiddle, Ext::kNone,                      true},
    {Opcode::kUcSendLast,           "UC SEND_LAST",             Kind::kSend,         kLast,   Ext::kNone,                      true},
    {Opcode::kUcSendLastImm,        "UC SEND_LAST_IMM",         Kind::kSend,         kLast,   Ext::kImm,                       true},
    {Opcode::kUcSendOnly,           "UC SEND_ONLY",             Kind::kSend,         kOnly,   Ext::kNone,                      true},
    {Opcode::kUcSendOnlyImm,        "UC SEND_ONLY_IMM",         Kind::kSend,         kOnly,   Ext::kImm,                       true},
    {Opcode::kUcWriteFirst,         "UC WRITE_FIRST",           Kind::kWrite,        kFirst,  Ext::kReth,                      true},
    {Opcode::kUcWriteMiddle,        "UC WRITE_MIDDLE",          Kind::kWrite,        kMiddle, Ext::kNone,                      true},
    {Opcode::kUcWriteLast,          "UC WRITE_LAST",            Kind::kWrite,        kLast,   Ext::kNone,                      true},
    {Opcode::kUcWriteLastImm,       "UC WRITE_LAST_IMM",        Kind::kWrite,        kLast,   Ext::kImm,                       true},
    {Opcode::kUcWriteOnly,          "UC WRITE_ONLY",            Kind::kWrite,        kOnly,   Ext::kReth,                      true},
    {Opcode::kUcWriteOnlyImm,       "UC WRITE_ONLY_IMM",        Kind::kWrite,        kOnly,   Ext::kReth | Ext::kImm,          true},
    {Opcode::kUdSendOnly,           "UD SEND_ONLY",             Kind::kSend,         kOnly,   Ext::kDeth,                      true},
    {Opcode::kUdSendOnlyImm,        "UD SEND_ONLY_IMM",         Kind::kSend,         kOnly,   Ext::kDeth | Ext::kImm,          true},
    {Opcode::kRvtAtomic,            "RVT ATOMIC",               Kind::kExtendedAtomic, kOnly, Ext::kReth | Ext::kRvtAtomicEth, true},
    {Opcode::kRvtAtomicResult,      "RVT ATOMIC_RESULT",        Kind::kExtendedResult, kOnly, Ext::kAeth,                      true},
    {Opcode::kRvtSack,              "RVT SACK",                 Kind::kSack,         kOnly,   Ext::kAeth,                      true},
};
// clang-format on

constexpr QpType service_of(Opcode opcode) noexcept {
    switch (static_cast<std::uint8_t>(opcode) >> 5) {
        case 0: return QpType::kRc;
        case 1: return QpType::kUc;
        case 6: return QpType::kRc;  // our own: the table has them for such pairs alone
        default: return QpType::kUd;
    }
}

constexpr auto by_number() noexcept {
    std::array<OpcodeInfo, 256> table{};
    for (const Row& row : kRows) {
        table[static_cast<std::size_t>(row.opcode)] = {.name = row.name,
                                                       .service = service_of(row.opcode),
                                                       .kind = row.kind,
                                                       .part = row.part,
                                                       .ext = row.ext,
                                                       .header_bytes = header_bytes(row.ext),
                                                       .has_payload = row.has_payload};
    }
    return table;
}

// The other way: SEND, WRITE and READ response by service, kind, part and what stands last.
constexpr std::size_t kServices = 3;
constexpr std::size_t kKinds = 4;
constexpr std::size_t kParts = 4;
constexpr std::size_t kTrailers = 3;

constexpr std::size_t trailer_index(Ext ext) noexcept {
    return has_any(ext, Ext::kImm) ? 1 : has_any(ext, Ext::kIeth) ? 2 : 0;
}
constexpr std::size_t place_of(QpType service, Kind kind, Part part, Ext trailer) noexcept {
    return ((static_cast<std::size_t>(service) * kKinds + static_cast<std::size_t>(kind)) * kParts +
            static_cast<std::size_t>(part)) *
               kTrailers +
           trailer_index(trailer);
}
constexpr auto by_meaning() noexcept {
    std::array<Opcode, kServices * kKinds * kParts * kTrailers> table{};
    for (const Row& row : kRows) {
        if (static_cast<std::size_t>(row.kind) < kKinds) {
            table[place_of(service_of(row.opcode), row.kind, row.part, row.ext)] = row.opcode;
        }
    }
    return table;
}
constexpr auto kByMeaning = by_meaning();

}  // namespace

constinit const std::array<OpcodeInfo, 256> detail::kOpcodeTable = by_number();

Opcode opcode_of(QpType service, Kind kind, Part part, Ext trailer) noexcept {
    return kByMeaning[place_of(service, kind, part, trailer)];
}

}  // namespace rvt::protocol
