// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_* flags of an operation as the RD service's own. Done once for the flags an endpoint was
// opened with, and without a branch for those that a call brings.
#pragma once

#include <cstdint>

#include "core/rd_types.h"
#include "ofi/compat.h"
#include "util/cpu.h"

namespace rvt::ofi {

using core::RdFlags;

/// Moves one FI bit to the place of one RdFlags bit.
RVT_ALWAYS_INLINE constexpr RdFlags move_bit(std::uint64_t flags, std::uint64_t from,
                                             RdFlags to) noexcept {
    const std::uint64_t is_set = (flags / from) & 1;  // `from` is a constant: a shift
    return static_cast<RdFlags>(static_cast<std::uint32_t>(is_set) *
                                static_cast<std::uint32_t>(to));
}

inline constexpr std::uint64_t kSendFlags =
    FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA | FI_MORE | FI_FENCE | FI_INJECT_COMPLETE |
    FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
inline constexpr std::uint64_t kReadFlags = FI_COMPLETION | FI_MORE | FI_FENCE |
                                            FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                            FI_DELIVERY_COMPLETE;
inline constexpr std::uint64_t kAtomicFlags = kReadFlags | FI_INJECT;
// FI_TRANSMIT_COMPLETE asks for less than a completed receive here is, fi_msg(3).
inline constexpr std::uint64_t kRecvFlags =
    FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_TRANSMIT_COMPLETE;
inline constexpr std::uint64_t kTaggedRecvFlags =
    FI_COMPLETION | FI_MORE | FI_PEEK | FI_CLAIM | FI_DISCARD | FI_TRANSMIT_COMPLETE;

/// FI_INJECT_COMPLETE and FI_TRANSMIT_COMPLETE ask for less than every completion here gives.
RVT_ALWAYS_INLINE constexpr RdFlags to_send_flags(std::uint64_t flags) noexcept {
    return move_bit(flags, FI_COMPLETION, RdFlags::kCompletion) |
           move_bit(flags, FI_INJECT, RdFlags::kInject) |
           move_bit(flags, FI_REMOTE_CQ_DATA, RdFlags::kData) |
           move_bit(flags, FI_MORE, RdFlags::kMore) | move_bit(flags, FI_FENCE, RdFlags::kFence) |
           move_bit(flags, FI_DELIVERY_COMPLETE, RdFlags::kDeliveryComplete) |
           move_bit(flags, FI_MATCH_COMPLETE, RdFlags::kMatchComplete);
}

RVT_ALWAYS_INLINE constexpr RdFlags to_recv_flags(std::uint64_t flags) noexcept {
    return move_bit(flags, FI_COMPLETION, RdFlags::kCompletion) |
           move_bit(flags, FI_MORE, RdFlags::kMore) |
           move_bit(flags, FI_MULTI_RECV, RdFlags::kMultiRecv) |
           move_bit(flags, FI_PEEK, RdFlags::kPeek) | move_bit(flags, FI_CLAIM, RdFlags::kClaim) |
           move_bit(flags, FI_DISCARD, RdFlags::kDiscard);
}

}  // namespace rvt::ofi
