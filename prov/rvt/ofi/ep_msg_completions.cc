// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What becomes of the requests of connected endpoints.
//
// A completion means that the peer has acknowledged: its memory holds the data, or its receive.
// That is as much as FI_DELIVERY_COMPLETE asks for.
#include "ofi/ep_msg_post.h"
#include "ofi/srx.h"

namespace rvt::ofi {
namespace {

struct Outcome {
    Cq* cq;
    core::Counter* counter;
    core::Cqe entry;
};

Outcome outcome_of_receive(const EpMsg& ep, const MsgOp& op, const core::Wc& wc) noexcept {
    const bool is_write = wc.opcode == core::WcOpcode::kRecvWriteImm;
    const bool has_data = is_write || has_any(wc.flags, core::WcFlags::kWithImm);
    Outcome outcome{.cq = ep.rx_cq, .counter = is_write ? nullptr : counter_of(ep.counters.recv)};
    outcome.entry = {.op_context = op.context,
                     .flags = (is_write ? FI_RMA | FI_REMOTE_WRITE : op.flags) |
                              (has_data ? FI_REMOTE_CQ_DATA : kNoFlags),
                     .len = wc.byte_len,
                     .data = has_data ? wc.imm : 0,
                     .status = wc.status};
    // fi_cq(3): a message longer than its receive is called truncated.
    if (wc.status == core::WcStatus::kLocLenErr) {
        outcome.entry.status = core::WcStatus::kTruncated;
    }
    return outcome;
}

/// @param wants_entry  Also of what succeeds.
void tell(const Outcome& outcome, bool wants_entry) noexcept {
    const bool is_good = outcome.entry.status == core::WcStatus::kSuccess;
    if (outcome.counter != nullptr) {
        is_good ? outcome.counter->add(1) : outcome.counter->add_error(1);
    }
    if (outcome.cq != nullptr && (wants_entry || !is_good)) {
        outcome.cq->queue->push(outcome.entry);
    }
}

/// Takes what has arrived to the devices, and lets go of them. Returns: the number without its
/// mark, and the outcome.
core::Wc end_use(const core::Wc& wc) noexcept {
    core::Wc ended = wc;
    ended.wr_id = wc.wr_id & ~kMarkedNumber;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the number that msg_post() gave it
    MsgOp& op = *reinterpret_cast<MsgOp*>(ended.wr_id);
    const bool is_message = (op.flags & FI_RECV) != 0 && wc.opcode != core::WcOpcode::kRecvWriteImm;
    const std::uint64_t filled = (op.flags & FI_RECV) == 0 ? op.filled_bytes
                                 : is_message              ? wc.byte_len
                                                           : 0;
    if (wc.status == core::WcStatus::kSuccess && !op.use->filled(0, filled).is_ok()) {
        ended.status = core::WcStatus::kGeneralErr;
    }
    std::exchange(op.use, nullptr)->release();
    return ended;
}

/// Tells the application. Returns: whether it is a receive.
RVT_ALWAYS_INLINE bool finish(EpMsg& ep, const core::Wc& wc) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the number that msg_post() gave it
    MsgOp& op = *reinterpret_cast<MsgOp*>(wc.wr_id);
    const bool is_receive = (op.flags & FI_RECV) != 0;
    if (!is_receive) {
        ep.unsignaled.note_completed(op);
    }
    ep.domain->msg->give_back(op);
    if (ep.is_closing() && op.owner != ep.shared_receives()) {
        op.owner->put(op);
        return is_receive;
    }
    if (is_receive) {
        // The receives of a shared context do not know who takes them.
        tell(outcome_of_receive(ep, op, wc), op.wants_completion || !ep.is_rx_selective);
    } else {
        tell({.cq = ep.tx_cq,
              .counter = op.counter,
              .entry = {.op_context = op.context, .flags = op.flags, .status = wc.status}},
             op.wants_completion);
    }
    op.owner->put(op);
    return is_receive;
}

/// The same of one that holds memory of devices; of a probe there is nothing to tell.
[[gnu::noinline]] bool finish_marked(EpMsg& ep, const core::Wc& wc) noexcept {
    return wc.wr_id != core::kRcProbe && finish(ep, end_use(wc));
}

/// What completions say of the connection.
void note_drained(EpMsg& ep, bool has_failed, bool has_received) noexcept {
    if (has_failed) [[unlikely]] {
        ep.rc().note_failure(*ep.connection);
    } else if (has_received && ep.connection->state() == core::RcConnection::State::kAccepted)
        [[unlikely]] {
        ep.rc().note_traffic(*ep.connection);
    }
}

}  // namespace

unsigned EpMsg::drain_queue_locked() noexcept {
    std::array<core::Wc, 16> completions;
    unsigned total = 0;
    bool has_failed = false;
    bool has_received = false;
    for (unsigned n = 1; n != 0; total += n) {
        n = queue->take(completions);
        for (const core::Wc& wc : std::span(completions).first(n)) {
            has_failed |= wc.status != core::WcStatus::kSuccess;
            has_received |=
                (wc.wr_id & kMarkedNumber) == 0 ? finish(*this, wc) : finish_marked(*this, wc);
        }
    }
    if (!is_closing()) [[likely]] {
        note_drained(*this, has_failed, has_received);
    }
    return connection->is_lost() ? total + flush_lost_locked() : total;
}

/// Behind what has completed, which RESET would discard. Receives of a shared queue that nobody has
/// taken are there for further endpoints, unless the device is going: then they end with the last
/// one that could have.
unsigned EpMsg::flush_lost_locked() noexcept {
    const auto end = [this](MsgOp& op) {
        if (op.use != nullptr) {
            std::exchange(op.use, nullptr)->release();
        }
        finish(*this, {.wr_id = number_of(&op), .status = core::WcStatus::kWrFlushErr});
    };
    unsigned total = 0;
    if (!std::exchange(is_flushed, true)) {
        // What is completed here the application may use again.
        [[maybe_unused]] const util::Status stopped =
            connection->qp().modify({.state = QpState::kReset}, QpMask::kState);
        unsignaled.forget();  // how those have ended that the NIC has acknowledged, nobody knows
        total += sends->for_each_posted(end);
        total += receives != nullptr ? receives->for_each_posted(end) : 0;
    }
    const bool has_nic_queue = srx != nullptr && srx->nic_queue != nullptr;
    if (has_nic_queue && rc().device().is_going() && domain->msg->are_flushed_locked(*srx)) {
        total += srx->ops.for_each_posted(end);
    }
    return total;
}

const MsgOps* EpMsg::shared_receives() const noexcept {
    return srx != nullptr ? &srx->ops : nullptr;
}

/// Where that cannot be asked, who would sleep finds the channel readable, and polls.
void EpMsg::arm_queue_locked() noexcept {
    if (!queue->req_notify(false).is_ok()) [[unlikely]] {
        queue->channel()->notify(*queue);
    }
}

/// What completes between a look and arming would wake nobody: hence another look.
unsigned EpMsg::arm_drained_locked() noexcept {
    unsigned total = 0;
    for (unsigned n = 1; n != 0; total += n) {
        queue->channel()->forget(*queue);
        arm_queue_locked();
        n = drain_locked();
    }
    return total;
}

}  // namespace rvt::ofi
