// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large one-sided access that both processes copy at once: the initiator from the front, the
// target, which is asked for it part by part (kShare), from the back. Who is faster copies more.
// Small parts are copied several at a time, as the system call costs as much as copying a few KiB.
//
// The right to copy may be lost at any time, on either side. Then the operation starts over through
// the rings; until all its shares are answered, no message passes a write.
// Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

/// Whether the target may be asked for a share of this access.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::may_be_shared(Peer& peer, const RdTxOp& op) noexcept {
    const bool is_whole =
        op.iov_count == 1 && op.remote_count == 1 && !has(op.flags, RdFlags::kHasUse);
    if (!is_whole || op.total < kMinShared || peer.has_refused_share ||
        !peer.path.may_access_memory()) {
        return false;
    }
    // What can be known to fail is left to the ways that report it or go round it.
    std::uint32_t own = 0;
    if (!resolve_key(peer, op.remote[0].key, own)) {
        return false;
    }
    const KeyHit hit = look_up(peer, own, op.remote[0], op.kind == RdTxOp::Kind::kWrite);
    return hit.is_ok() && !hit.indirect;
}

/// Copies the next part. Returns: whether the operation has left the queue.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_shared(Peer& peer, RdTxOp& op) noexcept {
    if (may_go_on(op)) {
        ask_for_shares(peer, op);
        if (is_worth_waiting(peer, op)) {
            return false;
        }
        if (!copy_two(peer, op)) {
            const std::uint64_t part = std::min(op.end - op.done, share_size(op));
            copy_range(peer, op, {.begin = op.done, .end = op.done + part});
            op.done += part;
        }
    }
    if (may_go_on(op)) {
        return false;
    }
    if (op.share_count != 0) {
        access_sent(peer, op);  // nobody may touch the buffers before all shares are answered
    } else {
        leave_queue(peer, op);
        end_shared(peer, op);
    }
    return true;
}

/// Whether there is something left for this process to copy, and it could.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::may_go_on(const RdTxOp& op) noexcept {
    return op.status == WcStatus::kSuccess && op.is_direct && op.done < op.end;
}

/// Whether the small part of an operation that was just posted waits for another, to be copied with
/// it. It waits until the next call into the engine, and only while the target has work.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_worth_waiting(const Peer& peer, RdTxOp& op) noexcept {
    const bool has_waited = std::exchange(op.has_waited, true);
    return !has_waited && op.next == nullptr && op.end - op.done <= kSmallShare &&
           peer.outstanding_accesses != 0;
}

/// Copies the rest of an operation and that of the next one together.
/// Returns: false when they do not go together, or it failed: nothing has been noted then.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::copy_two(Peer& peer, RdTxOp& op) noexcept {
    RdTxOp* const next = op.next;
    if (next == nullptr || next->kind != op.kind || has(next->flags, RdFlags::kFence) ||
        op.end - op.done > kSmallShare || (attr_.orders_reads && op.is_read())) {
        return false;
    }
    begin_access(peer, *next);
    if (!next->is_direct || next->method != RdMethod::kSplit ||
        next->remote[0].key != op.remote[0].key || next->status != WcStatus::kSuccess ||
        next->done != 0) {
        return false;
    }
    ask_for_shares(peer, *next);
    std::uint32_t own = 0;
    if (next->end > kSmallShare || !resolve_key(peer, op.remote[0].key, own)) {
        return false;
    }
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    RdCopyBatch batch;
    station_.mark_use(peer.path.incarnation(), own);
    Status status = refuses_copies(peer) ? Status(ESRCH) : util::kOk;
    for (std::size_t i = 0; i < 2 && status.is_ok(); ++i) {
        const RdTxOp& part = i == 0 ? op : *next;
        const std::uint64_t length = part.end - part.done;
        const KeyHit hit = look_up(
            peer, own,
            {.addr = part.remote[0].addr + part.done, .len = length, .key = part.remote[0].key},
            is_write);
        const bool is_possible =
            hit.is_ok() && !hit.indirect && mapped_target(peer, own, hit, length) == nullptr;
        status = is_possible ? util::kOk : Status(ENOTSUP);
        batch.add(static_cast<std::byte*>(part.iov[0].iov_base) + part.done, hit.base + hit.offset,
                  length);
    }
    if (status.is_ok()) {
        status = is_write ? batch.write_to(peer.path) : batch.read_from(peer.path);
    }
    station_.unmark_use();
    if (!status.is_ok()) {
        return false;
    }
    op.done = op.end;
    next->done = next->end;
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
        hold_messages(peer, op);
        op.end = begin;
        if (peer.path.must_wake_peer()) {
            station_.wake_peer(peer.link);
        }
    }
}

