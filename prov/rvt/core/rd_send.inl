// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages out. Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

template <class Lock, class Host>
RVT_ALWAYS_INLINE std::uint8_t RdEngine<Lock, Host>::wire_flags(RdFlags flags) noexcept {
    static_assert(static_cast<std::uint32_t>(RdFlags::kTagged) == wire::kTagged);
    const auto bits = static_cast<std::uint32_t>(flags);
    const std::uint32_t data = has(flags, RdFlags::kData) ? wire::kHasData : 0;
    return static_cast<std::uint8_t>((bits & wire::kTagged) | data);
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE std::uint64_t RdEngine<Lock, Host>::send_wc_flags(RdFlags flags) noexcept {
    return kWcSend | (has(flags, RdFlags::kTagged) ? kWcTagged : kWcMsg);
}

template <class Lock, class Host>
template <RdFlags kFixed>
RVT_ALWAYS_INLINE util::Status RdEngine<Lock, Host>::send_one(const void* buf, std::size_t len,
                                                              std::uint64_t dest, std::uint64_t tag,
                                                              std::uint64_t data, void* context,
                                                              RdFlags flags) noexcept {
    // Calls nothing, so that no register is saved and restored for what happens rarely.
    if (!lock_.try_lock()) [[unlikely]] {
        return send_late<kFixed>(buf, len, dest, tag, data, context, flags);
    }
    const Sent sent = send_simple<kFixed>(buf, len, dest, tag, data, context, flags | kFixed);
    if (sent == Sent::kNo) [[unlikely]] {
        return send_any<kFixed>(buf, len, dest, tag, data, context, flags);
    }
    lock_.unlock();
    return sent == Sent::kYes ? util::kOk : wake_peer(dest);
}

/// Sends a message of one line that nothing is in the way of. Returns: kNo where that is not so;
/// nothing has happened then.
template <class Lock, class Host>
template <RdFlags kFixed>
RVT_ALWAYS_INLINE auto RdEngine<Lock, Host>::send_simple(const void* buf, std::size_t len,
                                                         std::uint64_t dest, std::uint64_t tag,
                                                         std::uint64_t data, void* context,
                                                         RdFlags flags) noexcept -> Sent {
    Peer* const peer = peer_of(dest);
    // First whether there is a line, which no peer of another host ever has.
    if (peer == nullptr || !peer->path.has_line() || len > Path::kLinePayload ||
        (buf == nullptr && len != 0) || has(flags, kSlowSend) || peer->waiting != 0 ||
        peer->is_held || send_counter_ != nullptr) [[unlikely]] {
        return Sent::kNo;
    }
    if constexpr (!has(kFixed, RdFlags::kInject)) {
        if (has(flags, RdFlags::kCompletion)) {
            if (!tx_cq_->is_quiet()) [[unlikely]] {
                return Sent::kNo;
            }
            tx_cq_->emplace_quietly(
                [&](Cqe& cqe) { cqe = Cqe{.op_context = context, .flags = send_wc_flags(flags)}; });
        }
    }
    peer->path.put_line(wire_flags(flags), tag, data, buf, len);
    return peer->path.is_doorbell_due() ? Sent::kToSleeper : Sent::kYes;
}

/// After a message has been sent: it may be that the peer sleeps.
template <class Lock, class Host>
[[gnu::cold]] util::Status RdEngine<Lock, Host>::wake_peer(std::uint64_t dest) noexcept {
    util::Guard guard(lock_);
    if (Peer* const peer = peer_of(dest)) {  // else it has been removed meanwhile
        peer->path.ring_doorbell();
    }
    return util::kOk;
}

/// send_one() of who has to wait for the lock.
template <class Lock, class Host>
template <RdFlags kFixed>
[[gnu::cold]] util::Status RdEngine<Lock, Host>::send_late(const void* buf, std::size_t len,
                                                           std::uint64_t dest, std::uint64_t tag,
                                                           std::uint64_t data, void* context,
                                                           RdFlags flags) noexcept {
    lock_.lock();
    return send_any<kFixed>(buf, len, dest, tag, data, context, flags);
}

/// A message of one buffer that is not simple: often of several lines, or with a counter, or to
/// another host. The caller has locked; this unlocks.
template <class Lock, class Host>
template <RdFlags kFixed>
[[gnu::noinline]] util::Status RdEngine<Lock, Host>::send_any(const void* buf, std::size_t len,
                                                              std::uint64_t dest, std::uint64_t tag,
                                                              std::uint64_t data, void* context,
                                                              RdFlags flags) noexcept {
    // The compiler knows then what is fixed.
    const util::Status sent =
        send_any_locked<kFixed>(buf, len, dest, tag, data, context, flags | kFixed);
    lock_.unlock();
    return sent;
}

template <class Lock, class Host>
template <RdFlags kFixed>
RVT_ALWAYS_INLINE util::Status RdEngine<Lock, Host>::send_any_locked(
    const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag, std::uint64_t data,
    void* context, RdFlags flags) noexcept {
    Peer* const peer = peer_of(dest);
    if (peer != nullptr && len <= Path::kMaxLinePayload && (buf != nullptr || len == 0) &&
        !has(flags, kSlowSend) && peer->waiting == 0 && !peer->is_held) [[likely]] {
        constexpr bool kMayReport = !has(kFixed, RdFlags::kInject);
        Cqe* cqe = nullptr;
        if constexpr (kMayReport) {
            if (has(flags, RdFlags::kCompletion) && (cqe = tx_cq_->claim()) == nullptr)
                [[unlikely]] {
                return EAGAIN;
            }
        }
        if (peer->path.put_eager(wire_flags(flags), tag, data, buf, len)) [[likely]] {
            if (kMayReport && cqe != nullptr) {
                *cqe = Cqe{.op_context = context, .flags = send_wc_flags(flags)};
                tx_cq_->commit();
            }
            if (send_counter_ != nullptr) {
                send_counter_->add(1);
            }
            return util::kOk;
        }
    }
    const iovec iov{const_cast<void*>(buf), len};
    return send_slow({.iov = &iov,
                      .iov_count = 1,
                      .dest = dest,
                      .tag = tag,
                      .data = data,
                      .context = context,
                      .flags = flags});
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::send(const RdSend& request) noexcept {
    util::Guard guard(lock_);
    return send_slow(request);
}

/// Every message that is not one line to a peer that is ready for it.
template <class Lock, class Host>
[[gnu::noinline]] util::Status RdEngine<Lock, Host>::send_slow(const RdSend& request) noexcept {
    if (!util::iov_is_usable(request.iov, request.iov_count, kMaxIov)) {
        return EINVAL;
    }
    const std::uint64_t total = util::iov_length(request.iov, request.iov_count);
    if (total > (has(request.flags, RdFlags::kInject) ? kMaxInjectSize : kMaxMessageSize)) {
        return EMSGSIZE;
    }
    Peer* const peer = find_peer(request.dest);
    if (peer == nullptr) {
        return EINVAL;
    }
    if (has(request.flags, RdFlags::kCompletion) && tx_cq_->claim() == nullptr) {
        return EAGAIN;
    }
    if (!has(request.flags, kSlowSend) && peer->state == Peer::State::kConnected &&
        peer->waiting == 0) {
        peer->is_held = peer->path.must_hold_eager();
        if (!peer->is_held && total <= Path::kMaxLinePayload) {
            return send_lines(*peer, request, total);
        }
        if (!peer->is_held && send_run(*peer, request, total)) {
            return util::kOk;
        }
    }
    RdTxOp* const op = take_tx(*peer, RdTxOp::Kind::kMessage, request.context, request.flags);
    if (op == nullptr) {
        return EAGAIN;
    }
    const Status filled = fill_message(*op, request, total);
    if (!filled.is_ok()) {
        give_back(*op);
        return filled;
    }
    submit(*peer, *op);
    return util::kOk;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::send_lines(Peer& peer, const RdSend& request,
                                              std::uint64_t total) noexcept {
    std::byte gathered[Path::kMaxLinePayload];
    const void* payload = gathered;
    if (request.iov_count == 1) {
        payload = request.iov->iov_base;
    } else {
        util::IovCursor(request.iov, request.iov_count).gather(gathered, total);
    }
    if (!peer.path.put(RdOp::kEager, wire_flags(request.flags), request.tag, request.data, payload,
                       total)) {
        return EAGAIN;
    }
    complete_tx(request.context, request.flags, send_wc_flags(request.flags), WcStatus::kSuccess);
    return util::kOk;
}

/// Sends a message that is a single run, straight from the application's buffers. Returns: false
/// when it is larger, or there is no room now.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::send_run(Peer& peer, const RdSend& request,
                                    std::uint64_t total) noexcept {
    if (total > tuning_.eager_max || eager_piece(total, 0, peer.path) != total) {
        return false;
    }
    const RdHeader header{.total = total, .operation = 0, .address = 0};
    std::byte* const run = peer.path.reserve_run(total, sizeof header);
    if (run == nullptr) {
        return false;
    }
    util::IovCursor(request.iov, request.iov_count).gather(run, total);
    peer.path.put_run(RdOp::kEagerFirst, wire_flags(request.flags), request.tag, request.data,
                      &header, sizeof header, total);
    expect_run(peer);
    complete_tx(request.context, request.flags, send_wc_flags(request.flags), WcStatus::kSuccess);
    return true;
}

/// Has the next run to a peer prepared, to which the last one went: now, or when there is nothing
/// to do. Who sends on and on has no time for it.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::expect_run(Peer& peer) noexcept {
    if (polled_.size() == 1 && !peer.path.is_peer_busy()) {
        peer.path.prepare_run();
    } else {
        next_run_to_ = &peer;
    }
}

/// A cleared record for an operation, or nullptr when too many are open. Messages that no receive
/// takes can use up all of theirs; access has its own.
template <class Lock, class Host>
RdTxOp* RdEngine<Lock, Host>::take_tx(Peer& peer, RdTxOp::Kind kind, void* context,
                                      RdFlags flags) noexcept {
    RdTxOp* const op = pool_of(kind).take();
    if (op != nullptr) {
        ++open_operations_;
        ++peer.records;
        op->peer = &peer;
        op->kind = kind;
        op->state = RdTxOp::State::kQueued;
        op->context = context;
        op->flags = flags;
        op->status = WcStatus::kSuccess;
        op->done = op->segment_done = op->returned = 0;
        op->iov_count = op->compare_count = op->result_count = op->remote_count = 0;
        op->frames = 0;
        op->answers_due = op->segment = op->share_count = 0;
        op->after_write_share = 0;
        op->method = RdMethod::kCount;
        op->is_direct = op->is_by_nic = op->is_asked = op->is_rendezvous = op->has_waited = false;
        op->is_placed = op->has_head = false;
        op->loan = {};
    }
    return op;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::fill_message(RdTxOp& op, const RdSend& request,
                                                std::uint64_t total) noexcept {
    op.wc_flags = send_wc_flags(request.flags);
    op.tag = request.tag;
    op.data = request.data;
    op.total = total;
    op.use = request.use;
    return op.take_buffers({request.iov, request.iov_count});
}

/// Queues an operation behind what waits for the same peer, and sends what can be sent.
template <class Lock, class Host>
void RdEngine<Lock, Host>::submit(Peer& peer, RdTxOp& op) noexcept {
    const bool is_fenced = has(op.flags, RdFlags::kFence);
    op.is_in_line = op.kind == RdTxOp::Kind::kMessage || is_fenced || peer.fences != 0;
    (op.is_in_line ? peer.queue : peer.accesses).push(&op);
    ++peer.waiting;
    peer.fences += is_fenced ? 1 : 0;
    if (peer.state == Peer::State::kConnected) {
        run_queues(peer);
        if (peer.has_queued()) {
            make_busy(peer);
        }
    } else if (peer.state == Peer::State::kIdle) {
        connect(peer);
    }
}

/// Sends what waits for a peer, access first.
template <class Lock, class Host>
void RdEngine<Lock, Host>::run_queues(Peer& peer) noexcept {
    for (;;) {
        RdTxOp* op = peer.accesses.front();
        if (op == nullptr) {
            op = peer.queue.front();
            if (op == nullptr || must_stay(peer, *op)) {
                return;
            }
        }
        if (attr_.orders_reads && must_read_later(peer, *op)) [[unlikely]] {
            return;
        }
        peer.path.take_lack_of_room();  // of an operation that went another way
        if (!run_op(peer, *op)) {
            return;
        }
    }
}

/// Whether the first operation in line waits for others to end.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::must_stay(Peer& peer, const RdTxOp& op) noexcept {
    peer.note_first_in_line();
    const bool must_wait = has(op.flags, RdFlags::kFence) && op.state == RdTxOp::State::kQueued &&
                           (peer.outstanding != 0 || !are_quiet_writes_done(peer));
    return must_wait || peer.is_held_back();
}

/// Whether a read waits for others to end, where all reads are in order: a large one may go another
/// way than those before it, and than those behind it.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::must_read_later(Peer& peer, const RdTxOp& op) noexcept {
    const std::uint32_t others = op.is_large_read() ? peer.outstanding_accesses : peer.large_reads;
    peer.is_read_held = op.is_read() && op.state == RdTxOp::State::kQueued && others != 0;
    return peer.is_read_held;
}

