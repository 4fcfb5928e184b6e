// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Posting, the runner of the send queue, and loopback within a device.
#include "core/requester.h"

#include "core/ah.h"
#include "core/device.h"
#include "core/extended_atomic.h"
#include "core/flow.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/qp_states.h"
#include "core/reader_pins.h"
#include "core/stages.h"

namespace rvt::core {
namespace {

// A remote Q_Key with this bit stands for the pair's own.
constexpr std::uint32_t kOwnQkey = 0x80000000;

// ---- posting ----

std::uint64_t total_bytes(std::span<const Sge> sg_list) noexcept {
    std::uint64_t total = 0;
    for (const Sge& sge : sg_list) {
        total += sge.length;
    }
    return total;
}

bool atomic_fits(const Qp& qp, const SendWr& wr, std::uint64_t bytes) noexcept {
    const std::optional<AtomicShape> shape = shape_of(wr.atomic);
    return shape && fits(*shape, target_bytes(*shape, bytes), qp.most_atomic_bytes());
}

/// What the row of the opcode says about operands and flags.
bool operands_fit(const Qp& qp, const SendWr& wr, const WrInfo& info,
                  std::uint64_t bytes) noexcept {
    const QpCap& cap = qp.init().cap;
    if (info.opcode == WrOpcode::kSend && wr.flags == SendFlags::kNone &&
        qp.type() != QpType::kUd) {
        return wr.sg_list.size() <= cap.max_send_sge;  // nothing below is about it
    }
    if (without(wr.flags, info.flags) != SendFlags::kNone || wr.sg_list.size() > cap.max_send_sge) {
        return false;
    }
    if (info.opcode == WrOpcode::kExtendedAtomic && !atomic_fits(qp, wr, bytes)) {
        return false;
    }
    if (has_any(wr.flags, SendFlags::kInline) &&
        payload_of(wr, info, bytes) > cap.max_inline_bytes) {
        return false;
    }
    if (has_any(info.traits, OpTraits::kAtomic) && (wr.sg_list.size() != 1 || bytes != 8)) {
        return false;
    }
    if (has_any(info.traits, OpTraits::kAnswered) && !qp.may_read()) {
        return false;
    }
    if (!has_any(info.traits, OpTraits::kPayload | OpTraits::kResult) && !wr.sg_list.empty()) {
        return false;
    }
    if (info.opcode == WrOpcode::kFlush && !is_flush(wr.flush.type, wr.flush.level)) {
        return false;
    }
    return qp.type() != QpType::kUd ||
           (wr.ah != nullptr && &wr.ah->pd() == &qp.pd() && wr.remote_qpn <= kQpnMask);
}

// ---- loopback ----

/// What became of a work request that was started.
struct Outcome {
    WcStatus status = WcStatus::kSuccess;
    bool not_ready = false;  // the receiver had no receive; `on` is where it would be posted
    std::uint64_t retry_after_us = 0;
    const void* on = nullptr;
};

/// The list holds the operands, and behind them room for the results.
Nak fetch_extended_locked(Qp& peer, const Request& request, const PieceList& local) noexcept {
    const std::uint64_t operands = shape_of(request.atomic)->operands * request.bytes;
    std::array<std::byte, kMostAtomicBytes> results;  // only what the atomic writes is read
    const Nak nak = do_extended_atomic(peer, request, local.part(0, operands), results.data());
    if (nak == Nak::kNone) {
        PieceList source;
        source.add(results.data(), result_bytes(request));
        if (copy(local.part(operands, local.bytes()), source) != source.bytes()) {
            return Nak::kAccess;
        }
    }
    return nak;
}

/// Copies bytes that a READ asks for, from `offset` on, into that part of the requester's memory.
Nak read_locked(Qp& peer, const Request& request, std::uint64_t offset,
                const PieceList& local) noexcept {
    PieceList source;
    const Nak nak = find_source(peer, request, offset, local.bytes(), source);
    return nak == Nak::kNone && copy(local, source) != source.bytes() ? Nak::kAccess : nak;
}

/// Copies what a READ asks for, or what an atomic found, into the requester's memory.
Nak fetch_locked(Qp& peer, const Request& request, const PieceList& local,
                 BufferUse* use) noexcept {
    if (request.info->opcode == WrOpcode::kExtendedAtomic) {
        return fetch_extended_locked(peer, request, local);
    }
    Nak nak = Nak::kNone;
    if (has_any(request.info->traits, OpTraits::kAtomic)) {
        PieceList source;
        std::uint64_t original = 0;
        nak = do_atomic(peer, request, original);
        source.add(&original, sizeof original);
        return nak == Nak::kNone && copy(local, source) != source.bytes() ? Nak::kAccess : nak;
    }
    if (local.bytes() <= kStageBytes && use == nullptr) [[likely]] {
        return read_locked(peer, request, 0, local);
    }
    move_in_stages(use, local.bytes(), [&](std::uint64_t at, std::uint64_t bytes) {
        nak = read_locked(peer, request, at, local.part(at, bytes));
        return nak == Nak::kNone;
    });
    return nak;
}

/// Has the peer take all of a message's bytes in, a part at a time: who has copies of a device's
/// memory, on either side, has no more of them than that.
/// @param is_lost  Set when the sender's own device does not give them.
Nak place_locked(Qp& peer, const Request& request, const PieceList& local, BufferUse* use,
                 bool& is_lost) noexcept {
    if (local.bytes() <= kStageBytes && use == nullptr) [[likely]] {
        return place_data(peer, request, 0, local);
    }
    Nak nak = Nak::kNone;
    const bool is_whole =
        move_in_stages(use, local.bytes(), [&](std::uint64_t at, std::uint64_t bytes) {
            nak = place_data(peer, request, at, local.part(at, bytes));
            return nak == Nak::kNone;
        });
    is_lost = !is_whole && nak == Nak::kNone;
    return is_lost ? Nak::kInvalid : nak;
}

/// The responder's steps in one go, with all of the data at hand.
Nak answer_locked(Qp& peer, const Request& request, const PieceList& local, BufferUse* use,
                  bool& is_lost) noexcept {
    if (Nak nak = begin_request(peer, request, local); nak != Nak::kNone) {
        return nak;
    }
    if (has_any(request.info->traits, OpTraits::kResult)) {
        return fetch_locked(peer, request, local, use);
    }
    if (has_any(request.info->traits, OpTraits::kAnswered)) {
        return do_answered(peer, request, local);
    }
    if (Nak nak = place_locked(peer, request, local, use, is_lost); nak != Nak::kNone) {
        return nak;
    }
    return finish_request(peer, request);
}

struct Answer {
    Nak nak;
    std::uint32_t retry_after_us;  // when not ready
    bool is_lost;                  // the peer has got what there is no more of
};

/// Has `peer` take the request in; afterwards no lock of its is held.
/// @param use  SendWr::use
Answer deliver(Qp& peer, const Request& request, const PieceList& local,
               BufferUse* use = nullptr) noexcept {
    bool is_lost = false;
    Nak nak = Nak::kNone;
    std::uint32_t retry_after_us = 0;
    {
        const util::Guard guard(peer.rx_lock());
        nak = answer_locked(peer, request, local, use, is_lost);
        retry_after_us = rnr_timer_us(peer.attr().min_rnr_timer);
        if (nak != Nak::kNone) {
            abandon_request(peer, nak);
        }
    }
    if (nak != Nak::kNone) {
        after_refusal(peer, nak);
    }
    if (peer.take_overrun()) {
        peer.raise(EventType::kQpFatal);
        peer.enter_error();
    }
    return {.nak = nak, .retry_after_us = retry_after_us, .is_lost = is_lost};
}

/// An unreliable message has been sent once it has left, whatever becomes of it.
Outcome send_datagram(Qp& qp, const SendWqe& wqe, const Request& request,
                      const PieceList& local) noexcept {
    Qp* peer = qp.device().qps().find(wqe.wr.remote_qpn);
    if (peer != nullptr && peer->type() == QpType::kUd) {
        deliver(*peer, request, local);
    } else {
        qp.device().stats().add(Stat::kDrops);
    }
    return {};
}

Outcome send_connected(Qp& qp, const Request& request, const PieceList& local,
                       BufferUse* use) noexcept {
    Qp* peer = qp.device().qps().find(qp.attr().dest_qpn);
    // Who takes packets is not reached without any.
    if (peer == nullptr || peer->type() != qp.type() || peer->init().sink != nullptr) {
        qp.device().stats().add(Stat::kDrops);
        return {.status = qp.type() == QpType::kUc ? WcStatus::kSuccess : WcStatus::kRetryExcErr};
    }
    const Answer answer = deliver(*peer, request, local, use);
    if (answer.is_lost) [[unlikely]] {
        return {.status = WcStatus::kGeneralErr};
    }
    if (qp.type() == QpType::kUc || answer.nak == Nak::kNone) {
        return {};
    }
    return {.status = refusal_of(answer.nak).requester,
            .not_ready = answer.nak == Nak::kNotReady,
            .retry_after_us = answer.retry_after_us,
            .on = &peer->recv_queue()};
}

WcStatus do_local(Qp& qp, const SendWqe& wqe) noexcept {
    KeyTable& keys = qp.pd().keys();
    if (wqe.wr.opcode == WrOpcode::kBindMw) {
        return bind_mw(keys, qp.pd().id(), wqe.wr.bind);
    }
    return keys.view().access_of(wqe.wr.rkey, qp.pd().id()).is_ok() &&
                   keys.invalidate(wqe.wr.rkey).is_ok()
               ? WcStatus::kSuccess
               : WcStatus::kLocQpOpErr;
}

Outcome start_loopback(Qp& qp, const SendWqe& wqe, const PieceList& local) noexcept {
    const Request request = to_request(qp, wqe);
    const Outcome outcome = qp.type() == QpType::kUd
                                ? send_datagram(qp, wqe, request, local)
                                : send_connected(qp, request, local, wqe.wr.use);
    if (outcome.status == WcStatus::kSuccess) {
        Stats& stats = qp.device().stats();
        stats.add_sent(wqe.bytes);
        stats.add(Stat::kLoopMessages);
    }
    return outcome;
}

// ---- the runner ----

bool is_too_long(const Qp& qp, const SendWqe& wqe) noexcept {
    const DeviceLimits& limits = qp.device().limits();
    return wqe.bytes > (qp.type() == QpType::kUd ? limits.max_ud_bytes : limits.max_message_bytes);
}

/// Completes the oldest, whose `done` is set. Its failure fails the queue.
void retire_oldest_locked(Qp& qp) noexcept {
    SendWqe& wqe = *qp.send_queue().oldest();
    const WcStatus status = wqe.status;
    const bool signaled = qp.init().signal_all || wqe.has(SendFlags::kSignaled);
    const Wc wc{.wr_id = wqe.wr.wr_id,
                .status = status,
                .opcode = wqe.info->wc_opcode,
                .byte_len = wqe.has(OpTraits::kResult) ? wqe.bytes : 0};
    qp.send_queue().retire_oldest();
    if (signaled || status != WcStatus::kSuccess) {
        qp.complete(*qp.init().send_cq, wc);
    }
    if (status == WcStatus::kWrFlushErr) {
        qp.device().stats().add(Stat::kFlushed);
    } else if (status != WcStatus::kSuccess) {
        qp.enter_error(true);
    }
}

/// Flushes one work request, the oldest first. Returns: false when there is none left.
bool flush_one_locked(Qp& qp) noexcept {
    SendQueue& queue = qp.send_queue();
    if (qp.flow() != nullptr) {
        qp.flow()->stop_sending();
    }
    if (queue.oldest() == nullptr) {
        if (queue.next() == nullptr) {
            return false;
        }
        queue.start_next();
    }
    SendWqe& wqe = *queue.oldest();
    wqe.status = wqe.done ? wqe.status : WcStatus::kWrFlushErr;
    retire_oldest_locked(qp);
    return true;
}

/// Puts the work request off until the receiver may be ready, or fails it.
/// Returns: whether the queue goes on.
bool put_off_locked(Qp& qp, SendWqe& wqe, const Outcome& outcome) noexcept {
    Qp::Sending& sending = qp.sending();
    if (sending.rnr_retries_left == 0) {
        qp.send_queue().start_next();
        wqe.status = outcome.status;
        wqe.done = true;
        return true;
    }
    if (qp.attr().rnr_retry != kRnrRetryForEver) {
        --sending.rnr_retries_left;
    }
    qp.device().stats().add(Stat::kRetries);
    qp.send_queue().note_begun();
    sending.blocked_until_us = qp.device().now_us() + outcome.retry_after_us;
    qp.device().wait_until(qp.qpn(), sending.blocked_until_us, outcome.on);
    return false;
}

/// local_pieces(), for what most carry without the call: one piece of memory that needs no key.
RVT_ALWAYS_INLINE WcStatus pieces_to_start(const Qp& qp, const SendWqe& wqe,
                                           PieceList& pieces) noexcept {
    const std::span<const Sge> list = wqe.wr.sg_list;
    if (wqe.wr.opcode == WrOpcode::kSend && list.size() == 1 && list[0].lkey == kLocalDmaLkey &&
        qp.pd().allows_local_dma() && !wqe.has(SendFlags::kInline)) [[likely]] {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        pieces.add(reinterpret_cast<void*>(list[0].addr), list[0].length);
        return WcStatus::kSuccess;
    }
    return local_pieces(qp, wqe, pieces);
}

/// Starts the next work request. Returns: whether the queue goes on.
RVT_ALWAYS_INLINE bool start_next_locked(Qp& qp, SendWqe& wqe) noexcept {
    if (wqe.has(OpTraits::kLocal) && qp.send_queue().oldest() != nullptr) {
        return false;  // what is under way may have to be sent again, local work is done once
    }
    PieceList local;
    WcStatus status = WcStatus::kLocLenErr;
    if (wqe.has(OpTraits::kLocal)) {
        status = do_local(qp, wqe);
    } else if (!is_too_long(qp, wqe)) {
        status = pieces_to_start(qp, wqe, local);
    }
    const bool leaves = status == WcStatus::kSuccess && !wqe.has(OpTraits::kLocal);
    if (leaves && is_remote(qp, wqe)) {
        return qp.type() == QpType::kUd ? send_remote_datagram(qp, wqe, local)
                                        : qp.flow()->start(qp, wqe, local);
    }
    if (leaves) {
        const Outcome outcome = start_loopback(qp, wqe, local);
        if (outcome.not_ready) {
            return put_off_locked(qp, wqe, outcome);
        }
        status = outcome.status;
    }
    qp.sending().rnr_retries_left = qp.attr().rnr_retry;
    qp.send_queue().start_next();
    wqe.status = status;
    wqe.done = true;
    return true;
}

void report_drained_locked(Qp& qp) noexcept {
    const bool drained = qp.state() == QpState::kSqd && qp.send_queue().oldest() == nullptr;
    if (drained && qp.sending().drained_event_due) {
        qp.sending().drained_event_due = false;
        qp.raise(EventType::kSqDrained);
    }
}

/// Whether what is next waits for a receiver that was not ready.
bool is_blocked_locked(Qp& qp) noexcept {
    std::uint64_t& until_us = qp.sending().blocked_until_us;
    if (until_us != 0 && until_us > qp.device().now_us()) {
        // A run for another reason may have used up the entry that this wait had.
        qp.device().wait_until(qp.qpn(), until_us, nullptr);
        return true;
    }
    until_us = 0;
    return false;
}

/// One step of the queue. Returns: whether there may be another.
bool step_locked(Qp& qp) noexcept {
    SendQueue& queue = qp.send_queue();
    const StateRights& rights = rights_of(qp.state());
    if (SendWqe* oldest = queue.oldest(); oldest != nullptr && oldest->done) {
        retire_oldest_locked(qp);
        return true;
    }
    if (rights.flush_send) {
        return flush_one_locked(qp);
    }
    if (qp.flow() != nullptr && qp.flow()->is_sending()) {
        return qp.flow()->go_on(qp);
    }
    // What has begun goes on in SQD, too.
    if (!rights.start_send && !queue.has_begun_next()) {
        report_drained_locked(qp);
        return false;
    }
    SendWqe* const next = queue.next();
    if (next == nullptr || is_blocked_locked(qp)) {
        return false;
    }
    // Nothing behind a request that failed is carried out, although earlier ones are under way.
    return !queue.has_failed_unsent() && start_next_locked(qp, *next);
}

}  // namespace

Status enqueue_send(Qp& qp, const SendWr& wr) noexcept {
    if (qp.type() == QpType::kRd) {
        return EOPNOTSUPP;
    }
    const WrInfo* info = wr_info(wr.opcode);
    if (info == nullptr || !takes(*info, qp.type()) || !rights_of(qp.state()).post_send) {
        return EINVAL;
    }
    const std::uint64_t bytes = total_bytes(wr.sg_list);
    if (!operands_fit(qp, wr, *info, bytes)) {
        return EINVAL;
    }
    if (Status status = qp.send_queue().post(wr, *info, bytes); !status.is_ok()) {
        return status;
    }
    run_send_queue(qp);
    return kOk;
}

void run_send_queue(Qp& qp) noexcept {
    const ReadPin pin;
    do {
        if (!qp.tx_lock().try_lock()) {
            // seq_cst: pairs with wants_run(): of a thread that asks for a run while another ends
            // one, one sees the other, and the run takes place.
            qp.run_again.exchange(1, std::memory_order_seq_cst);
            if (!qp.tx_lock().try_lock()) {
                break;
            }
        }
        // relaxed: a wish that comes behind this look is found by wants_run().
        if (qp.run_again.load(std::memory_order_relaxed) != 0) {
            // seq_cst: as above; what was posted before the wish is seen below.
            qp.run_again.exchange(0, std::memory_order_seq_cst);
        }
        while (step_locked(qp)) {
        }
        qp.tx_lock().unlock();
    } while (wants_run(qp));
    if (qp.take_overrun()) {
        qp.raise(EventType::kQpFatal);
        qp.enter_error();
    }
}

bool wants_run(Qp& qp) noexcept {
    // seq_cst: pairs with the exchange in run_send_queue(); a read-modify-write, so that the unlock
    // comes before it.
    return qp.run_again.fetch_or(0, std::memory_order_seq_cst) != 0;
}

bool retire_done_locked(Qp& qp) noexcept {
    SendQueue& queue = qp.send_queue();
    const SendWqe* oldest = queue.oldest();
    while (oldest != nullptr && oldest->done && oldest->status == WcStatus::kSuccess) {
        retire_oldest_locked(qp);
        oldest = queue.oldest();
    }
    return (oldest != nullptr && oldest->done) || queue.next() != nullptr ||
           qp.flow()->is_sending() || qp.state() != QpState::kRts;
}

void deliver_to_group(Qp& qp, const Request& request, const PieceList& local) noexcept {
    for (const std::uint32_t qpn : qp.device().mcast().members(request.dest)) {
        // C10-11: the sender itself gets no copy.
        if (Qp* member = qp.device().qps().find(qpn); member != nullptr && member != &qp) {
            deliver(*member, request, local);
        }
    }
}

void retry_send_queue(Qp& qp) noexcept {
    {
        const util::Guard guard(qp.tx_lock());
        qp.sending().blocked_until_us = 0;
    }
    run_send_queue(qp);
}

Request to_request(const Qp& qp, const SendWqe& wqe) noexcept {
    Request request{.info = wqe.info,
                    .src_qpn = qp.qpn(),
                    .imm = wqe.wr.imm,
                    .rkey = wqe.wr.rkey,
                    .remote_addr = wqe.wr.remote_addr,
                    .bytes = wqe.wr.opcode == WrOpcode::kFlush ? wqe.wr.flush.length
                             : wqe.is_extended_atomic()        ? wqe.target_bytes()
                                                               : wqe.bytes,
                    .compare_add = wqe.wr.compare_add,
                    .swap = wqe.wr.swap,
                    .flush_type = wqe.wr.flush.type,
                    .flush_level = wqe.wr.flush.level,
                    .atomic = wqe.wr.atomic,
                    .solicited = wqe.has(SendFlags::kSolicited)};
    if (qp.type() == QpType::kUd) {
        request.qkey = (wqe.wr.remote_qkey & kOwnQkey) != 0 ? qp.attr().qkey : wqe.wr.remote_qkey;
        request.source = qp.device().address();
        request.dest = wqe.wr.ah->attr().dest;
    }
    return request;
}

WcStatus local_pieces(const Qp& qp, const SendWqe& wqe, PieceList& pieces) noexcept {
    if (wqe.has(SendFlags::kInline)) {
        pieces.add(wqe.inline_data.data(), wqe.inline_data.size());
        if (!wqe.is_extended_atomic()) {
            return WcStatus::kSuccess;
        }
    }
    const bool has_results = wqe.is_fetch() && wqe.payload_bytes != wqe.bytes;
    return append_local(pieces, qp.pd(), wqe.wr.sg_list,
                        has_results ? Access::kLocalWrite : Access::kNone);
}

WcStatus take_results(const Qp& qp, const SendWqe& wqe, const PieceList& results) noexcept {
    const std::uint64_t bytes = wqe.bytes - wqe.payload_bytes;
    if (results.bytes() != bytes) {
        return WcStatus::kBadRespErr;
    }
    if (bytes == 0) {
        return WcStatus::kSuccess;
    }
    PieceList local;
    const WcStatus status = local_pieces(qp, wqe, local);
    if (status != WcStatus::kSuccess) {
        return status;
    }
    const bool is_copied = copy(local.part(wqe.payload_bytes, bytes), results) == bytes;
    return is_copied ? WcStatus::kSuccess : WcStatus::kLocProtErr;
}

}  // namespace rvt::core
