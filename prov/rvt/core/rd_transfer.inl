// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large messages: the receiver fetches them from the sender. Included by rd_engine.h.
//
// The sender keeps the message and sends a header (kRendezvous). When it is matched, the receiver
// picks a method:
//   pipeline  asks (kPull); the sender streams kPullData through the rings, both copy at the same
//             time. To who seems to wait for the message, its head goes unasked behind the header
//   direct    reads the sender's memory itself
//   fetch     over a NIC: lets it read the sender's memory; of a device, lets its library do that
//             (rd_device.inl)
//   split     reads one half, asks the sender (kPull with an address) to write the other half, who
//             then says kPullDone
// What one of the two may not copy is asked for again and goes through the rings.
// In each case kFinish ends the sender's operation.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

// ---- receiver ----

/// Begins to fetch a message that has its receive.
template <class Lock, class Host>
void RdEngine<Lock, Host>::start_pull(RdInbound& inbound) noexcept {
    auto& peer = static_cast<Peer&>(*inbound.peer);
    const std::uint64_t wanted = std::min(inbound.total, inbound.buffer_capacity);
    inbound.end = wanted;
    if (wanted == 0) {
        finish_pull(inbound);
        return;
    }
    if (inbound.is_readable && (peer.path.is_remote() ? fetch(inbound) : take_device(inbound))) {
        return;
    }
    RdMethodChooser::Mask allowed = RdMethodChooser::bit(RdMethod::kPipeline);
    if (inbound.sender_address != 0 && !inbound.is_readable && peer.path.may_access_memory()) {
        allowed |= RdMethodChooser::bit(RdMethod::kDirect);
        const bool is_contiguous =
            inbound.entry->iov_count == 1 && !has(inbound.entry->flags, RdFlags::kHasUse);
        if (is_contiguous && wanted >= kMinSplit && !peer.path.is_same_process() &&
            !peer.has_refused_share) {
            allowed |= RdMethodChooser::bit(RdMethod::kSplit);
        }
    }
    inbound.method =
        peer.path.is_remote() ? RdMethod::kPipeline : pull_methods_.choose(wanted, allowed);
    const bool has_head = peer.head_for == util::Pool<RdInbound>::name_of(inbound);
    const bool takes_head =
        has_head && inbound.method == RdMethod::kPipeline && wanted > wire::kHeadBytes;
    if (has_head && !takes_head) {
        peer.head_for = 0;
    }
    inbound.started = util::cpu_ticks();
    ++pulls_;
    switch (inbound.method) {
        case RdMethod::kDirect: copy_directly(inbound); break;
        case RdMethod::kSplit: {
            const std::uint64_t half = wanted / 2;
            inbound.waits_for_share = true;
            ask_for_data(inbound, half, wanted,
                         reinterpret_cast<std::uint64_t>(inbound.place.iov_base) + half);
            inbound.end = half;
            copy_directly(inbound);
            break;
        }
        case RdMethod::kPipeline:
        case RdMethod::kCount:
            inbound.state = RdInbound::State::kPulling;
            ask_for_data(inbound, takes_head ? wire::kHeadBytes : 0, wanted, 0);
            break;
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::ask_for_data(RdInbound& inbound, std::uint64_t begin, std::uint64_t end,
                                        std::uint64_t address) noexcept {
    const RdPull pull{.operation = util::Pool<RdInbound>::name_of(inbound),
                      .address = address,
                      .begin = begin,
                      .end = end};
    reply(static_cast<Peer&>(*inbound.peer), RdOp::kPull, 0, inbound.sender_operation, &pull,
          sizeof pull);
}

/// Whether what this process reads of a message is small and goes to one place.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_small_copy(const RdInbound& inbound) const noexcept {
    return inbound.end - inbound.received <= kSmallShare && inbound.entry->iov_count == 1 &&
           !inbound.is_readable;
}

/// Lets the NIC read the message into its place. Returns: false where it cannot: the message is
/// asked for then.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::fetch(RdInbound& inbound) noexcept {
    const RdRxEntry& entry = *inbound.entry;
    if (entry.iov_count != 1) {
        return false;
    }
    Path& path = static_cast<Peer&>(*inbound.peer).path;
    const std::uint64_t name = util::Pool<RdInbound>::name_of(inbound);
    const auto state = std::exchange(inbound.state, RdInbound::State::kFetching);
    bool is_asked = false;
    if (!has(entry.flags, RdFlags::kHasUse)) {
        const iovec to{inbound.place.iov_base, static_cast<std::size_t>(inbound.end)};
        is_asked = path.fetch(to, inbound.sender_address, inbound.sender_key, name);
    } else if (const BufferUse::NicPlace* const to = nic_target_of(entry)) {
        is_asked = path.fetch(*to, inbound.end, inbound.sender_address, inbound.sender_key, name);
    }
    inbound.state = is_asked ? inbound.state : state;
    return is_asked;
}