/// Goes on with the operation at the head of the queue. Returns: whether it has left the queue.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_op(Peer& peer, RdTxOp& op) noexcept {
    if (op.kind != RdTxOp::Kind::kMessage) {
        has_accessed_ = true;  // before any of it leaves, however long it has waited
    }
    switch (op.kind) {
        case RdTxOp::Kind::kMessage: return start_message(peer, op);
        case RdTxOp::Kind::kWrite:
        case RdTxOp::Kind::kRead: return start_access(peer, op);
        case RdTxOp::Kind::kAtomic: return start_atomic(peer, op);
    }
    return false;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::start_message(Peer& peer, RdTxOp& op) noexcept {
    if (op.state == RdTxOp::State::kStreaming) {
        return stream_eager(peer, op);
    }
    peer.is_held = peer.path.must_hold_eager();
    if (waits_for_match(peer, op)) {
        return send_rendezvous(peer, op);
    }
    if (!refresh(op, op.total).is_ok()) [[unlikely]] {
        return cannot_start(peer, op);
    }
    if (op.total > Path::kMaxLinePayload ||
        has(op.flags, RdFlags::kDeliveryComplete | RdFlags::kMatchComplete)) {
        return stream_eager(peer, op);
    }
    std::byte gathered[Path::kMaxLinePayload];
    util::IovCursor(op.iov.data(), op.iov_count).gather(gathered, op.total);
    if (!peer.path.put(RdOp::kEager, wire_flags(op.flags), op.tag, op.data, gathered, op.total)) {
        return false;
    }
    sent(peer, op, false);
    return true;
}

