// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided access and atomics, the initiator's side. Included by rd_engine.h.
//
// Small accesses travel as messages that the target's engine executes. Large ones, and all while
// the target does not poll, are copied by the initiator itself where the system lets it
// (rd_direct.inl); large ones to another host are done by NICs where there are some
// (rd_by_nic.inl).
#pragma once

#include "core/rd_engine.h"
#include "util/saturate.h"

namespace rvt::core {

namespace {

inline std::uint64_t remote_length(const RdRemote* remote, std::size_t count) noexcept {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        total = util::saturating_add(total, remote[i].len);
    }
    return total;
}

}  // namespace

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::rma(const RdRma& request) noexcept {
    util::Guard guard(lock_);
    if (!util::iov_is_usable(request.iov, request.iov_count, kMaxIov) ||
        request.remote_count > kMaxIov || request.remote_count == 0) {
        return EINVAL;
    }
    const std::uint64_t total = util::iov_length(request.iov, request.iov_count);
    if (total != remote_length(request.remote, request.remote_count)) {
        return EINVAL;
    }
    if (total > kMaxMessageSize) {
        return EMSGSIZE;
    }
    if (has(request.flags, RdFlags::kInject) && write_quietly(request)) {
        return util::kOk;
    }
    const auto kind = request.is_write ? RdTxOp::Kind::kWrite : RdTxOp::Kind::kRead;
    return start_one_sided(request.dest, kind, request.context, request.flags,
                           [&](RdTxOp& op) { return fill_access(op, request); });
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::atomic(const RdAtomic& request) noexcept {
    util::Guard guard(lock_);
    const bool is_read = request.kind == RdAtomic::Kind::kFetch && request.op == kAtomicOpRead;
    if (!util::iov_is_usable(request.operand, is_read ? 0 : request.operand_count, kMaxIov) ||
        !util::iov_is_usable(request.compare, request.compare_count, kMaxIov) ||
        !util::iov_is_usable(request.result, request.result_count, kMaxIov) ||
        request.remote_count > kMaxIov || request.remote_count == 0 ||
        !atomic_is_valid(request.kind, request.datatype, request.op)) {
        return EINVAL;
    }
    const std::uint64_t total = remote_length(request.remote, request.remote_count);
    if (total > kMaxAtomicSize) {
        return EMSGSIZE;
    }
    return start_one_sided(request.dest, RdTxOp::Kind::kAtomic, request.context, request.flags,
                           [&](RdTxOp& op) { return fill_atomic(op, request); });
}

/// Sends a small injected write that nobody waits for: it needs no record here, and the target
/// answers only if it refuses. Returns: false when the write must go the common way.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::write_quietly(const RdRma& request) noexcept {
    constexpr RdFlags kWaited =
        RdFlags::kCompletion | RdFlags::kDeliveryComplete | RdFlags::kFence | RdFlags::kHasUse;
    Peer* const peer = peer_of(request.dest);
    // A counter counts what the target has executed.
    if (!request.is_write || has(request.flags, kWaited) || completion_.write != nullptr ||
        request.iov_count != 1 || request.remote_count != 1 || peer == nullptr ||
        peer->waiting != 0 || peer->state != Peer::State::kConnected) {
        return false;
    }
    const RdRemote& remote = *request.remote;
    // To memory of this process, and to memory that is mapped, a plain copy is faster. A target
    // that does not poll would keep the write waiting. What NICs do passes the target's engine by:
    // there each write is answered, so that a fence can wait for it.
    std::uint32_t own = 0;
    if (remote.len == 0 || remote.len > Path::kMaxLinePayload - sizeof(RdAccess) ||
        !resolve_key(*peer, remote.key, own) || peer->path.is_same_process() ||
        count_use(*peer, own, remote.len) || !peer->path.is_peer_polling() ||
        peer->path.can_rdma()) {
        return false;
    }
    std::byte message[Path::kMaxLinePayload];
    const RdAccess access{
        .key = remote.key, .address = remote.addr, .length = remote.len, .operation = 0};
    std::memcpy(message, &access, sizeof access);
    std::memcpy(message + sizeof access, request.iov->iov_base, remote.len);
    const std::uint8_t data_flag = has(request.flags, RdFlags::kData) ? wire::kHasData : 0;
    if (!peer->path.put(RdOp::kWriteLine, wire::kLast | data_flag, 0, request.data, message,
                        sizeof access + remote.len)) {
        return false;
    }
    ++peer->quiet_writes;
    peer->has_quiet_writes = true;
    has_accessed_ = true;
    return true;
}

/// Whether the target has executed all writes of write_quietly(); over a wire, whether they are
/// there, and executed before what is put from now on: it takes messages in order.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::are_quiet_writes_done(Peer& peer) noexcept {
    if (peer.has_quiet_writes && peer.path.is_drained()) {
        peer.has_quiet_writes = false;
    }
    return !peer.has_quiet_writes;
}

