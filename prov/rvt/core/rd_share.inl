// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large one-sided access that both processes copy at once: the initiator from the front, the
// target, which is asked for it part by part (kShare), from the back. Who is faster copies more.
// Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

/// Whether the target may be asked for a share of this access.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::may_be_shared(Peer& peer, const RdTxOp& op) noexcept {
    const bool is_whole = op.iov_count == 1 && op.remote_count == 1;
    if (!is_whole || op.total < kMinShared || peer.has_refused_share ||
        !peer.path.may_access_memory()) {
        return false;
    }
    // What can be known to fail is left to the ways that report it or go round it.
    std::uint32_t own = 0;
    if (!resolve_key(peer, op.remote[0].key, own)) {
        return false;
    }
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    const KeyHit hit =
        peer.keys_view.lookup({.key = own,
                               .pd = peer.path.key_domain(),
                               .addr = op.remote[0].addr,
                               .length = op.total,
                               .access = is_write ? Access::kRemoteWrite : Access::kRemoteRead});
    return hit.is_ok() && !hit.scattered;
}

/// Copies the next part. Returns: whether the operation has left the queue.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_shared(Peer& peer, RdTxOp& op) noexcept {
    if (op.status == WcStatus::kSuccess && op.done < op.end) {
        ask_for_shares(peer, op);
        const std::uint64_t part = std::min(op.end - op.done, share_size(op));
        copy_range(peer, op, {.begin = op.done, .end = op.done + part});
        op.done += part;
    }
    if (op.status == WcStatus::kSuccess && op.done < op.end) {
        return false;
    }
    if (op.share_count != 0) {
        access_sent(peer, op);  // nobody may touch the buffers before all shares are answered
    } else {
        leave_queue(peer, op);
        finish_shared(peer, op);
    }
    return true;
}

template <class Lock, class Host>
std::uint64_t RdEngine<Lock, Host>::share_size(const RdTxOp& op) noexcept {
    return std::clamp((op.total + 1) / 2, kMinShared / 2, kMaxShare);
}

/// Hands parts at the back to the target, as long as one remains for this process.
template <class Lock, class Host>
void RdEngine<Lock, Host>::ask_for_shares(Peer& peer, RdTxOp& op) noexcept {
    const std::uint64_t size = share_size(op);
    const auto flags =
        static_cast<std::uint8_t>(op.kind == RdTxOp::Kind::kWrite ? wire::kEvent : 0);
    while (op.share_count < op.shares.size() && op.end - op.done > size &&
           !peer.has_refused_share) {
        const std::uint64_t begin = std::max(op.done + size, op.end - size);
        const RdShare share{.key = op.remote[0].key,
                            .address = op.remote[0].addr + begin,
                            .length = op.end - begin,
                            .operation = util::Pool<RdTxOp>::name_of(op),
                            .place = reinterpret_cast<std::uint64_t>(op.iov[0].iov_base) + begin};
        if (!peer.path.put(RdOp::kShare, flags, 0, 0, &share, sizeof share)) {
            return;
        }
        op.shares[op.share_count++] = {.begin = begin, .end = op.end};
        op.end = begin;
        if (peer.path.has_peer_control() && !peer.path.is_peer_polling()) {
            station_.wake_peer(peer.link);
        }
    }
}

/// Copies a range here. A failure is the operation's.
template <class Lock, class Host>
void RdEngine<Lock, Host>::copy_range(Peer& peer, RdTxOp& op, RdTxOp::Range range) noexcept {
    const std::uint64_t done = op.done;
    op.done = op.segment_done = range.begin;
    while (op.status == WcStatus::kSuccess && op.done < range.end) {
        op.segment = 0;
        std::uint64_t budget = range.end - op.done;
        if (!copy_direct(peer, op, budget).is_ok()) {
            op.status = WcStatus::kRemAccessErr;
        }
    }
    op.segment = 0;
    op.done = done;
}

/// The target has answered for the oldest share. What it could not copy is copied here.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_share_done(Peer& peer, RdTxOp& op, WcStatus status) noexcept {
    const RdTxOp::Range range = op.shares[0];
    op.shares[0] = op.shares[1];
    --op.share_count;
    if (status == WcStatus::kLocAccessErr) {
        peer.has_refused_share = true;
        copy_range(peer, op, range);
    } else if (status != WcStatus::kSuccess && op.status == WcStatus::kSuccess) {
        op.status = status;
    }
    if (op.state == RdTxOp::State::kWaiting && op.share_count == 0) {
        --peer.outstanding;
        --peer.outstanding_accesses;
        finish_shared(peer, op);
    }
    return true;
}

/// Reports an access that is in no queue any more and of which no share is open.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_shared(Peer& peer, RdTxOp& op) noexcept {
    const bool wants_event = has(op.flags, RdFlags::kData) || peer.path.wants_rma_events();
    if (wants_event && op.status == WcStatus::kSuccess) {
        const RdAccess access = access_of(op);
        reply(peer, RdOp::kRmaEvent, event_flags(op), op.data, &access, sizeof access);
    }
    learn_access(op);
    finish_tx(op, op.status);
}

// ---- target ----

/// Copies a part of the initiator's access between its memory and the region that it names.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_share(Peer& peer, const Arrival& arrival) noexcept {
    RdShare share;
    if (arrival.length() != sizeof share) {
        return false;
    }
    arrival.copy_payload(&share, sizeof share);
    if (share.length == 0 || share.length > kMaxShare) {
        return false;
    }
    const bool is_write = (arrival.flags() & wire::kEvent) != 0;
    const ReadPin pin(pin_);
    const KeyHit hit = lookup({.key = share.key,
                               .address = share.address,
                               .length = share.length,
                               .operation = share.operation},
                              is_write ? Access::kRemoteWrite : Access::kRemoteRead);
    WcStatus status = to_wc_status(hit.verdict);
    if (hit.is_ok()) {
        const bool is_possible = !hit.scattered && peer.path.may_access_memory();
        const iovec here{is_possible ? hit.data() : nullptr, share.length};
        const Status copied = !is_possible ? Status(EPERM)
                              : is_write   ? peer.path.read_memory(here, share.place)
                                           : peer.path.write_memory(here, share.place);
        status = copied.is_ok() ? WcStatus::kSuccess : WcStatus::kLocAccessErr;
    }
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = 0};
    reply(peer, RdOp::kAccessDone, 0, share.operation, &outcome, sizeof outcome);
    return true;
}

}  // namespace rvt::core