/// The size of the next part of an eager message. All are alike. Below two parts, cutting costs
/// more than the receiver gains by starting early; so it does while that is busy. A wire cuts by
/// itself.
template <class Lock, class Host>
std::size_t RdEngine<Lock, Host>::eager_piece(std::uint64_t total, std::uint64_t done,
                                              Path& path) const noexcept {
    const std::uint64_t parts = total / kFirstPiece;
    const bool is_cut = parts > 1 && !path.is_remote() && !path.is_peer_busy();
    const std::uint64_t lines = (total + util::kCacheLine - 1) / util::kCacheLine;
    const std::uint64_t wanted = is_cut ? (lines + parts - 1) / parts * util::kCacheLine : total;
    const std::size_t most = total >= kWorthCutting ? path.next_run(total - done) : path.max_run();
    return static_cast<std::size_t>(std::min<std::uint64_t>({wanted, most, total - done}));
}

/// The same for data that was asked for and for accesses. The receiver starts early, and longer
/// parts follow; where it has those of others to copy, that gains nothing, and the fewer the
/// better.
template <class Lock, class Host>
std::size_t RdEngine<Lock, Host>::bulk_piece(Path& path, std::uint64_t done, std::uint64_t end,
                                             bool has_others) const noexcept {
    const std::uint64_t left = end - done;
    const std::uint64_t most = std::min<std::uint64_t>(left, path.next_run(left));
    const bool is_cut = !has_others && !path.is_remote();  // a wire cuts by itself
    const std::uint64_t wanted = std::clamp(done / 2, kFirstPiece, kLastPiece);
    return static_cast<std::size_t>(is_cut ? std::min(most, wanted) : most);
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::stream_eager(Peer& peer, RdTxOp& op) noexcept {
    util::IovCursor cursor(op.iov.data(), op.iov_count, op.done);
    const bool wants_ack = has(op.flags, RdFlags::kDeliveryComplete | RdFlags::kMatchComplete);
    const RdHeader header{
        .total = op.total, .operation = util::Pool<RdTxOp>::name_of(op), .address = 0};
    if (op.state == RdTxOp::State::kQueued && op.total > kBulk) {
        peer.path.prepare_bulk();
    }
    do {
        const std::size_t piece = eager_piece(op.total, op.done, peer.path);
        RdPart part{.op = RdOp::kEagerMore};
        if (op.state == RdTxOp::State::kQueued) {
            const auto ack = static_cast<std::uint8_t>(
                (has(op.flags, RdFlags::kDeliveryComplete) ? wire::kWantAck : 0) |
                (has(op.flags, RdFlags::kMatchComplete) ? wire::kWantMatchAck : 0));
            part = {.op = RdOp::kEagerFirst,
                    .flags = static_cast<std::uint8_t>(wire_flags(op.flags) | ack),
                    .tag = op.tag,
                    .data = op.data,
                    .payload = &header,
                    .payload_bytes = sizeof header};
        }
        // The smaller ones are copied, so that they complete at once.
        part.is_lent = op.total > tuning_.eager_max;
        part.has_more = op.done + piece < op.total;
        if (!put_part(peer, op, cursor, piece, part)) {
            return false;
        }
        op.state = RdTxOp::State::kStreaming;
        op.done += piece;
    } while (op.done < op.total);
    sent(peer, op, wants_ack);
    return true;
}

/// Whether the message stays here until it is matched: for its size, because the peer wants headers
/// only, or since its NIC can then read it from where it is.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::waits_for_match(Peer& peer, RdTxOp& op) noexcept {
    return op.total > eager_max(peer.path) || peer.is_held ||
           (op.total > tuning_.eager_max && lend(peer, op)) || source_of(peer, op) != nullptr;
}

