// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Responses come in: IBTA vol. 1, 9.7.5 and 9.7.6.
#include "core/device.h"
#include "core/packet_burst.h"
#include "core/packet_requester.h"
#include "core/qp.h"
#include "core/requester.h"
#include "core/stages.h"
#include "protocol/syndrome.h"

#include <algorithm>
#include <utility>

namespace rvt::core {
namespace {

constexpr std::uint32_t kMostCrowdedWindow = 96;  // see shrink_window_for_repeats()

using protocol::Kind;
using protocol::NakCode;
using protocol::PacketHeader;
using protocol::Psn;
using protocol::Syndrome;

// What each code means for the work request; a sequence error means none of it (table 47).
constexpr WcStatus kStatusOf[protocol::kNakCodes] = {
    /* kPsnSequence       */ WcStatus::kRetryExcErr,
    /* kInvalidRequest    */ WcStatus::kRemInvReqErr,
    /* kRemoteAccess      */ WcStatus::kRemAccessErr,
    /* kRemoteOperational */ WcStatus::kRemOpErr,
};

}  // namespace

void PacketRequester::take_response(Qp& qp, const protocol::DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    if (distance(header.psn, una_) < 0 || has_failed_) {
        device_.stats().add(Stat::kDuplicates);
        return;
    }
    if (distance(header.psn, ever_sent_psn_) >= 0) {
        device_.stats().add(Stat::kBadPackets);  // answers what has never been asked
        return;
    }
    const Psn before = una_;
    const Kind kind = header.info().kind;
    if (kind == Kind::kSack && !qp.keeps_early()) {
        device_.stats().add(Stat::kBadPackets);
        return;
    }
    if (kind == Kind::kSack) {
        skip_to(qp, header.psn);
    } else if (kind == Kind::kAck) {
        const Syndrome::Type type = protocol::syndrome_of(header.syndrome).type;
        skip_to(qp, type == Syndrome::Type::kAck ? header.psn + 1 : header.psn);
    } else if (distance(header.psn, sent_psn_) >= 0) {
        return;  // of a request that is about to be sent again
    }
    switch (kind) {
        case Kind::kReadResponse: take_read_response(qp, packet); break;
        case Kind::kAtomicAck: take_atomic_result(qp, header); break;
        case Kind::kExtendedResult: take_extended_result(qp, packet); break;
        case Kind::kAck: take_ack(qp, header); break;
        case Kind::kSack: take_sack(qp, packet); break;
        case Kind::kSend:
        case Kind::kWrite:
        case Kind::kRead:
        case Kind::kAtomic:
        case Kind::kFlush:
        case Kind::kAtomicWrite:
        case Kind::kExtendedAtomic: break;  // requests
    }
    if (una_ != before) {
        if (kind != Kind::kSack) {
            end_repair();
        }
        made_progress(qp, before, device_.poll_us());
    }
}

void PacketRequester::take_acknowledged(Qp& qp, Psn psn, std::uint64_t at_us) noexcept {
    if (distance(psn, una_) < 0 || has_failed_) {
        return;  // a response has come meanwhile
    }
    if (distance(psn, ever_sent_psn_) >= 0) {
        device_.stats().add(Stat::kBadPackets);  // answers what has never been asked
        return;
    }
    const Psn before = una_;
    skip_to(qp, psn + 1);
    take_all_until(qp, psn + 1);
    if (una_ != before) {
        end_repair();
        made_progress(qp, before, at_us);
    }
}

/// The peer has been heard: all of its retries are left.
void PacketRequester::note_answer(std::uint64_t now) noexcept {
    is_again_ = false;
    retries_used_ = 0;
    progress_us_ = retry_since_us_ = now;
}

/// The oldest of what is under way has moved on from `from`.
void PacketRequester::made_progress(const Qp& qp, Psn from, std::uint64_t now) noexcept {
    fetches_.drop_until(una_);
    losses_.move_on_to(una_);
    crowded_.move_on_to(una_);
    note_answer(now);
    if (timed_at_us_ != 0 && distance(una_, timed_psn_) > 0) {
        // The packet may have left since the poll looked at the clock.
        const std::uint64_t sample = now - std::min(now, timed_at_us_);
        rtt_us_ = rtt_us_ == 0 ? sample : (7 * rtt_us_ + sample) / 8;
        timed_at_us_ = 0;
    }
    probe_us_ = std::max(qp.init().sink != nullptr ? kMinFlowProbeUs : kMinProbeUs, 4 * rtt_us_);
    deadline_us_ = now + probe_us_;
    grow_window(qp, static_cast<std::uint32_t>(distance(una_, from)));
}

void PacketRequester::grow_window(const Qp& qp, std::uint32_t arrived) noexcept {
    if (window_ < steep_until_) {
        window_ = std::min(window_ + arrived, steep_until_);
        return;
    }
    // A window that losses of repeats have made as small gives way to nothing but these.
    const bool is_steady = qp.keeps_early() && window_ >= kMinFillingWindow;
    window_credit_ += is_steady ? 8 * arrived : arrived;
    if (window_credit_ >= window_) {
        window_ = std::min(window_ + window_credit_ / window_, kMaxWindow);
        window_credit_ = 0;
    }
}

void PacketRequester::shrink_window() noexcept {
    window_ = std::max(window_ / 2, kMinWindow);
    steep_until_ = window_;
}

/// For a loss that costs a packet, not all behind it: once for what is under way.
void PacketRequester::shrink_window_a_little() noexcept {
    if (losses_.note(una_, sent_psn_)) {
        window_ = std::max(window_ - window_ / 8, std::min(window_, kMinFillingWindow));
        steep_until_ = window_;
    }
}

/// Where repeats are lost for want of room, as many senders' together, that little does not end: a
/// window that is near its least is half of it then, once for what is under way.
void PacketRequester::shrink_window_for_repeats() noexcept {
    if (window_ <= kMostCrowdedWindow && crowded_.note(una_, sent_psn_)) {
        shrink_window();
        repeat_losses_.heed();
    }
}

/// What is to be sent again and has arrived after all need not be: an answer to its first sending
/// says so. What has an answer of its own is asked for again: a READ's is more than a number.
/// Behind a request that could not be sent again, of which no number is known, none is.
void PacketRequester::skip_to(Qp& qp, Psn upto) noexcept {
    while (distance(upto, sent_psn_) > 0) {
        SendWqe* wqe = sending_ != nullptr ? sending_ : qp.send_queue().next();
        if (wqe == nullptr || wqe->is_answered() || qp.send_queue().has_failed_unsent()) {
            return;
        }
        if (sending_ == nullptr) {
            begin(qp, *wqe);
        }
        const auto behind = static_cast<std::uint32_t>(distance(upto, sent_psn_));
        const std::uint32_t skipped = std::min(behind, wqe->packets - wqe->sent);
        wqe->sent += skipped;
        sent_psn_ = sent_psn_ + skipped;
        sending_ = wqe->sent < wqe->packets ? wqe : nullptr;
    }
}

/// Takes everything before `upto` as arrived. Returns: false when that leaves out a request whose
/// own answer has not come; una_ is then its first missing packet.
bool PacketRequester::acknowledge(Qp& qp, Psn upto) noexcept {
    Psn answered = una_;
    qp.send_queue().find_under_way([&](SendWqe& wqe) {
        const Psn end = Psn(wqe.msn) + wqe.packets;
        if (wqe.done || distance(upto, answered) <= 0 || wqe.is_answered()) {
            return !wqe.done;
        }
        wqe.done = distance(upto, end) >= 0;
        answered = wqe.done ? end : upto;
        return !wqe.done;
    });
    if (answered != una_) {
        move_on_to(qp, answered);
    }
    return una_ == upto;
}

/// All before `psn` has been answered. What follows has all retries of its own.
void PacketRequester::move_on_to(Qp& qp, Psn psn) noexcept {
    una_ = psn;
    most_here_ = 0;
    is_repairing_ = false;
    qp.sending().rnr_retries_left = qp.attr().rnr_retry;
}

/// The responder has taken everything before `upto`.
void PacketRequester::take_all_until(Qp& qp, Psn upto) noexcept {
    if (!acknowledge(qp, upto)) {
        repair_gap(qp);
    }
}

void PacketRequester::take_ack(Qp& qp, const PacketHeader& header) noexcept {
    const Syndrome syndrome = protocol::syndrome_of(header.syndrome);
    switch (syndrome.type) {
        case Syndrome::Type::kAck: take_all_until(qp, header.psn + 1); return;
        case Syndrome::Type::kRnrNak:
            if (!acknowledge(qp, header.psn)) {
                repair_gap(qp);
            } else if (in_flight() != 0) {  // else the wire doubled it: it has been heeded
                take_rnr_nak(qp, syndrome.value);
            }
            return;
        case Syndrome::Type::kNak: take_nak(qp, header); return;
        case Syndrome::Type::kReserved: device_.stats().add(Stat::kBadPackets); return;
    }
}

/// The responder refused packet `header.psn`, and took all before it.
void PacketRequester::take_nak(Qp& qp, const PacketHeader& header) noexcept {
    const std::uint8_t code = protocol::syndrome_of(header.syndrome).value;
    const bool complete = acknowledge(qp, header.psn);
    const bool is_gap = code == static_cast<std::uint8_t>(NakCode::kPsnSequence);
    if (!complete || is_gap) {
        repair_gap(qp, !is_gap);
        return;
    }
    if (code >= protocol::kNakCodes) {
        device_.stats().add(Stat::kBadPackets);
        return;
    }
    fail_oldest(qp, kStatusOf[code]);
}

/// The receiver had no receive; it says how long to wait.
void PacketRequester::take_rnr_nak(Qp& qp, std::uint8_t timer) noexcept {
    Qp::Sending& sending = qp.sending();
    if (sending.rnr_retries_left == 0) {
        fail_oldest(qp, WcStatus::kRnrRetryExcErr);
        return;
    }
    if (qp.attr().rnr_retry != kRnrRetryForEver) {
        --sending.rnr_retries_left;
    }
    go_back(qp);
    const std::uint64_t now = device_.now_us();
    note_answer(now);
    sending.blocked_until_us = now + rnr_timer_us(timer);
    device_.wait_until(qp.qpn(), sending.blocked_until_us, nullptr);
}

/// Something before what has just come is missing: send from there again, once for each gap. If
/// that is lost too, the timer finds it.
/// @param may_be_kept  The peer has not said that it keeps nothing of what came behind it.
void PacketRequester::repair_gap(Qp& qp, bool may_be_kept) noexcept {
    if (is_repairing_) {
        return;
    }
    if (may_be_kept && fills_gaps(qp) && has_repair()) {
        repair_->note({});
        fill_gaps(qp, kLeastRepeats);
    } else {
        shrink_window();
        go_back(qp);
    }
    is_repairing_ = true;
}

/// A packet of a flow is missing, and the report says which have come behind it.
void PacketRequester::take_sack(Qp& qp, const protocol::DecodedPacket& packet) noexcept {
    const Psn before = una_;
    const std::uint32_t had = std::exchange(here_, 0);  // counted from the una_ of that time
    if (!acknowledge(qp, packet.header.psn) || !fills_gaps(qp)) {
        repair_gap(qp);
        return;
    }
    const bool has_gone_back = is_repairing_ && repair_ == nullptr;  // for this gap
    if (in_flight() == 0 || has_gone_back || !has_repair()) {
        return;
    }
    here_ = std::min(repair_->note(packet.payload), in_flight() - 1);
    const auto acked = static_cast<std::uint32_t>(distance(una_, before));
    const std::uint32_t come = acked + here_ > had ? acked + here_ - had : 0;
    // Not what had come before all was sent again: a packet that never comes is given up.
    if (acked != 0 || here_ > most_here_) {
        most_here_ = here_;
        note_answer(device_.now_us());
    }
    fill_gaps(qp, std::max(come, kLeastRepeats));
}

/// Sends again what is lost, `most` packets at most.
void PacketRequester::fill_gaps(Qp& qp, std::uint32_t most) noexcept {
    PacketBurst burst(device_, dest_);
    const std::uint32_t again = repair_->for_each_lost(una_, sent_psn_, [&](Psn psn) {
        return burst.count() < most && send_again(qp, psn, burst);
    });
    if (burst.count() == 0) {
        return;
    }
    if (repeat_losses_.note(static_cast<std::uint32_t>(burst.count()) - again, again)) {
        shrink_window_for_repeats();
    }
    shrink_window_a_little();
    timed_at_us_ = 0;  // an answer could be to either sending
    device_.stats().add(Stat::kRetries);
    burst.send();  // what the backend does not take is lost once more: the timer finds it
    device_.flush();
}

void PacketRequester::take_read_response(Qp& qp, const protocol::DecodedPacket& packet) noexcept {
    const Psn psn = packet.header.psn;
    if (!acknowledge(qp, psn)) {
        repair_gap(qp);
        return;
    }
    SendWqe* wqe = qp.send_queue().oldest_open();
    const bool is_asked = wqe != nullptr && wqe->is_answered() &&
                          (wqe->wr.opcode == WrOpcode::kRead || !wqe->is_fetch());
    if (!is_asked) {
        device_.stats().add(Stat::kBadPackets);
        return;
    }
    const auto index = static_cast<std::uint32_t>(distance(psn, Psn(wqe->msn)));
    const std::uint64_t offset = std::uint64_t{index} * mtu_;
    PieceList local;
    WcStatus status = WcStatus::kBadRespErr;
    // That of FLUSH and ATOMIC WRITE holds none.
    const std::uint64_t due =
        wqe->is_fetch() ? std::min<std::uint64_t>(wqe->bytes - offset, mtu_) : 0;
    if (packet.payload.size() == due) {
        status = due == 0 ? WcStatus::kSuccess : local_pieces(qp, *wqe, local);
    }
    if (status != WcStatus::kSuccess) {
        fail_oldest(qp, status);
        return;
    }
    static_cast<void>(stage(wqe->wr.use, offset, offset + due));
    if (copy(local.part(offset, due), pieces_of(packet.payload)) != due) {
        fail_oldest(qp, WcStatus::kLocProtErr);
        return;
    }
    wqe->moved += packet.payload.size();
    move_on_to(qp, psn + 1);
    wqe->done = index + 1 == wqe->packets;
}

void PacketRequester::take_atomic_result(Qp& qp, const PacketHeader& header) noexcept {
    if (!acknowledge(qp, header.psn)) {
        repair_gap(qp);
        return;
    }
    SendWqe* wqe = qp.send_queue().oldest_open();
    if (wqe == nullptr || !wqe->is_fetch() || !wqe->has(OpTraits::kAtomic)) {
        device_.stats().add(Stat::kBadPackets);
        return;
    }
    std::uint64_t original = header.original;
    PieceList local;
    PieceList result;
    result.add(&original, sizeof original);
    WcStatus status = local_pieces(qp, *wqe, local);
    if (status == WcStatus::kSuccess && copy(local, result) != result.bytes()) {
        status = WcStatus::kLocProtErr;
    }
    if (status != WcStatus::kSuccess) {
        fail_oldest(qp, status);
        return;
    }
    move_on_to(qp, header.psn + 1);
    wqe->done = true;
}

void PacketRequester::take_extended_result(Qp& qp, const protocol::DecodedPacket& packet) noexcept {
    const Psn psn = packet.header.psn;
    if (!acknowledge(qp, psn)) {
        repair_gap(qp);
        return;
    }
    SendWqe* wqe = qp.send_queue().oldest_open();
    if (wqe == nullptr || !wqe->is_extended_atomic()) {
        device_.stats().add(Stat::kBadPackets);
        return;
    }
    if (const WcStatus status = take_results(qp, *wqe, pieces_of(packet.payload));
        status != WcStatus::kSuccess) {
        fail_oldest(qp, status);
        return;
    }
    move_on_to(qp, psn + 1);
    wqe->done = true;
}

}  // namespace rvt::core
