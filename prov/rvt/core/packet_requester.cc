// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Cutting work requests into packets, and the timer.
#include "core/packet_requester.h"

#include "core/device.h"
#include "core/joined_packets.h"
#include "core/packet_burst.h"
#include "core/qp.h"
#include "core/requester.h"
#include "core/stages.h"
#include "protocol/atomic_word.h"
#include "protocol/feth.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <new>

namespace rvt::core {
namespace {

using protocol::Ext;
using protocol::Kind;
using protocol::Opcode;
using protocol::PacketHeader;
using protocol::Psn;

/// What stands behind the last packet's other headers.
Ext trailer_of(const SendWqe& wqe, bool ends) noexcept {
    if (!ends) {
        return Ext::kNone;
    }
    return wqe.has(OpTraits::kImm)           ? Ext::kImm
           : wqe.has(OpTraits::kInvalidates) ? Ext::kIeth
                                             : Ext::kNone;
}

Opcode opcode_for(QpType service, const SendWqe& wqe, bool starts, bool ends) noexcept {
    switch (wqe.wr.opcode) {
        case WrOpcode::kRead: return Opcode::kRcReadRequest;
        case WrOpcode::kCas: return Opcode::kRcCompareSwap;
        case WrOpcode::kFetchAdd: return Opcode::kRcFetchAdd;
        case WrOpcode::kFlush: return Opcode::kRcFlush;
        case WrOpcode::kAtomicWrite: return Opcode::kRcAtomicWrite;
        case WrOpcode::kExtendedAtomic: return Opcode::kRvtAtomic;
        case WrOpcode::kSend:
        case WrOpcode::kSendImm:
        case WrOpcode::kSendInv:
        case WrOpcode::kWrite:
        case WrOpcode::kWriteImm:
        case WrOpcode::kLocalInv:
        case WrOpcode::kBindMw: break;  // the last two never leave
    }
    const Kind kind = wqe.has(OpTraits::kRemoteAddr) ? Kind::kWrite : Kind::kSend;
    return protocol::opcode_of(service, kind, protocol::part_of(starts, ends),
                               trailer_of(wqe, ends));
}

/// Payload of the next packet: behind the operands of an atomic stands in the list where its
/// results go.
std::uint64_t next_payload(const SendWqe& wqe, std::uint32_t mtu) noexcept {
    const std::uint64_t left = wqe.payload_bytes - std::uint64_t{wqe.sent} * mtu;
    return wqe.has(OpTraits::kPayload) ? std::min<std::uint64_t>(left, mtu) : 0;
}

/// C9-140: the local ACK time-out is 4.096 us times a power of two; a code of 0 means never.
std::uint64_t timeout_us(std::uint8_t code) noexcept {
    return code == 0 ? 0 : (std::uint64_t{4096} << code) / 1000;
}

}  // namespace

void PacketRequester::start_at(const QpAttr& attr) noexcept {
    mtu_ = std::min(attr.path_mtu_bytes, device_.payload_bytes());
    has_failed_ = false;
    una_ = sent_psn_ = ever_sent_psn_ = next_psn_ = Psn(attr.sq_psn);
    losses_.start_at(una_);
    crowded_.start_at(una_);
    change_to(attr);
}

void PacketRequester::change_to(const QpAttr& attr) noexcept {
    dest_ = attr.ah;
    timeout_us_ = timeout_us(attr.timeout);
}

bool PacketRequester::fills_gaps(const Qp& qp) const noexcept {
    return qp.keeps_early() && fetches_.size() == 0;
}

// ---- packets leave ----

/// How many packets the next request for a part of a READ asks for.
std::uint32_t PacketRequester::read_step(const SendWqe& wqe) const noexcept {
    const bool is_new = distance(sent_psn_, ever_sent_psn_) >= 0;
    const std::uint32_t most =
        is_new ? std::clamp(std::bit_floor(window_ / 4), kReadPackets, kMostReadPackets)
               : kReadPackets;
    return std::min(wqe.packets - wqe.sent, most - wqe.sent % most);
}

/// How many packet numbers the next packet of `wqe` takes; 0: none can leave now.
RVT_ALWAYS_INLINE std::uint32_t PacketRequester::next_step(const Qp& qp,
                                                           const SendWqe& wqe) const noexcept {
    std::uint32_t step = 1;
    if (wqe.is_answered()) {
        if (fetches_.size() >= std::min<std::uint32_t>(qp.attr().max_rd_atomic, FetchEnds::kMax)) {
            return 0;
        }
        step = read_step(wqe);
    }
    const bool has_room = window_has_room(step) || qp.type() == QpType::kUc;
    return has_room || in_flight() == 0 ? step : 0;
}

bool PacketRequester::start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    // A fenced request waits for the READs and atomics before it.
    if (wqe.has(SendFlags::kFence) && fetches_.size() != 0) {
        return false;
    }
    begin(qp, wqe);
    return send_some(qp, wqe, local);
}