/// Where the NIC puts a message that goes to memory of a device; nullptr: nowhere, or somewhere in
/// a buffer for several.
template <class Lock, class Host>
const BufferUse::NicPlace* RdEngine<Lock, Host>::nic_target_of(
    const RdRxEntry& entry) const noexcept {
    return has(entry.flags, RdFlags::kMultiRecv) ? nullptr : nic_place_of(*entry.use);
}

/// The NIC has read it.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_message_fetched(Peer& peer, std::uint64_t name) noexcept {
    RdInbound* const inbound = inbound_.find(name);
    if (inbound == nullptr || inbound->peer != &peer ||
        inbound->state != RdInbound::State::kFetching) {
        return false;
    }
    inbound->received = inbound->end;
    inbound->is_placed = has(inbound->entry->flags, RdFlags::kHasUse);
    finish_pull(*inbound);
    return true;
}

/// The NIC does not read it, and writes nothing any more. The connection has ended, or is about to.
template <class Lock, class Host>
void RdEngine<Lock, Host>::message_fetch_ended(std::uint64_t name) noexcept {
    RdInbound* const inbound = inbound_.find(name);
    if (inbound == nullptr) {
        return;
    }
    if (inbound->state == RdInbound::State::kEnding) {
        end_lost(*inbound);
    } else if (inbound->state == RdInbound::State::kFetching) {
        inbound->state = RdInbound::State::kFailed;
    }
}

/// Queues the message among those that this process reads itself. One that nothing is before is
/// begun at once, or, if it is small, with others at the end of this look at the rings.
template <class Lock, class Host>
void RdEngine<Lock, Host>::copy_directly(RdInbound& inbound) noexcept {
    inbound.state = RdInbound::State::kCopying;
    const bool is_next = copies_.is_empty() && !is_small_copy(inbound);
    copies_.push(&inbound);
    if (is_next) {
        run_copies();
    }
    if (!copies_.is_empty()) {
        station_.wake_sleepers();
    }
}

/// Reads from the sender's memory, up to `budget` bytes, and takes them off it. Returns: whether
/// nothing is left to do for the message here.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::copy_part(RdInbound& inbound, std::uint64_t& budget) noexcept {
    if (inbound.is_readable) [[unlikely]] {
        return copy_from_device(inbound, budget);
    }
    auto& peer = static_cast<Peer&>(*inbound.peer);
    util::IovCursor cursor = rest_of(inbound);
    while (budget != 0 && inbound.received < inbound.end) {
        iovec part = cursor.span();
        part.iov_len =
            std::min<std::uint64_t>({part.iov_len, budget, inbound.end - inbound.received});
        RdCopyBatch batch;
        batch.add(part.iov_base, inbound.sender_address + inbound.received, part.iov_len);
        if (!copy_named(peer, false, batch).is_ok()) {
            fall_back(inbound);
            return true;
        }
        cursor.skip(part.iov_len);
        inbound.received += part.iov_len;
        budget -= part.iov_len;
    }
    return inbound.received == inbound.end;
}

/// This process has no more to copy, and the sender perhaps no more to write: ends the message, or
/// asks for what could not be copied.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_shares(RdInbound& inbound) noexcept {
    if (inbound.waits_for_share) {
        return;
    }
    if (!inbound.lacks_share) {
        finish_pull(inbound);
        return;
    }
    inbound.lacks_share = false;
    inbound.method = RdMethod::kPipeline;
    inbound.state = RdInbound::State::kPulling;
    inbound.end = std::min(inbound.total, inbound.buffer_capacity);
    ask_for_data(inbound, inbound.received, inbound.end, 0);
}

/// The sender's memory cannot be read (any more): finish_shares() will ask for the rest through the
/// rings.
template <class Lock, class Host>
void RdEngine<Lock, Host>::fall_back(RdInbound& inbound) noexcept {
    static_cast<Peer&>(*inbound.peer).has_refused_share = true;
    inbound.lacks_share = true;
    inbound.state = RdInbound::State::kPulling;  // not among the copies any more
}

/// Reads several small messages of one peer together, from the next one on.
/// Returns: how many; they have left the queue. 0: they must be read one by one.
template <class Lock, class Host>
unsigned RdEngine<Lock, Host>::copy_several() noexcept {
    RdCopyBatch batch;
    RdInbound* const first = copies_.front();
    RdInbound* end = first;
    for (; end != nullptr && !batch.is_full(); end = end->next) {
        if (end->peer != first->peer || !is_small_copy(*end)) {
            break;
        }
        batch.add(static_cast<std::byte*>(end->place.iov_base) + end->received,
                  end->sender_address + end->received, end->end - end->received);
    }
    auto& peer = static_cast<Peer&>(*first->peer);
    if (batch.size() < 2 || !copy_named(peer, false, batch).is_ok()) {
        return 0;
    }
    while (copies_.front() != end) {
        RdInbound& inbound = *copies_.pop();
        inbound.received = inbound.end;
        finish_shares(inbound);
    }
    return static_cast<unsigned>(batch.size());
}

