// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A work completion as verbs readers see it, and its place in the entry that all readers share
// (core/wc.h).
#pragma once

#include <cstdint>

#include "core/wc.h"
#include "rvt/flags.h"

namespace rvt::core {

enum class WcOpcode : std::uint8_t {
    kSend,
    kWrite,
    kRead,
    kCas,
    kFetchAdd,
    kLocalInv,
    kBindMw,
    kRecv,
    kRecvWriteImm,
    kTmAdd,    // a tag-matching receive was posted
    kTmDel,    // and taken back
    kTmRecv,   // and filled by a message; without kTmMatch: a message no tag took, in a plain
               // receive
    kTmSync,   // the counts of unexpected messages were compared
    kTmNoTag,  // a message that asked for a plain receive
    kFlush,
    kAtomicWrite,
    kExtendedAtomic,
};

enum class WcFlags : std::uint8_t {
    kNone = 0,
    kGrh = 1u << 0,          // the first 40 bytes of the buffer are a global route header
    kWithImm = 1u << 1,      // imm came with the message
    kWithInv = 1u << 2,      // imm is the key that the message invalidated
    kTmMatch = 1u << 3,      // a posted tag matched; else the message was unexpected
    kTmDataValid = 1u << 4,  // and its data is in the buffer; always with kTmMatch
    kTmSyncReq = 1u << 5,    // new tags wait until unexpected messages have been handled
};

/// As ibv_wc. On an error only wr_id, status, qpn and vendor_err mean something.
struct Wc {
    std::uint64_t wr_id = 0;
    WcStatus status = WcStatus::kSuccess;
    WcOpcode opcode = WcOpcode::kSend;
    WcFlags flags = WcFlags::kNone;
    std::uint64_t byte_len = 0;  // receives and READs
    std::uint32_t imm = 0;
    std::uint32_t qpn = 0;
    std::uint32_t src_qpn = 0;     // UD
    std::uint16_t src_port = 0;    // UD: of the device whose address is in the route header
    std::uint32_t vendor_err = 0;  // why, finer than the status; 0: nothing to add
    std::uint64_t tm_tag = 0;      // kTmRecv with kTmMatch, as the next
    std::uint32_t tm_app_ctx = 0;
};

/// The shared entry for a verbs completion. Opcode and flags ride in bits 48 to 63 of Cqe::flags,
/// which no FI_* bit uses.
Cqe to_cqe(const Wc& wc) noexcept;
Wc from_cqe(const Cqe& cqe) noexcept;

/// The name of a status, lower case, for logs.
const char* to_string(WcStatus status) noexcept;

}  // namespace rvt::core

template <>
struct rvt::IsFlags<rvt::core::WcFlags> : std::true_type {};