/// Gives the next work request its numbers. One that starts again gets those that it had.
void PacketRequester::begin(Qp& qp, SendWqe& wqe) noexcept {
    qp.send_queue().start_next();
    wqe.msn = next_psn_.value();
    wqe.packets = packets_of(wqe.has(OpTraits::kPayload) ? wqe.payload_bytes : wqe.bytes);
    next_psn_ = next_psn_ + wqe.packets;
    sending_ = &wqe;
}

bool PacketRequester::go_on(Qp& qp) noexcept {
    SendWqe& wqe = *sending_;
    PieceList local;
    if (wqe.has(OpTraits::kPayload)) {
        // Each time again: between two packets the memory may have been deregistered.
        if (WcStatus status = local_pieces(qp, wqe, local); status != WcStatus::kSuccess) {
            fail_unsent(wqe, status);
            return true;
        }
    }
    return send_some(qp, wqe, local);
}

/// What is being sent cannot be had here any more.
void PacketRequester::fail_unsent(SendWqe& wqe, WcStatus status) noexcept {
    wqe.status = status;
    wqe.done = true;
    sending_ = nullptr;
}

/// Has what the window may allow brought here, and what has been acknowledged may go: nothing
/// before that is sent again.
[[gnu::noinline]] util::Status PacketRequester::stage_window(const SendWqe& wqe) noexcept {
    if (!wqe.has(OpTraits::kPayload)) {
        return util::kOk;
    }
    const std::int32_t acked = std::max(distance(una_, Psn(wqe.msn)), 0);
    const std::uint64_t end = std::uint64_t{wqe.sent + window_} * mtu_;
    return stage(wqe.wr.use, std::uint64_t(acked) * mtu_, std::min(end, wqe.payload_bytes));
}

/// Whether what may leave now of a message is better sent with what may leave after the next
/// acknowledgement: few packets cost the wire nearly as much as many. While half of the window is
/// under way one of those has asked for it. A part of the window only: what leaves all at once
/// overflows a short queue.
RVT_ALWAYS_INLINE bool PacketRequester::waits_for_more(const SendWqe& wqe) const noexcept {
    return in_flight() - here_ >= window_ / 2 &&
           !window_has_room(std::min(wqe.packets - wqe.sent, window_ / 16)) && !wqe.is_answered();
}

/// Sends what the window allows of a message. Returns: whether the queue goes on.
RVT_ALWAYS_INLINE bool PacketRequester::send_some(Qp& qp, SendWqe& wqe,
                                                  const PieceList& local) noexcept {
    if (waits_for_more(wqe)) {
        return false;
    }
    if (wqe.wr.use != nullptr && !stage_window(wqe).is_ok()) [[unlikely]] {
        fail_unsent(wqe, WcStatus::kGeneralErr);
        return true;
    }
    const bool was_idle = in_flight() == 0;
    const Psn ever_sent = ever_sent_psn_;
    const bool is_one = wqe.packets == 1 && !wqe.is_answered();
    const bool leaves = leaves_now(qp, wqe, was_idle);
    const bool all_taken =
        is_one ? send_only(qp, wqe, local, leaves) : send_packets(qp, wqe, local, was_idle);
    if (leaves && !is_one) {
        let_go(qp);
    }
    note_time(qp, was_idle);
    if (!all_taken) {
        device_.wait_until(qp.qpn(), device_.now_us(), nullptr);  // poll() makes room
        return false;
    }
    if (wqe.sent < wqe.packets) {
        return false;  // an acknowledgement sets it going
    }
    sending_ = nullptr;
    if (distance(Psn(wqe.msn) + wqe.packets, ever_sent) > 0) [[likely]] {  // else once more
        device_.stats().add_sent(wqe.bytes);
    }
    if (qp.type() == QpType::kUc) {
        wqe.done = true;  // sent is all that it can be
    }
    return true;
}