/// Reads messages one after the other: the first one is complete soonest, and how long each took
/// says how fast its method is. Other messages get their turn after direct_chunk bytes.
template <class Lock, class Host>
unsigned RdEngine<Lock, Host>::run_copies() noexcept {
    unsigned moved = 0;
    std::uint64_t budget = tuning_.direct_chunk;
    while (budget != 0 && !copies_.is_empty()) {
        if (const unsigned several = copy_several()) {
            moved += several;
            budget -= std::min<std::uint64_t>(budget, several * kSmallShare);
            continue;
        }
        ++moved;
        if (copy_part(*copies_.front(), budget)) {
            finish_shares(*copies_.pop());
        }
    }
    return moved;
}

/// All of the message that is wanted has arrived.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_pull(RdInbound& inbound) noexcept {
    const bool is_remote = static_cast<Peer&>(*inbound.peer).path.is_remote();
    pulls_ -= inbound.is_being_pulled() ? 1 : 0;
    const bool has_choice = !is_remote && !inbound.is_readable;
    if (has_choice && inbound.received != 0 && inbound.status == WcStatus::kSuccess) {
        // Of messages that are fetched at the same time each counts from the end of the one before.
        const std::uint64_t now = util::cpu_ticks();
        const std::uint64_t begin = std::max(inbound.started, std::exchange(last_pull_end_, now));
        pull_methods_.learn(std::min(inbound.total, inbound.buffer_capacity), inbound.method,
                            now - begin, pulls_ == 0);
    }
    const bool is_good = inbound.status == WcStatus::kSuccess && inbound.entry != nullptr;
    const WcStatus status = is_good ? delivered(inbound) : inbound.status;
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = 0};
    reply(static_cast<Peer&>(*inbound.peer), RdOp::kFinish, 0, inbound.sender_operation, &outcome,
          sizeof outcome);
    inbound.wire_flags &= static_cast<std::uint8_t>(~wire::kAnyAck);
    finish_inbound(inbound);
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_pull_data(Peer& peer, const Arrival& arrival) noexcept {
    RdInbound* const inbound = inbound_.find(arrival.data());
    if (inbound == nullptr || inbound->peer != &peer ||
        inbound->state != RdInbound::State::kPulling ||
        arrival.length() > inbound->end - inbound->received) {
        return false;
    }
    place(*inbound, arrival.run(), arrival.length());
    if (inbound->received == inbound->end) {
        finish_pull(*inbound);
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_pull_done(Peer& peer, const Arrival& arrival) noexcept {
    RdInbound* const inbound = inbound_.find(arrival.data());
    if (inbound == nullptr || inbound->peer != &peer) {
        return false;
    }
    RdOutcome outcome;
    arrival.copy_payload(&outcome, sizeof outcome);
    const bool is_good = outcome.status == static_cast<std::uint32_t>(WcStatus::kSuccess);
    if (!inbound->waits_for_share) {
        return !is_good && cannot_arrive(*inbound);
    }
    inbound->waits_for_share = false;
    if (!is_good) {
        peer.has_refused_share = true;
        inbound->lacks_share = true;
    }
    const bool is_copying =
        inbound->state == RdInbound::State::kCopying && inbound->received < inbound->end;
    if (!is_copying) {
        finish_shares(*inbound);
    }
    return true;
}

// ---- sender ----

/// The message that a peer's answer names, or nullptr when it cannot mean any.
template <class Lock, class Host>
RdTxOp* RdEngine<Lock, Host>::find_message(const Peer& peer, std::uint64_t name) noexcept {
    RdTxOp* const op = tx_messages_.find(name);
    const bool is_open = op != nullptr && op->peer == &peer && op->state == RdTxOp::State::kWaiting;
    return is_open ? op : nullptr;
}

/// The same for access. The first segments may be answered before the last ones have left, but none
/// that has not left, and none twice.
template <class Lock, class Host>
RdTxOp* RdEngine<Lock, Host>::find_access(const Peer& peer, std::uint64_t name) noexcept {
    RdTxOp* const op = tx_accesses_.find(name);
    const bool is_open = op != nullptr && op->peer == &peer &&
                         op->state != RdTxOp::State::kQueued && !op->is_direct && !op->is_by_nic &&
                         op->segment + op->answers_due > op->remote_count;
    return is_open ? op : nullptr;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_pull(Peer& peer, const Arrival& arrival) noexcept {
    RdPull pull;
    arrival.copy_payload(&pull, sizeof pull);
    RdTxOp* const op = find_message(peer, arrival.data());
    if (op == nullptr || !op->is_rendezvous || pull.begin > pull.end || pull.end > op->total) {
        return false;
    }
    // It may ask once more, for what one of us could not copy.
    if (op->is_asked && (!op->is_direct || pull.address != 0)) {
        return false;
    }
    if (!op->is_asked) {
        --peer.rendezvous_due;
        if (op->has_head && pull.begin != wire::kHeadBytes) {
            peer.until_head = kUntilHead;
        }
    }
    op->is_asked = true;
    op->is_direct = pull.address != 0;
    op->done = pull.begin;
    op->end = pull.end;
    op->receiver = pull.operation;
    op->receiver_address = pull.address - pull.begin;
    op->state = RdTxOp::State::kStreaming;
    if (!op->is_direct) {
        peer.path.prepare_bulk();
    }
    peer.jobs.push(op);
    make_busy(peer);
    return true;
}

/// Goes on with the oldest messages that the peer has asked for. Returns: whether one is done.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_job(Peer& peer, RdTxOp& op) noexcept {
    if (op.is_direct && write_several(peer)) {
        return true;
    }
    const bool is_done = op.is_direct ? write_share(peer, op) : stream_pulled(peer, op);
    if (is_done) {
        peer.jobs.pop();
        op.state = RdTxOp::State::kWaiting;  // for kFinish
    }
    return is_done;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::stream_pulled(Peer& peer, RdTxOp& op) noexcept {
    util::IovCursor cursor(op.iov.data(), op.iov_count, op.done);
    while (op.done < op.end) {
        const bool has_others = op.next != nullptr;
        const std::size_t piece = bulk_piece(peer.path, op.done, op.end, has_others);
        if (!refresh(op, op.done + piece).is_ok()) [[unlikely]] {
            cannot_send(peer, op);
            return true;
        }
        const RdPart part{
            .op = RdOp::kPullData, .data = op.receiver, .has_more = op.done + piece < op.end};
        if (!put_part(peer, op, cursor, piece, part)) {
            return false;
        }
        op.done += piece;
    }
    return true;
}

/// Writes small shares of several messages together. Returns: false when the oldest must be written
/// alone.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::write_several(Peer& peer) noexcept {
    RdCopyBatch batch;
    for (RdTxOp* op = peer.jobs.front(); op != nullptr && !batch.is_full(); op = op->next) {
        const std::uint64_t length = op->end - op->done;
        if (!op->is_direct || op->iov_count != 1 || length == 0 || length > kSmallShare) {
            break;
        }
        batch.add(static_cast<std::byte*>(op->iov[0].iov_base) + op->done,
                  op->receiver_address + op->done, length);
    }
    if (batch.size() < 2 || !copy_named(peer, true, batch).is_ok()) {
        return false;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
        RdTxOp* const op = peer.jobs.pop();
        op->done = op->end;
        op->state = RdTxOp::State::kWaiting;  // for kFinish
        share_written(peer, *op, WcStatus::kSuccess);
    }
    return true;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::share_written(Peer& peer, const RdTxOp& op, WcStatus status) noexcept {
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = 0};
    reply(peer, RdOp::kPullDone, 0, op.receiver, &outcome, sizeof outcome);
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::write_share(Peer& peer, RdTxOp& op) noexcept {
    WcStatus status = WcStatus::kSuccess;
    if (op.done < op.end) {
        iovec part = util::IovCursor(op.iov.data(), op.iov_count, op.done).span();
        part.iov_len =
            std::min<std::uint64_t>({part.iov_len, tuning_.direct_chunk, op.end - op.done});
        RdCopyBatch batch;
        batch.add(part.iov_base, op.receiver_address + op.done, part.iov_len);
        if (copy_named(peer, true, batch).is_ok()) {
            op.done += part.iov_len;
        } else {
            status = WcStatus::kLocAccessErr;
        }
    }
    if (op.done < op.end && status == WcStatus::kSuccess) {
        return false;
    }
    share_written(peer, op, status);
    return true;
}

/// The peer has all of a message, or refuses it.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_finish(Peer& peer, const Arrival& arrival) noexcept {
    RdOutcome outcome;
    arrival.copy_payload(&outcome, sizeof outcome);
    RdTxOp* const op = find_message(peer, arrival.data());
    if (op == nullptr || outcome.status >= static_cast<std::uint32_t>(WcStatus::kCount)) {
        return false;
    }
    if (arrival.op() == RdOp::kFinish && !op->is_asked && op->is_rendezvous) {
        --peer.rendezvous_due;
    }
    --peer.outstanding;
    // What this side knows of a failure says more.
    finish_answered(
        peer, *op,
        op->status != WcStatus::kSuccess ? op->status : static_cast<WcStatus>(outcome.status));
    return true;
}

}  // namespace rvt::core