/// Registers the message for the peer's NIC, if both ends have one, and it lies in one place of the
/// application's, or of a device that the NIC reaches. Returns: whether it is.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::lend(Peer& peer, RdTxOp& op) noexcept {
    if (op.loan.is_any() || op.iov_count != 1 || op.has_copies() || !is_enabled_) {
        return op.loan.is_any();
    }
    if (!has(op.flags, RdFlags::kHasUse)) {
        op.loan = peer.path.lend(op.iov[0]);
    } else if (const BufferUse::NicPlace* const place = nic_place_of(*op.use)) {
        op.loan = peer.path.lend(*place);
    }
    return op.loan.is_any();
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::send_rendezvous(Peer& peer, RdTxOp& op) noexcept {
    if (peer.rendezvous_due >= tuning_.rendezvous_headers) {
        return false;
    }
    const BufferUse::Source* const source = source_of(peer, op);
    const bool is_lent = op.total > tuning_.eager_max && lend(peer, op);
    const bool is_contiguous =
        source != nullptr || is_lent || (op.iov_count == 1 && !has(op.flags, RdFlags::kHasUse));
    const std::uint64_t here = op.loan.imported != nullptr
                                   ? op.loan.device_address
                                   : reinterpret_cast<std::uint64_t>(op.iov[0].iov_base);
    RdRendezvous payload;
    payload.header = {.total = op.total,
                      .operation = util::Pool<RdTxOp>::name_of(op),
                      .address = is_contiguous ? here : 0};
    payload.readable.key = is_lent ? op.loan.key() : 0;
    bool has_opening = false;
    if (source != nullptr) {
        payload.header.address = source->address;
        payload.readable.key = source->key;
        has_opening = op.total >= kWorthOpening && tell_opening(source->key, payload.opening);
    }
    // Another connection may have taken the place of the one that it was lent for.
    const bool is_readable = source != nullptr || (op.loan.is_any() && peer.path.can_rdma());
    std::byte* const head = is_readable ? nullptr : room_for_head(peer, op);
    // No acknowledgement is asked for: kFinish follows the match anyway, and the buffer is in use
    // until then.
    const auto flags = static_cast<std::uint8_t>(
        wire_flags(op.flags) | (is_contiguous ? wire::kContiguous : 0) |
        (is_readable ? wire::kReadable : 0) | (head != nullptr ? wire::kHead : 0));
    if (!peer.path.put(RdOp::kRendezvous, flags, op.tag, op.data, &payload,
                       has_opening ? sizeof payload : RdRendezvous::bytes(is_readable))) {
        return false;
    }
    if (head != nullptr) {
        // The receiver reads the header meanwhile.
        util::IovCursor(op.iov.data(), op.iov_count).gather(head, wire::kHeadBytes);
        peer.path.put_run(RdOp::kEagerMore, 0, 0, 0, nullptr, 0, wire::kHeadBytes);
        op.has_head = true;
        expect_run(peer);
    }
    ++peer.rendezvous_due;
    op.is_rendezvous = true;
    sent(peer, op, true);
    return true;
}