/// What is held leaves. With a message of a flow no answers do: those for its peer are in it.
RVT_ALWAYS_INLINE void PacketRequester::let_go(const Qp& qp) noexcept {
    if (qp.init().sink == nullptr) {
        device_.flush();
    } else {
        device_.flush_packets();
    }
}

/// Whether the last packet of a message says so. That of a flow says with it that nobody waits for
/// the acknowledgement, which does not hold while much of the window is under way.
RVT_ALWAYS_INLINE bool PacketRequester::is_solicited(const Qp& qp,
                                                     const SendWqe& wqe) const noexcept {
    return wqe.has(SendFlags::kSolicited) &&
           (qp.init().sink == nullptr || in_flight() < window_ / 2);
}

/// Writes the header of the packet of a message that has no other. Returns: its length.
RVT_ALWAYS_INLINE std::size_t PacketRequester::write_only_header(const Qp& qp, const SendWqe& wqe,
                                                                 std::uint8_t pad, bool ack_request,
                                                                 std::byte* to) const noexcept {
    if (wqe.wr.opcode == WrOpcode::kSend && qp.type() == QpType::kRc) [[likely]] {
        protocol::write_bth({.opcode = Opcode::kRcSendOnly,
                             .solicited = is_solicited(qp, wqe),
                             .ack_request = ack_request,
                             .pad = pad,
                             .dest_qpn = qp.attr().dest_qpn,
                             .psn = Psn(wqe.msn)},
                            to);
        return protocol::kBthBytes;
    }
    PacketHeader header = header_at(qp, wqe, 0, 1);
    header.pad = pad;
    header.ack_request = ack_request;
    return protocol::encode(header, to);
}

/// The packet of a message that has no other, if the window allows it. Returns: false when the
/// backend does not take it.
RVT_ALWAYS_INLINE bool PacketRequester::send_only(Qp& qp, SendWqe& wqe, const PieceList& local,
                                                  bool leaves_now) noexcept {
    if (next_step(qp, wqe) == 0) {
        if (leaves_now) {
            let_go(qp);  // the acknowledgement of what is held makes room
        }
        return true;
    }
    const auto pad = static_cast<std::uint8_t>(-wqe.payload_bytes & 3);
    const bool asks = count_sent(qp, wqe, 1);
    std::array<std::byte, protocol::kMaxHeaderBytes> headers;
    const OutPacket packet{
        .headers = {headers.data(), write_only_header(qp, wqe, pad, asks, headers.data())},
        .payload = local.all(),
        .pad = pad};
    const bool is_taken = leaves_now
                              ? device_.send_now(dest_, packet, qp.init().sink == nullptr)
                              : device_.ops().send_packets(device_, dest_, {&packet, 1}) == 1;
    if (!is_taken) [[unlikely]] {
        drop_sent(wqe, Psn(wqe.msn));
    }
    note_sent(qp);
    return is_taken;
}

/// Of a message that leaves in several calls, and behind a pause, how many packets leave in the
/// first one: the peer takes them in while the next ones leave. A flow divides its messages itself.
/// Returns: 0 where that is none's business.
std::uint32_t PacketRequester::head_start(const Qp& qp, const SendWqe& wqe) const noexcept {
    const std::uint32_t most = most_joined(mtu_);
    const bool has_more = wqe.packets > most && !wqe.is_fetch() && qp.init().sink == nullptr;
    return has_more ? most / 2 : 0;
}

