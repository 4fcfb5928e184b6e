// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Every kind of operation that an RDM endpoint can have under way, for cases in which its peer
// dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include <sys/uio.h>

#include "common/endpoint.h"

namespace fab {

inline constexpr std::size_t kMiddleOp = 64 << 10;
inline constexpr std::size_t kLargeOp = 4 << 20;
inline constexpr std::uint64_t kTaken = 1;   ///< Tag of messages for which the victim has receives.
inline constexpr std::uint64_t kLate = 2;    ///< It posts their receives later, if it polls.
inline constexpr std::uint64_t kNever = 3;   ///< It never does.
inline constexpr std::uint64_t kReturn = 4;  ///< Of the victim's messages to the survivor.
inline constexpr std::uint64_t kUnread =
    5;  ///< Of those that the survivor receives after its death.

/// Between whom an operation is, and what memory it has.
struct Aim {
    const Endpoint& ep;
    fi_addr_t peer;
    RemoteRegion remote;  ///< Of kLargeOp bytes.
    const Buffer& source;
    const Buffer& sink;  ///< Of twice as many.
};

/// One kind: `flags` and `tag` as it needs them.
struct Kind {
    const char* name;
    ssize_t (*post)(const Aim& aim, const Kind& kind, void* context);
    std::size_t size;
    std::uint64_t flags = 0;
    std::uint64_t tag = 0;
};

inline ssize_t post_write(const Aim& aim, const Kind& kind, void* context) {
    const iovec piece{aim.source.as(), kind.size};
    void* desc = aim.source.desc();
    const fi_rma_iov place{aim.remote.base, kind.size, aim.remote.key};
    const fi_msg_rma message{&piece, &desc, 1, aim.peer, &place, 1, context, 7};
    return fi_writemsg(aim.ep.ep, &message, kind.flags | FI_COMPLETION);
}

inline ssize_t post_read(const Aim& aim, const Kind& kind, void* context) {
    // Each of them has a place of its own: the smaller ones below half of the largest.
    return fi_read(aim.ep.ep, aim.sink.as() + kind.size, kind.size, aim.sink.desc(), aim.peer,
                   aim.remote.base, aim.remote.key, context);
}

inline ssize_t post_atomic(const Aim& aim, const Kind& kind, void* context) {
    return fi_atomic(aim.ep.ep, aim.source.as(), kind.size / 8, aim.source.desc(), aim.peer,
                     aim.remote.base, aim.remote.key, FI_UINT64, FI_SUM, context);
}

inline ssize_t post_fetch(const Aim& aim, const Kind& kind, void* context) {
    return fi_fetch_atomic(aim.ep.ep, aim.source.as(), kind.size / 8, aim.source.desc(),
                           aim.sink.as() + 2 * kMiddleOp, aim.sink.desc(), aim.peer,
                           aim.remote.base, aim.remote.key, FI_UINT64, FI_SUM, context);
}

inline ssize_t post_compare(const Aim& aim, const Kind& kind, void* context) {
    return fi_compare_atomic(aim.ep.ep, aim.source.as(), kind.size / 8, aim.source.desc(),
                             aim.source.as() + kMiddleOp, aim.source.desc(),
                             aim.sink.as() + 3 * kMiddleOp, aim.sink.desc(), aim.peer,
                             aim.remote.base, aim.remote.key, FI_UINT64, FI_CSWAP, context);
}

inline ssize_t post_tagged(const Aim& aim, const Kind& kind, void* context) {
    const iovec piece{aim.source.as(), kind.size};
    void* desc = aim.source.desc();
    const fi_msg_tagged message{&piece, &desc, 1, aim.peer, kind.tag, 0, context, 0};
    return fi_tsendmsg(aim.ep.ep, &message, kind.flags | FI_COMPLETION);
}

inline ssize_t post_message(const Aim& aim, const Kind& kind, void* context) {
    return fi_send(aim.ep.ep, aim.source.as(), kind.size, aim.source.desc(), aim.peer, context);
}

inline constexpr Kind kKinds[] = {
    {"write", post_write, 8},
    {"write", post_write, kMiddleOp},
    {"write", post_write, kLargeOp},
    {"injected write", post_write, 8, FI_INJECT},
    {"delivered write", post_write, 8, FI_DELIVERY_COMPLETE},
    {"delivered write", post_write, kLargeOp, FI_DELIVERY_COMPLETE},
    {"write with data", post_write, kMiddleOp, FI_REMOTE_CQ_DATA},
    {"read", post_read, 8},
    {"read", post_read, kMiddleOp},
    {"read", post_read, kLargeOp},
    {"fenced write", post_write, 8, FI_FENCE},
    {"atomic", post_atomic, 8},
    {"atomic", post_atomic, 4096},
    {"fetching atomic", post_fetch, 8},
    {"fetching atomic", post_fetch, 4096},
    {"comparing atomic", post_compare, 8},
    {"comparing atomic", post_compare, 4096},
    {"injected send", post_tagged, 8, FI_INJECT, kTaken},
    {"injected send", post_tagged, 64, FI_INJECT | FI_MATCH_COMPLETE, kLate},
    {"send that waits", post_tagged, 8, 0, kNever},
    {"send that waits", post_tagged, kMiddleOp, 0, kNever},
    {"send that waits", post_tagged, kLargeOp, 0, kNever},
    {"matched send", post_tagged, 8, FI_MATCH_COMPLETE, kLate},
    {"matched send", post_tagged, kMiddleOp, FI_MATCH_COMPLETE, kLate},
    {"matched send", post_tagged, kLargeOp, FI_MATCH_COMPLETE, kLate},
    {"unmatched send", post_tagged, 8, FI_MATCH_COMPLETE, kNever},
    {"delivered send", post_tagged, 8, FI_DELIVERY_COMPLETE, kLate},
    {"delivered send", post_tagged, kMiddleOp, FI_DELIVERY_COMPLETE, kLate},
    {"delivered send", post_tagged, kLargeOp, FI_DELIVERY_COMPLETE, kLate},
    {"undelivered send", post_tagged, 8, FI_DELIVERY_COMPLETE, kNever},
    {"pulled send", post_tagged, kMiddleOp, 0, kTaken},
    {"pulled send", post_tagged, kLargeOp, 0, kTaken},
    {"message", post_message, 8},
    {"message", post_message, kLargeOp},
};
inline constexpr std::size_t kKindCount = std::size(kKinds);

}  // namespace fab