/// Room for the first bytes of a message, which go with its header where the receiver is likely to
/// wait for nothing else: so both ends copy while the header is answered. Returns: nullptr where
/// the header goes alone.
template <class Lock, class Host>
std::byte* RdEngine<Lock, Host>::room_for_head(Peer& peer, const RdTxOp& op) noexcept {
    Path& path = peer.path;
    if (path.is_remote() || peer.is_held || has(op.flags, RdFlags::kHasUse) ||
        op.total < 2 * wire::kHeadBytes || op.total > kMostWithHead ||
        path.max_run() < wire::kHeadBytes || peer.waiting != 1 || path.is_peer_busy() ||
        !path.is_peer_polling()) {
        return nullptr;
    }
    if (peer.until_head != 0) {
        --peer.until_head;
        return nullptr;
    }
    std::byte* const room = path.reserve_run(wire::kHeadBytes, 0);
    return path.has_line() ? room : nullptr;  // for the header, too
}

/// The operation at the head of the queue has left entirely.
template <class Lock, class Host>
void RdEngine<Lock, Host>::sent(Peer& peer, RdTxOp& op, bool is_answer_due) noexcept {
    leave_queue(peer, op);
    if (is_answer_due) {
        op.state = RdTxOp::State::kWaiting;
        ++peer.outstanding;
    } else {
        finish_unless_lent(peer, op, RdTxOp::State::kLent);
    }
}