/// The target has refused a write of write_quietly().
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_quiet_write_refused(Peer& peer, WcStatus status) noexcept {
    if (peer.quiet_writes == 0 || status == WcStatus::kSuccess) {
        return false;
    }
    --peer.quiet_writes;
    complete_tx(nullptr, RdFlags::kNone, kWcRma | kWcWrite, status);
    return true;
}

/// What all one-sided operations have in common: the peer, a record, its place in the queue.
template <class Lock, class Host>
template <class Fill>
util::Status RdEngine<Lock, Host>::start_one_sided(std::uint64_t dest, RdTxOp::Kind kind,
                                                   void* context, RdFlags flags,
                                                   Fill fill) noexcept {
    Peer* const peer = find_peer(dest);
    if (peer == nullptr) {
        return EINVAL;
    }
    if (has(flags, RdFlags::kCompletion) && tx_cq_->claim() == nullptr) {
        return EAGAIN;
    }
    RdTxOp* const op = take_tx(*peer, kind, context, flags);
    if (op == nullptr) {
        return EAGAIN;
    }
    const Status filled = fill(*op);
    if (!filled.is_ok()) {
        give_back(*op);
        return filled;
    }
    submit(*peer, *op);
    return util::kOk;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::fill_access(RdTxOp& op, const RdRma& request) noexcept {
    op.wc_flags = kWcRma | (request.is_write ? kWcWrite : kWcRead);
    op.data = request.data;
    op.total = util::iov_length(request.iov, request.iov_count);
    op.use = request.use;
    if (has(request.flags, RdFlags::kInject) && op.total > kMaxInjectSize) {
        return EMSGSIZE;
    }
    op.remote_count = static_cast<std::uint8_t>(request.remote_count);
    std::copy_n(request.remote, request.remote_count, op.remote.begin());
    return op.take_buffers({request.iov, request.iov_count});
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::fill_atomic(RdTxOp& op, const RdAtomic& request) noexcept {
    const bool is_read = request.kind == RdAtomic::Kind::kFetch && request.op == kAtomicOpRead;
    op.wc_flags = kWcAtomic | (request.kind == RdAtomic::Kind::kBase ? kWcWrite : kWcRead);
    op.data = request.data;
    op.total = remote_length(request.remote, request.remote_count);
    op.use = request.use;
    op.atomic = {.kind = static_cast<std::uint8_t>(request.kind),
                 .datatype = request.datatype,
                 .op = request.op};
    const bool lacks_operand =
        !is_read && util::iov_length(request.operand, request.operand_count) != op.total;
    const bool lacks_compare = request.kind == RdAtomic::Kind::kCompare &&
                               util::iov_length(request.compare, request.compare_count) != op.total;
    const bool lacks_result = request.kind != RdAtomic::Kind::kBase &&
                              util::iov_length(request.result, request.result_count) != op.total;
    const std::size_t size = atomic_size(request.datatype);
    const bool is_ragged =
        std::any_of(request.remote, request.remote + request.remote_count,
                    [size](const RdRemote& part) { return part.len == 0 || part.len % size != 0; });
    if (lacks_operand || lacks_compare || lacks_result || is_ragged) {
        return EINVAL;
    }
    op.remote_count = static_cast<std::uint8_t>(request.remote_count);
    std::copy_n(request.remote, request.remote_count, op.remote.begin());
    op.result_count = static_cast<std::uint8_t>(request.result_count);
    std::copy_n(request.result, request.result_count, op.result.begin());
    return op.take_buffers({request.operand, is_read ? 0 : request.operand_count},
                           {request.compare, request.compare_count});
}

/// Decides how a write or read goes, if that has not been done.
template <class Lock, class Host>
void RdEngine<Lock, Host>::begin_access(Peer& peer, RdTxOp& op) noexcept {
    if (op.state != RdTxOp::State::kQueued) {
        return;
    }
    op.is_direct = is_direct_better(peer, op);
    op.is_by_nic = !op.is_direct && is_for_nic(peer, op);
    op.state = RdTxOp::State::kStreaming;
    op.answers_due = op.remote_count;
    op.started = util::cpu_ticks();
    if (op.kind == RdTxOp::Kind::kWrite && !op.is_direct && op.total > kBulk) {
        peer.path.prepare_bulk();
    }
}

/// Sends the segments of a write or read, or copies them. Returns: whether all of them have left.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::start_access(Peer& peer, RdTxOp& op) noexcept {
    if (op.state == RdTxOp::State::kQueued && awaits_nic_key(peer, op)) [[unlikely]] {
        return false;
    }
    begin_access(peer, op);
    if (op.method == RdMethod::kSplit) {
        return run_shared(peer, op);
    }
    if (op.is_direct) {
        return run_direct(peer, op);
    }
    if (op.is_by_nic) {
        return run_by_nic(peer, op);
    }
    if (op.kind == RdTxOp::Kind::kWrite && !refresh(op, op.total).is_ok()) [[unlikely]] {
        return cannot_start(peer, op);
    }
    while (op.segment < op.remote_count) {
        const bool has_left =
            op.kind == RdTxOp::Kind::kWrite ? send_write(peer, op) : send_read(peer, op);
        if (!has_left) {
            return false;
        }
        ++op.segment;
    }
    access_sent(peer, op);
    return true;
}

/// A one-sided operation now waits for its answers.
template <class Lock, class Host>
void RdEngine<Lock, Host>::access_sent(Peer& peer, RdTxOp& op) noexcept {
    ++peer.outstanding_accesses;
    peer.large_reads += op.is_large_read() ? 1 : 0;
    sent(peer, op, true);
    if (peer.path.must_wake_peer()) {
        station_.wake_peer(peer.link);
    }
}

/// It does not wait any more.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::access_ended(Peer& peer, const RdTxOp& op) noexcept {
    --peer.outstanding;
    --peer.outstanding_accesses;
    peer.large_reads -= op.is_large_read() ? 1 : 0;
}

