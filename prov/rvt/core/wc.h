// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Work completions: what a completion queue holds. One superset entry serves verbs and libfabric
// readers.
#pragma once

#include <cstdint>

#include "util/cpu.h"

namespace rvt::core {

/// Outcome of a work request, named as ibv_wc_status (ibv_poll_cq(3)); those after kGeneralErr are
/// outcomes of the RD service, which verbs does not have.
enum class WcStatus : std::uint32_t {
    kSuccess,
    kLocLenErr,
    kLocQpOpErr,
    kLocProtErr,
    kWrFlushErr,
    kMwBindErr,
    kBadRespErr,
    kLocAccessErr,
    kRemInvReqErr,
    kRemAccessErr,
    kRemOpErr,
    kRetryExcErr,
    kRnrRetryExcErr,
    kGeneralErr,
    kCanceled,         // fi_cancel(3)
    kTruncated,        // message longer than the receive buffer
    kNoMessage,        // a peek found nothing
    kPeerDead,         // the peer's process ended or its connection broke
    kPeerUnreachable,  // nobody answered at the address within the connect time-out
    kNoMemory,         // no memory for what the operation needs
    kTmErr,            // verbs' own: a tag to take back has been taken by a message
    kCount,
};

/// Completion flags. The values are those of the FI_* bits of the same name (fi_cq(3)), which ofi/
/// asserts, so that a reader in any format copies them as they are.
inline constexpr std::uint64_t kWcMsg = 1ull << 1;
inline constexpr std::uint64_t kWcRma = 1ull << 2;
inline constexpr std::uint64_t kWcTagged = 1ull << 3;
inline constexpr std::uint64_t kWcAtomic = 1ull << 4;
inline constexpr std::uint64_t kWcMulticast = 1ull << 5;  // sent to a group
inline constexpr std::uint64_t kWcRead = 1ull << 8;
inline constexpr std::uint64_t kWcWrite = 1ull << 9;
inline constexpr std::uint64_t kWcRecv = 1ull << 10;
inline constexpr std::uint64_t kWcSend = 1ull << 11;
inline constexpr std::uint64_t kWcRemoteRead = 1ull << 12;
inline constexpr std::uint64_t kWcRemoteWrite = 1ull << 13;
inline constexpr std::uint64_t kWcMultiRecv = 1ull << 16;
inline constexpr std::uint64_t kWcRemoteCqData = 1ull << 17;

/// `source` of a completion whose sender is not in the address vector, or that has no sender.
inline constexpr std::uint64_t kSourceNotAvailable = ~0ull;

/// One completion; exactly one cache line.
///
/// | field      | libfabric reader              | verbs reader                          |
/// |------------|-------------------------------|---------------------------------------|
/// | op_context | op_context                    | wr_id                                 |
/// | flags      | flags                         | wc_flags, opcode (kWc* bits)          |
/// | len        | len                           | byte_len                              |
/// | buf        | buf                           | tag of a matched message              |
/// | data       | data                          | imm_data or invalidated rkey (low 32) |
/// |            |                               | app_ctx of a matched message (high 32)|
/// | tag        | tag                           | qp_num (low 32), src_qp (high 32)     |
/// | source     | fi_addr of the sender         | UDP port of the sender (UD)           |
/// | status     | err                           | status                                |
/// | extra      | olen (truncation), or 2^32-1   | vendor_err                            |
struct alignas(util::kCacheLine) Cqe {
    void* op_context = nullptr;
    std::uint64_t flags = 0;
    std::uint64_t len = 0;
    void* buf = nullptr;
    std::uint64_t data = 0;
    std::uint64_t tag = 0;
    std::uint64_t source = kSourceNotAvailable;
    WcStatus status = WcStatus::kSuccess;
    std::uint32_t extra = 0;
};
static_assert(sizeof(Cqe) == util::kCacheLine);

}  // namespace rvt::core