/// The next packets, as far as the window allows them. Returns: as send_only().
/// @param was_idle  Nothing was under way.
bool PacketRequester::send_packets(Qp& qp, SendWqe& wqe, const PieceList& local,
                                   bool was_idle) noexcept {
    device_.ack_hold().note_reply([this] { return device_.now_us(); });  // it takes time to send
    const std::uint32_t head = was_idle ? head_start(qp, wqe) : 0;
    PacketBurst burst(device_, dest_);
    PieceCursor payload(local, std::uint64_t{wqe.sent} * mtu_);
    bool all_taken = true;
    PacketHeader header;
    bool has_middle = false;
    while (all_taken && wqe.sent < wqe.packets) {
        const std::uint32_t step = next_step(qp, wqe);
        if (step == 0) {
            break;
        }
        if (!burst.has_room_for(payload.pieces())) {
            all_taken = send_burst(qp, wqe, burst);
            continue;
        }
        if (wqe.sent == head && head != 0 && burst.count() != 0) {
            all_taken = send_burst(qp, wqe, burst);
            device_.flush_packets();
            continue;
        }
        // Between the first packet and the last only the numbers differ.
        const bool is_middle = wqe.sent != 0 && wqe.sent + 1 != wqe.packets && !wqe.is_fetch();
        if (is_middle && has_middle) {
            header.psn = header.psn + 1;
        } else {
            header = header_at(qp, wqe, wqe.sent, step);
        }
        has_middle = is_middle;
        const std::uint64_t bytes = next_payload(wqe, mtu_);
        header.ack_request = count_sent(qp, wqe, step);
        burst.add(header, payload, bytes);
    }
    return send_burst(qp, wqe, burst) && all_taken;
}

/// Hands the burst over; what the backend does not take has not been sent.
/// Returns: whether all were taken.
bool PacketRequester::send_burst(Qp& qp, SendWqe& wqe, PacketBurst& burst) noexcept {
    const std::size_t count = burst.count();
    const std::size_t taken = burst.send();
    if (taken < count) {
        drop_sent(wqe, burst.psn(taken));
    }
    note_sent(qp);
    return taken == count;
}

/// Of what counts as sent, packets from `first` on have not left.
void PacketRequester::drop_sent(SendWqe& wqe, Psn first) noexcept {
    sent_psn_ = first;
    wqe.sent = static_cast<std::uint32_t>(distance(first, Psn(wqe.msn)));
    fetches_.drop_behind(first);
}

/// What counts as sent has left.
RVT_ALWAYS_INLINE void PacketRequester::note_sent(const Qp& qp) noexcept {
    if (distance(sent_psn_, ever_sent_psn_) > 0) {
        ever_sent_psn_ = sent_psn_;
    }
    if (qp.type() == QpType::kUc) {
        una_ = sent_psn_;
    }
}

/// The header of packet `index` of `wqe`.
/// @param packets  Whose numbers it stands for: of a READ more than one.
PacketHeader PacketRequester::header_at(const Qp& qp, const SendWqe& wqe, std::uint32_t index,
                                        std::uint32_t packets) const noexcept {
    const std::uint64_t offset = std::uint64_t{index} * mtu_;
    const bool starts = index == 0;
    const bool ends = index + packets == wqe.packets;
    const bool whole =
        starts || wqe.is_fetch();  // each request for a part of a READ is one of its own
    PacketHeader header{.opcode = opcode_for(qp.type(), wqe, whole, ends),
                        .dest_qpn = qp.attr().dest_qpn,
                        .psn = Psn(wqe.msn) + index,
                        .imm = wqe.wr.imm};
    header.solicited = ends && is_solicited(qp, wqe);
    if (wqe.has(OpTraits::kRemoteAddr)) {
        const bool is_read = wqe.wr.opcode == WrOpcode::kRead;
        const std::uint64_t bytes =
            is_read ? std::min(wqe.bytes - offset, std::uint64_t{packets} * mtu_) : wqe.bytes;
        header.remote_addr = wqe.wr.remote_addr + (is_read ? offset : 0);
        header.rkey = wqe.wr.rkey;
        header.dma_bytes =
            static_cast<std::uint32_t>(wqe.wr.opcode == WrOpcode::kFlush ? wqe.wr.flush.length
                                       : wqe.is_extended_atomic()        ? wqe.target_bytes()
                                                                         : bytes);
        header.flush = protocol::feth_of(wqe.wr.flush.type, wqe.wr.flush.level);
        header.atomic = protocol::atomic_word(wqe.wr.atomic);
        header.swap_add = wqe.wr.opcode == WrOpcode::kFetchAdd ? wqe.wr.compare_add : wqe.wr.swap;
        header.compare = wqe.wr.opcode == WrOpcode::kFetchAdd ? 0 : wqe.wr.compare_add;
    }
    return header;
}