/// Whether no later segment is in the region of the current one, which counts an operation once.
inline bool is_last_in_region(const RdTxOp& op) noexcept {
    const auto* const current = op.remote.data() + op.segment;
    return std::none_of(current + 1, op.remote.data() + op.remote_count,
                        [current](const RdRemote& each) { return each.key == current->key; });
}

/// Flags of the message for the current segment; data goes with the last one.
template <class Lock, class Host>
std::uint8_t RdEngine<Lock, Host>::access_flags(const RdTxOp& op) const noexcept {
    if (op.segment + 1u != op.remote_count) [[unlikely]] {
        return is_last_in_region(op) ? wire::kEvent : 0;
    }
    return wire::kLast | (has(op.flags, RdFlags::kData) ? wire::kHasData : 0);
}

template <class Lock, class Host>
RdAccess RdEngine<Lock, Host>::access_of(const RdTxOp& op) const noexcept {
    const RdRemote& remote = op.remote[op.segment];
    return {.key = remote.key,
            .address = remote.addr,
            .length = remote.len,
            .operation = util::Pool<RdTxOp>::name_of(op)};
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::send_read(Peer& peer, RdTxOp& op) noexcept {
    const RdAccess access = access_of(op);
    return peer.path.put(RdOp::kRead, access_flags(op), 0, op.data, &access, sizeof access);
}

/// Sends the current segment of a write, in one line message or in runs. Returns: whether all of it
/// has left.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::send_write(Peer& peer, RdTxOp& op) noexcept {
    const RdAccess access = access_of(op);
    util::IovCursor cursor(op.iov.data(), op.iov_count, op.done);
    if (access.length <= Path::kMaxLinePayload - sizeof access) {
        std::byte message[Path::kMaxLinePayload];
        std::memcpy(message, &access, sizeof access);
        cursor.gather(message + sizeof access, access.length);
        if (!peer.path.put(RdOp::kWriteLine, access_flags(op), 0, op.data, message,
                           sizeof access + access.length)) {
            return false;
        }
        op.done += access.length;
        return true;
    }
    while (op.segment_done < access.length) {
        const bool has_others = peer.outstanding_accesses != 0;
        const std::size_t piece = bulk_piece(peer.path, op.segment_done, access.length, has_others);
        RdPart part = op.segment_done == 0 ? RdPart{.op = RdOp::kWrite,
                                                    .flags = access_flags(op),
                                                    .data = op.data,
                                                    .payload = &access,
                                                    .payload_bytes = sizeof access}
                                           : RdPart{.op = RdOp::kWriteMore};
        // The smaller ones are copied, so that several of them share a frame.
        part.is_lent = op.total > tuning_.eager_max;
        part.has_more = op.segment_done + piece < access.length;
        if (!put_part(peer, op, cursor, piece, part)) {
            return false;
        }
        op.segment_done += piece;
        op.done += piece;
    }
    op.segment_done = 0;
    return true;
}

