// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The work-request table: for each opcode the types of pair that take it, the operands it reads and
// the flags it allows. Each check of post_send() is a look at a row of it. IBTA vol. 1, 10.8.2
// and 11.4.1.
#pragma once

#include <array>
#include <cstddef>

#include "core/verbs_wc.h"
#include "rvt/types.h"

namespace rvt::core {

/// What an opcode does, as bits that the data path asks about.
enum class OpTraits : std::uint16_t {
    kNone = 0,
    kPayload = 1u << 0,       // carries the bytes of its list to the peer
    kResult = 1u << 1,        // brings bytes back into its list, which needs LOCAL_WRITE
    kRemoteAddr = 1u << 2,    // names memory of the peer: remote_addr and rkey
    kImm = 1u << 3,           // carries imm
    kConsumesRecv = 1u << 4,  // uses up a receive of the peer
    kAtomic = 1u << 5,        // eight bytes, aligned, one element in the list
    kLocal = 1u << 6,         // never leaves the device
    kInvalidates = 1u << 7,   // carries a key that the peer invalidates
    kAnswered = 1u << 8,      // has an answer of its own, and counts against max_rd_atomic
};
}  // namespace rvt::core

template <>
struct rvt::IsFlags<rvt::core::OpTraits> : std::true_type {};

namespace rvt::core {

/// A set of types of pair.
enum class QpTypes : std::uint8_t { kNone = 0, kRc = 1, kUc = 2, kUd = 4, kRd = 8 };
}  // namespace rvt::core

template <>
struct rvt::IsFlags<rvt::core::QpTypes> : std::true_type {};

namespace rvt::core {

struct WrInfo {
    WrOpcode opcode;
    const char* name;
    WcOpcode wc_opcode;  // of the completion at the sender
    QpTypes types;
    OpTraits traits;
    SendFlags flags;       // allowed ones
    Access remote_access;  // what the peer's key and queue pair must allow; FLUSH: what it names
};

namespace wr_table_detail {
using enum OpTraits;
constexpr QpTypes kRcOnly = QpTypes::kRc | QpTypes::kRd;
constexpr QpTypes kConnected = QpTypes::kRc | QpTypes::kUc | QpTypes::kRd;
constexpr QpTypes kAll = kConnected | QpTypes::kUd;
constexpr SendFlags kNoInline = SendFlags::kSignaled | SendFlags::kFence | SendFlags::kMore;
constexpr SendFlags kUnsolicited = kNoInline | SendFlags::kInline;
constexpr SendFlags kAnyFlag = kUnsolicited | SendFlags::kSolicited;
constexpr Access kAnyFlush = Access::kFlushGlobal | Access::kFlushPersistent;

// clang-format off
inline constexpr std::array<WrInfo, kWrOpcodes> kRows = {{
    // opcode                   name               completion                 types       traits                                           flags         remote access
    {WrOpcode::kSend,         "SEND",            WcOpcode::kSend,           kAll,       kPayload | kConsumesRecv,                        kAnyFlag,     Access::kNone},
    {WrOpcode::kSendImm,      "SEND_IMM",        WcOpcode::kSend,           kAll,       kPayload | kConsumesRecv | kImm,                 kAnyFlag,     Access::kNone},
    {WrOpcode::kSendInv,      "SEND_INV",        WcOpcode::kSend,           kRcOnly,    kPayload | kConsumesRecv | kInvalidates,         kAnyFlag,     Access::kNone},
    {WrOpcode::kWrite,        "WRITE",           WcOpcode::kWrite,          kConnected, kPayload | kRemoteAddr,                          kUnsolicited, Access::kRemoteWrite},
    {WrOpcode::kWriteImm,     "WRITE_IMM",       WcOpcode::kWrite,          kConnected, kPayload | kRemoteAddr | kConsumesRecv | kImm,   kAnyFlag,     Access::kRemoteWrite},
    {WrOpcode::kRead,         "READ",            WcOpcode::kRead,           kRcOnly,    kResult | kRemoteAddr | kAnswered,               kNoInline,    Access::kRemoteRead},
    {WrOpcode::kCas,          "CAS",             WcOpcode::kCas,            kRcOnly,    kResult | kRemoteAddr | kAtomic | kAnswered,     kNoInline,    Access::kRemoteAtomic},
    {WrOpcode::kFetchAdd,     "FETCH_ADD",       WcOpcode::kFetchAdd,       kRcOnly,    kResult | kRemoteAddr | kAtomic | kAnswered,     kNoInline,    Access::kRemoteAtomic},
    {WrOpcode::kLocalInv,     "LOCAL_INV",       WcOpcode::kLocalInv,       kConnected, kLocal,                                          kNoInline,    Access::kNone},
    {WrOpcode::kBindMw,       "BIND_MW",         WcOpcode::kBindMw,         kConnected, kLocal,                                          kNoInline,    Access::kNone},
    {WrOpcode::kFlush,        "FLUSH",           WcOpcode::kFlush,          kRcOnly,    kRemoteAddr | kAnswered,                         kNoInline,    kAnyFlush},
    {WrOpcode::kAtomicWrite,  "ATOMIC_WRITE",    WcOpcode::kAtomicWrite,    kRcOnly,    kPayload | kRemoteAddr | kAtomic | kAnswered,    kUnsolicited, Access::kRemoteWrite},
    {WrOpcode::kExtendedAtomic,"EXTENDED_ATOMIC", WcOpcode::kExtendedAtomic, kRcOnly,    kPayload | kResult | kRemoteAddr | kAnswered,    kUnsolicited, Access::kRemoteAtomic},
}};
// clang-format on

constexpr bool rows_are_in_the_order_of_their_opcodes() {
    for (std::size_t i = 0; i < kRows.size(); ++i) {
        if (static_cast<std::size_t>(kRows[i].opcode) != i) {
            return false;
        }
    }
    return true;
}
static_assert(rows_are_in_the_order_of_their_opcodes());
}  // namespace wr_table_detail

/// The row of an opcode, or nullptr for a number that is none.
constexpr const WrInfo* wr_info(WrOpcode opcode) noexcept {
    const auto i = static_cast<std::size_t>(opcode);
    return i < kWrOpcodes ? &wr_table_detail::kRows[i] : nullptr;
}

/// Whether a FLUSH goes somewhere that exists, and of memory that can be named so.
constexpr bool is_flush(FlushType type, FlushLevel level) noexcept {
    return type != FlushType::kNone &&
           without(type, FlushType::kGlobal | FlushType::kPersistent) == FlushType::kNone &&
           level <= FlushLevel::kRegion;
}

constexpr bool takes(const WrInfo& row, QpType type) noexcept {
    return has_any(row.types, static_cast<QpTypes>(1u << static_cast<unsigned>(type)));
}

}  // namespace rvt::core