/// The next packet of `wqe` counts as sent. Returns: whether it asks for an answer.
RVT_ALWAYS_INLINE bool PacketRequester::count_sent(Qp& qp, SendWqe& wqe,
                                                   std::uint32_t packets) noexcept {
    const bool ends = wqe.sent + packets == wqe.packets;
    wqe.sent += packets;
    sent_psn_ = sent_psn_ + packets;
    if (wqe.is_answered()) {
        fetches_.push(sent_psn_);
    }
    return qp.type() == QpType::kRc && wants_ack(qp, wqe, ends);
}

/// Adds packet `psn`, which is under way, once more. Returns: false when it cannot be sent.
bool PacketRequester::send_again(Qp& qp, Psn psn, PacketBurst& burst) noexcept {
    const auto holds = [&](const SendWqe& wqe) {
        const std::int32_t at = distance(psn, Psn(wqe.msn));
        return at >= 0 && static_cast<std::uint32_t>(at) < wqe.packets;
    };
    SendWqe* const wqe = qp.send_queue().find_under_way(holds);
    PieceList local;
    if (wqe == nullptr ||
        (wqe->has(OpTraits::kPayload) && local_pieces(qp, *wqe, local) != WcStatus::kSuccess)) {
        return false;
    }
    const auto index = static_cast<std::uint32_t>(distance(psn, Psn(wqe->msn)));
    const PieceList payload = local.part(std::uint64_t{index} * mtu_, mtu_);
    if (!burst.has_room_for(payload) || !burst.can_keep(local)) {
        return false;
    }
    PacketHeader header = header_at(qp, *wqe, index, 1);
    header.ack_request = true;
    burst.add(header, payload);
    burst.keep(local);
    return true;
}

/// An answer to the packet just counted: at the end of a burst, where the window ends, and twice in
/// it.
RVT_ALWAYS_INLINE bool PacketRequester::wants_ack(Qp& qp, const SendWqe& wqe, bool ends) noexcept {
    if (wqe.is_answered()) {
        since_ack_request_ = 0;  // answered in any case
        return false;
    }
    const SendWqe* next = ends ? qp.send_queue().next() : nullptr;
    const bool is_last =
        ends && (next == nullptr || !next->has(OpTraits::kPayload)) && !wqe.has(SendFlags::kMore);
    ++since_ack_request_;
    if (!is_last && since_ack_request_ < window_ / 2 && window_has_room(1)) {
        return false;
    }
    since_ack_request_ = 0;
    return true;
}

/// Behind a pause packets leave at once, also where the message before them only lacks its
/// acknowledgement, which comes behind the reply to it; behind others single ones may be held. Of
/// several the kernel makes a message that costs it as much without company. A flow has held its
/// messages itself.
RVT_ALWAYS_INLINE bool PacketRequester::leaves_now(Qp& qp, const SendWqe& wqe,
                                                   bool was_idle) noexcept {
    return was_idle || qp.init().sink != nullptr || qp.send_queue().under_way_count() <= 2 ||
           wqe.packets > 1 || !device_.send_hold().may_hold([this] { return device_.now_us(); });
}

/// Packets have been sent: has the pair look whether their acknowledgement comes.
void PacketRequester::note_time(Qp& qp, bool was_idle) noexcept {
    if (qp.type() == QpType::kUc || in_flight() == 0 || (!was_idle && timed_at_us_ != 0)) {
        return;
    }
    const std::uint64_t now = device_.now_us();
    if (was_idle) {
        deadline_us_ = now + probe_us_;
        if (!is_again_) {
            progress_us_ = retry_since_us_ = now;
        }
        arm_timer(qp);
    }
    timed_at_us_ = now;
    timed_psn_ = sent_psn_ - 1;
}