/// Puts the operands of one remote segment: a single one into the line, others behind it in a run.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::put_atomic(Peer& peer, RdTxOp& op, const RdRemote& remote) noexcept {
    RdAtomicHeader header{.key = remote.key,
                          .address = remote.addr,
                          .operation = util::Pool<RdTxOp>::name_of(op),
                          .operand = 0,
                          .compare = 0};
    op.atomic.count = static_cast<std::uint32_t>(remote.len / atomic_size(op.atomic.datatype));
    util::IovCursor operand(op.iov.data(), op.iov_count, op.done);
    util::IovCursor compare(op.compare.data(), op.compare_count, op.done);
    if (remote.len <= sizeof header.operand && op.atomic.count == 1) {
        operand.gather(&header.operand, remote.len);
        compare.gather(&header.compare, remote.len);
        return peer.path.put(RdOp::kAtomicInline, access_flags(op), op.atomic.pack(), op.data,
                             &header, sizeof header);
    }
    const std::size_t operand_bytes = op.iov_count != 0 ? remote.len : 0;
    const std::size_t compare_bytes = op.compare_count != 0 ? remote.len : 0;
    std::byte* const run = peer.path.reserve_run(operand_bytes + compare_bytes, sizeof header);
    if (run == nullptr) {
        return false;
    }
    operand.gather(run, operand_bytes);
    compare.gather(run + operand_bytes, compare_bytes);
    peer.path.put_run(RdOp::kAtomic, access_flags(op), op.atomic.pack(), op.data, &header,
                      sizeof header, operand_bytes + compare_bytes);
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::start_atomic(Peer& peer, RdTxOp& op) noexcept {
    if (op.state == RdTxOp::State::kQueued) {
        op.state = RdTxOp::State::kStreaming;
        op.answers_due = op.remote_count;
    }
    while (op.segment < op.remote_count) {
        if (!put_atomic(peer, op, op.remote[op.segment])) {
            return false;
        }
        op.done += op.remote[op.segment].len;
        ++op.segment;
    }
    access_sent(peer, op);
    return true;
}

/// One segment of an operation has been answered.
template <class Lock, class Host>
void RdEngine<Lock, Host>::answered(Peer& peer, RdTxOp& op, WcStatus status) noexcept {
    if (op.status == WcStatus::kSuccess) {
        op.status = status;
    }
    if (--op.answers_due == 0) {
        access_ended(peer, op);
        learn_access(op, peer.has_no_access());
        finish_answered(peer, op, op.status);
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_read_data(Peer& peer, const Arrival& arrival, bool is_line) noexcept {
    RdTxOp* const op = find_access(peer, arrival.data());
    const std::size_t count = arrival.length();
    if (op == nullptr || op->kind != RdTxOp::Kind::kRead || count > op->total - op->returned) {
        return false;
    }
    util::IovCursor cursor(op->iov.data(), op->iov_count, op->returned);
    if (is_line) {
        std::byte line[Path::kMaxLinePayload];
        arrival.copy_payload(line, count);
        cursor.scatter(line, count);
    } else {
        cursor.scatter(arrival.run(), count);
    }
    op->returned += count;
    if (has(op->flags, RdFlags::kHasUse)) [[unlikely]] {
        op->use->arrived(op->returned);
    }
    if ((arrival.flags() & wire::kLast) != 0) {
        answered(peer, *op, WcStatus::kSuccess);
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_atomic_result(Peer& peer, const Arrival& arrival,
                                            bool is_line) noexcept {
    RdTxOp* const op = find_access(peer, arrival.data());
    const std::size_t count = arrival.length();
    if (op == nullptr || op->kind != RdTxOp::Kind::kAtomic || count > op->total - op->returned) {
        return false;
    }
    util::IovCursor cursor(op->result.data(), op->result_count, op->returned);
    cursor.scatter(is_line ? arrival.payload() : arrival.run(),
                   is_line ? std::min(count, Path::kLinePayload) : count);
    op->returned += count;
    answered(peer, *op, WcStatus::kSuccess);
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_access_done(Peer& peer, const Arrival& arrival) noexcept {
    RdOutcome outcome;
    arrival.copy_payload(&outcome, sizeof outcome);
    if (outcome.status >= static_cast<std::uint32_t>(WcStatus::kCount)) {
        return false;
    }
    if (arrival.data() == 0) {
        return on_quiet_write_refused(peer, static_cast<WcStatus>(outcome.status));
    }
    RdTxOp* const shared = tx_accesses_.find(arrival.data());
    if (shared != nullptr && shared->peer == &peer && shared->share_count != 0) {
        return on_share_done(peer, *shared, static_cast<WcStatus>(outcome.status));
    }
    RdTxOp* const op = find_access(peer, arrival.data());
    if (op == nullptr) {
        return false;
    }
    // The target's own key, for direct access from now on. Segments are answered in order.
    if (outcome.key != 0 && peer.has_keys_view) {
        const RdRemote& segment = op->remote[op->remote_count - op->answers_due];
        peer.book.learn_own_key(segment.key, outcome.key);
    }
    answered(peer, *op, static_cast<WcStatus>(outcome.status));
    return true;
}

}  // namespace rvt::core