/// Takes an operation from the head of its queue.
template <class Lock, class Host>
void RdEngine<Lock, Host>::leave_queue(Peer& peer, const RdTxOp& op) noexcept {
    (op.is_in_line ? peer.queue : peer.accesses).pop();
    --peer.waiting;
    if (has(op.flags, RdFlags::kFence)) {
        fence_gone(peer);
    }
}

/// A fenced operation does not wait any more. Access that came behind it and behind no other fence
/// goes on beside the messages: in line, later access would overtake it.
template <class Lock, class Host>
void RdEngine<Lock, Host>::fence_gone(Peer& peer) noexcept {
    --peer.fences;
    peer.queue.move_to(
        peer.accesses,
        [](RdTxOp& op) {
            op.is_in_line = op.kind == RdTxOp::Kind::kMessage;
            return !op.is_in_line;
        },
        [](const RdTxOp& op) { return has(op.flags, RdFlags::kFence); });
}

/// Puts a part of a message that is a run: from the application's buffers where the path can and
/// the part lies in one of them, else copied. Returns: false when there is no room now.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::put_part(Peer& peer, RdTxOp& op, util::IovCursor& from,
                                    std::size_t bytes, const RdPart& part) noexcept {
    if (peer.path.is_remote() && part.is_lent) {
        const iovec buffer = from.span();
        if (buffer.iov_len >= bytes) {
            if (!peer.path.put_borrowed(part.op, part.flags, part.tag, part.data, part.payload,
                                        part.payload_bytes, {buffer.iov_base, bytes},
                                        part.has_more)) {
                return false;
            }
            op.frames = peer.path.frames();
            from.skip(bytes);
            return true;
        }
    }
    std::byte* const run = peer.path.reserve_run(bytes, part.payload_bytes);
    if (run == nullptr) {
        return false;
    }
    from.gather(run, bytes);
    peer.path.put_run(part.op, part.flags, part.tag, part.data, part.payload, part.payload_bytes,
                      bytes);
    expect_run(peer);
    return true;
}