/// A message that passed a share of a write would, if the target cannot copy it, arrive before what
/// was written.
template <class Lock, class Host>
void RdEngine<Lock, Host>::hold_messages(Peer& peer, const RdTxOp& op) noexcept {
    if (op.kind == RdTxOp::Kind::kWrite) {
        ++peer.write_shares;
        ++peer.waiting;
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::let_messages_go(Peer& peer, const RdTxOp& op) noexcept {
    if (op.kind == RdTxOp::Kind::kWrite) {
        --peer.write_shares;
        ++peer.answered_write_shares;
        --peer.waiting;
    }
}

/// Copies a range here. What is not permitted is a failure of the operation; that this process
/// cannot copy (any more) clears its is_direct. Memory that the kernel does not find may be there
/// all the same, as that of a device: the target, which has it mapped, is asked.
template <class Lock, class Host>
void RdEngine<Lock, Host>::copy_range(Peer& peer, RdTxOp& op, RdTxOp::Range range) noexcept {
    const std::uint64_t done = op.done;
    op.done = op.segment_done = range.begin;
    while (op.status == WcStatus::kSuccess && op.done < range.end) {
        op.segment = 0;
        std::uint64_t budget = range.end - op.done;
        const Status copied = copy_direct(peer, op, budget);
        if (copied == Status(EACCES)) {
            op.status = WcStatus::kRemAccessErr;
        } else if (!copied.is_ok()) {
            op.is_direct = false;
            peer.has_refused_share |= copied != Status(EFAULT);
            break;
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
    let_messages_go(peer, op);
    if (status == WcStatus::kLocAccessErr) {
        peer.has_refused_share = true;
        copy_range(peer, op, range);
    } else if (status != WcStatus::kSuccess && op.status == WcStatus::kSuccess) {
        op.status = status;
    }
    if (op.state == RdTxOp::State::kWaiting && op.share_count == 0) {
        access_ended(peer, op);
        end_shared(peer, op);
    }
    return true;
}

/// All that could be copied has been, and no share is open. The operation is in no queue any more.
template <class Lock, class Host>
void RdEngine<Lock, Host>::end_shared(Peer& peer, RdTxOp& op) noexcept {
    if (op.is_direct || op.status != WcStatus::kSuccess) {
        finish_shared(peer, op);
        return;
    }
    leave_direct(op);
    op.state = RdTxOp::State::kStreaming;
    op.is_in_line = false;
    peer.fences += has(op.flags, RdFlags::kFence) ? 1 : 0;
    peer.accesses.push(&op);
    ++peer.waiting;
    make_busy(peer);
}

/// Reports an access that is in no queue any more and of which no share is open.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_shared(Peer& peer, RdTxOp& op) noexcept {
    const bool wants_event = has(op.flags, RdFlags::kData) || peer.path.wants_rma_events();
    if (wants_event && op.status == WcStatus::kSuccess) {
        const RdAccess access = access_of(op);
        reply(peer, RdOp::kRmaEvent, event_flags(op), op.data, &access, sizeof access);
    }
    learn_access(op, peer.has_no_access());
    finish_tx(op, op.status);
}

// ---- target ----

/// Copies a part of the initiator's access between its memory and the region that it names, and the
/// small parts that have been asked for behind it.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_share(Peer& peer, const Arrival& arrival) noexcept {
    if (peer.shares_ahead != 0) {
        --peer.shares_ahead;  // done with the one before it
        return true;
    }
    std::array<RdShare, RdCopyBatch::kMaxPieces> shares;
    if (arrival.length() != sizeof shares[0]) {
        return false;
    }
    arrival.copy_payload(&shares[0], sizeof shares[0]);
    if (shares[0].length == 0 || shares[0].length > kMaxShare) {
        return false;
    }
    std::size_t count = 1;
    while (count < RdCopyBatch::kMaxPieces && shares[count - 1].length <= kSmallShare &&
           peer.path.peek_behind(count, RdOp::kShare, arrival.flags(), &shares[count],
                                 sizeof shares[0]) &&
           shares[count].length - 1 < kSmallShare) {
        ++count;
    }
    peer.shares_ahead = static_cast<std::uint32_t>(count - 1);
    const ReadPin pin(pin_);
    const bool is_write = (arrival.flags() & wire::kEvent) != 0;
    if (count == 1 || !copy_shares(peer, is_write, shares.data(), count)) {
        for (std::size_t i = 0; i < count; ++i) {
            copy_share(peer, is_write, shares[i]);
        }
    }
    return true;
}

template <class Lock, class Host>
KeyHit RdEngine<Lock, Host>::lookup_share(const RdShare& share, bool is_write) noexcept {
    return lookup({.key = share.key,
                   .address = share.address,
                   .length = share.length,
                   .operation = share.operation},
                  is_write ? Access::kRemoteWrite : Access::kRemoteRead);
}

/// Copies several parts together and answers. Returns: false when that is not possible: nobody has
/// been answered then. The caller holds the pin.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::copy_shares(Peer& peer, bool is_write, const RdShare* shares,
                                       std::size_t count) noexcept {
    RdCopyBatch batch;
    for (std::size_t i = 0; i < count; ++i) {
        const KeyHit hit = lookup_share(shares[i], is_write);
        if (!hit.is_ok() || hit.indirect) {
            return false;
        }
        batch.add(hit.data(), shares[i].place, shares[i].length);
    }
    // What the initiator writes is read here.
    if (!copy_named(peer, !is_write, batch).is_ok()) {
        return false;
    }
    for (std::size_t i = 0; i < count; ++i) {
        answer_share(peer, shares[i], WcStatus::kSuccess);
    }
    return true;
}

/// Copies one part and answers. The caller holds the pin.
template <class Lock, class Host>
void RdEngine<Lock, Host>::copy_share(Peer& peer, bool is_write, const RdShare& share) noexcept {
    const KeyHit hit = lookup_share(share, is_write);
    WcStatus status = to_wc_status(hit.verdict);
    if (hit.is_ok()) {
        RdCopyBatch batch;
        batch.add(hit.indirect ? nullptr : hit.data(), share.place, share.length);
        const Status copied = hit.indirect ? Status(EPERM) : copy_named(peer, !is_write, batch);
        status = copied.is_ok() ? WcStatus::kSuccess : WcStatus::kLocAccessErr;
    }
    answer_share(peer, share, status);
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::answer_share(Peer& peer, const RdShare& share,
                                        WcStatus status) noexcept {
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = 0};
    reply(peer, RdOp::kAccessDone, 0, share.operation, &outcome, sizeof outcome);
}

}  // namespace rvt::core