// ---- time ----

void PacketRequester::arm_timer(Qp& qp) noexcept {
    if (timer_us_ == 0 || timer_us_ > deadline_us_) {
        timer_us_ = deadline_us_;
        device_.wait_until(qp.qpn(), timer_us_, nullptr);
    }
}

void PacketRequester::check_time(Qp& qp) noexcept {
    timer_us_ = 0;  // whoever woke the pair has used the entry up
    if (in_flight() == 0 || qp.type() != QpType::kRc || has_failed_) {
        return;
    }
    const std::uint64_t now = device_.now_us();
    if (now < deadline_us_) {
        arm_timer(qp);
        return;
    }
    // Probes are this side's own and cost no retry; a retry is used up by each whole time-out
    // without an answer (and the request fails after the last).
    if (timeout_us_ != 0 && now - retry_since_us_ >= timeout_us_) {
        if (retries_used_ >= qp.attr().retry_cnt) {
            fail_oldest(qp, WcStatus::kRetryExcErr);
            return;
        }
        ++retries_used_;
        // A pause of this side's own counts once: the peer may have been stopped with it.
        const bool was_away = now - retry_since_us_ >= 2 * timeout_us_;
        retry_since_us_ = was_away ? now : retry_since_us_ + timeout_us_;
    }
    device_.stats().add(Stat::kTimeouts);
    probe_us_ = std::min({2 * probe_us_, std::max(timeout_us_, kMinProbeUs), kMaxProbeUs});
    deadline_us_ = now + probe_us_;
    if (fills_gaps(qp) && now - progress_us_ < kSilenceUs) {
        probe(qp);
        arm_timer(qp);
        return;
    }
    shrink_window();
    go_back(qp);
    is_repairing_ = is_repairing_ && !qp.keeps_early();
}

/// Sends the oldest packet and the newest again: the answer shows what is missing between them.
void PacketRequester::probe(Qp& qp) noexcept {
    PacketBurst burst(device_, dest_);
    timed_at_us_ = 0;  // an answer could be to either sending
    for (const Psn psn : {una_, sent_psn_ - 1}) {
        const bool has_left = send_again(qp, psn, burst);
        if (has_left && has_repair()) {
            repair_->note_repeat(psn, sent_psn_);
        }
        is_repairing_ = is_repairing_ || has_left;
        if (in_flight() == 1) {
            break;
        }
    }
    burst.send();
    device_.flush();
}

/// Returns: whether there is memory for one.
bool PacketRequester::has_repair() noexcept {
    if (repair_ == nullptr) {
        repair_.reset(new (std::nothrow) GapRepair);
    }
    return repair_ != nullptr;
}

void PacketRequester::end_repair() noexcept {
    repair_.reset();
    here_ = 0;
}

/// Everything from una_ on is sent once more.
void PacketRequester::go_back(Qp& qp) noexcept {
    SendWqe* oldest = qp.send_queue().oldest_open();
    sending_ = nullptr;
    is_again_ = true;
    timed_at_us_ = 0;  // an answer could be to either sending
    since_ack_request_ = 0;
    sent_psn_ = una_;
    end_repair();
    fetches_.drop_behind(una_);
    if (oldest == nullptr) {
        return;
    }
    const std::uint64_t moved = oldest->moved;
    qp.send_queue().rewind_to(*oldest);
    oldest->moved = moved;
    oldest->sent = static_cast<std::uint32_t>(distance(una_, Psn(oldest->msn)));
    next_psn_ = Psn(oldest->msn);
    device_.stats().add(Stat::kRetries);
}

/// Precondition: a packet of it has left.
void PacketRequester::fail_oldest(Qp& qp, WcStatus status) noexcept {
    SendWqe* oldest = qp.send_queue().oldest_open();
    if (oldest == nullptr && (oldest = qp.send_queue().next()) != nullptr) {
        begin(qp, *oldest);  // it was about to be sent again
    }
    sending_ = nullptr;
    if (oldest != nullptr) {
        oldest->status = status;
        oldest->done = true;
        has_failed_ = true;
    }
}

}  // namespace rvt::core