/// Reports an operation that the peer has answered, at once if the path does not need its buffers
/// any more.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_answered(Peer& peer, RdTxOp& op, WcStatus status) noexcept {
    op.status = status;
    finish_unless_lent(peer, op, RdTxOp::State::kAnswered);
}

/// Reports an operation that is in no queue any more, or keeps it in the given state until the path
/// lets go of its buffers.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_unless_lent(Peer& peer, RdTxOp& op,
                                              RdTxOp::State state) noexcept {
    if (peer.path.has_let_go(op.frames)) [[likely]] {
        finish_tx(op, op.status);
        return;
    }
    op.state = state;
    peer.lent.push(&op);
    make_busy(peer);
}

/// Reports those that have waited for that. Returns: whether there were any.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::finish_let_go(Peer& peer) noexcept {
    bool has_moved = false;
    while (!peer.lent.is_empty() && peer.path.has_let_go(peer.lent.front()->frames)) {
        RdTxOp& op = *peer.lent.pop();
        finish_tx(op, op.status);
        has_moved = true;
    }
    return has_moved;
}

/// Reports an operation that is in no queue any more, and frees it.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_tx(RdTxOp& op, WcStatus status) noexcept {
    if (has(op.flags, RdFlags::kHasUse)) [[unlikely]] {
        status = end_use(op, status);
    }
    if (op.loan.is_any()) [[unlikely]] {
        op.loan.end();
    }
    complete_tx(op.context, op.flags, op.wc_flags, status);
    op.copy.reset();
    give_back(op);
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::give_back(RdTxOp& op) noexcept {
    if (op.peer != nullptr) {
        --op.peer->records;
    }
    --open_operations_;
    pool_of(op.kind).give_back(&op);
}

/// Returns: the status that the operation ends with.
template <class Lock, class Host>
WcStatus RdEngine<Lock, Host>::end_use(RdTxOp& op, WcStatus status) noexcept {
    const bool fills = (op.kind == RdTxOp::Kind::kRead && !op.is_placed) || op.result_count != 0;
    if (status == WcStatus::kSuccess && fills && !op.use->filled(0, op.total).is_ok()) {
        status = WcStatus::kGeneralErr;
    }
    op.use->release();
    return status;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::complete_tx(void* context, RdFlags flags, std::uint64_t wc_flags,
                                       WcStatus status) noexcept {
    Counter* const counter = tx_counter(wc_flags);
    if (status == WcStatus::kSuccess) [[likely]] {
        if (has(flags, RdFlags::kCompletion)) {
            tx_cq_->emplace([&](Cqe& cqe) { cqe = {.op_context = context, .flags = wc_flags}; });
        }
        if (counter != nullptr) {
            counter->add(1);
        }
        return;
    }
    if (tx_cq_ != nullptr) {
        tx_cq_->push(Cqe{.op_context = context, .flags = wc_flags, .status = status});
    }
    if (counter != nullptr) {
        counter->add_error(1);
    }
}

template <class Lock, class Host>
Counter* RdEngine<Lock, Host>::tx_counter(std::uint64_t wc_flags) const noexcept {
    if ((wc_flags & kWcSend) != 0) {
        return send_counter_;
    }
    return (wc_flags & kWcRead) != 0 ? completion_.read : completion_.write;
}

}  // namespace rvt::core
