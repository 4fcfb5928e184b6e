// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The two directions of a pair over a segment channel, and the way in from the backend.
#include "core/segment_transport.h"

#include "core/ah.h"
#include "core/device.h"
#include "core/qp.h"
#include "core/qp_states.h"
#include "core/reader_pins.h"
#include "core/requester.h"
#include "core/stages.h"
#include "protocol/feth.h"

#include <algorithm>
#include <cstring>

namespace rvt::core {
namespace {

std::span<const std::byte> bytes_of(const SegmentHeader& header) noexcept {
    return std::as_bytes(std::span(&header, 1));
}

SegmentHeader request_header(const Qp& qp, const SendWqe& wqe, std::uint32_t dest_qpn) noexcept {
    const Request request = to_request(qp, wqe);
    SegmentHeader header{};
    header.version = SegmentHeader::kVersion;
    header.kind = SegmentKind::kRequest;
    header.qp_type = static_cast<std::uint8_t>(qp.type());
    header.src_qpn = qp.qpn();
    header.dest_qpn = dest_qpn;
    header.msn = wqe.msn;
    header.imm = request.imm;
    header.rkey = request.rkey;
    header.qkey = request.qkey;
    header.remote_addr = request.remote_addr;
    header.message_bytes = request.bytes;
    header.compare_add = request.compare_add;
    header.swap = request.swap;
    std::copy(request.source.gid.begin(), request.source.gid.end(), header.source_gid);
    header.source_port = request.source.port;
    header.opcode = static_cast<std::uint8_t>(wqe.wr.opcode);
    header.is_solicited = request.solicited ? 1 : 0;
    header.flush =
        static_cast<std::uint8_t>(protocol::feth_of(request.flush_type, request.flush_level));
    header.atomic_form = static_cast<std::uint8_t>(request.atomic.form);
    header.atomic_datatype = request.atomic.datatype;
    header.atomic_op = request.atomic.op;
    return header;
}

/// The request that a header describes; its opcode has been checked.
Request request_of(const Qp& qp, const SegmentHeader& header) noexcept {
    Request request{.info = wr_info(static_cast<WrOpcode>(header.opcode)),
                    .src_qpn = header.src_qpn,
                    .imm = header.imm,
                    .rkey = header.rkey,
                    .qkey = header.qkey,
                    .remote_addr = header.remote_addr,
                    .bytes = header.message_bytes,
                    .compare_add = header.compare_add,
                    .swap = header.swap,
                    .flush_type = protocol::flush_type(header.flush),
                    .flush_level = protocol::flush_level(header.flush),
                    .atomic = {.form = static_cast<AtomicForm>(header.atomic_form),
                               .datatype = header.atomic_datatype,
                               .op = header.atomic_op},
                    .solicited = header.is_solicited != 0};
    std::copy_n(header.source_gid, sizeof header.source_gid, request.source.gid.begin());
    request.source.port = header.source_port;
    request.dest = qp.device().address();
    return request;
}

SegmentHeader answer_header(const SegmentHeader& request, SegmentKind kind, Nak nak) noexcept {
    SegmentHeader header{};
    header.version = SegmentHeader::kVersion;
    header.kind = kind;
    header.qp_type = request.qp_type;
    header.nak = static_cast<std::uint8_t>(nak);
    header.src_qpn = request.dest_qpn;
    header.dest_qpn = request.src_qpn;
    header.msn = request.msn;
    header.opcode = request.opcode;
    return header;
}

bool is_answered(const Request& request) noexcept {
    return has_any(request.info->traits, OpTraits::kAnswered);
}

}  // namespace

// ---- sending ----

SegmentFlow::~SegmentFlow() {
    device_.ops().close_channel(device_, channel_);
}

void SegmentFlow::start_receiving_at(const QpAttr& attr) noexcept {
    expected_msn_ = attr.rq_psn;
    result_room_ = attr.extended_atomics ? attr.path_mtu_bytes : 0;
    change_to(attr);
}

/// Results that wait for the channel move with it.
void SegmentFlow::change_to(const QpAttr& attr) noexcept {
    if (result_room_ == 0 || attr.max_dest_rd_atomic <= result_slots_) {
        return;
    }
    result_slots_ = attr.max_dest_rd_atomic;
    next_result_ = 0;
    // Not written to: it costs no memory before there are such atomics.
    std::unique_ptr<std::byte[]> results(new std::byte[result_slots_ * result_room_]);
    for (Answer& answer : answers_) {
        if (!answer.results.empty()) {
            std::byte* const to = &results[next_result_ * result_room_];
            std::copy(answer.results.begin(), answer.results.end(), to);
            answer.results = {to, answer.results.size()};
            next_result_ = (next_result_ + 1) % result_slots_;
        }
    }
    results_ = std::move(results);
}

/// Has the pair looked at again as soon as the device is moved.
void SegmentFlow::wait_for_room(const Qp& qp) noexcept {
    device_.wait_until(qp.qpn(), device_.now_us(), nullptr);
}

bool SegmentFlow::may_start(Qp& qp, const SendWqe& wqe) noexcept {
    const bool fence_holds = wqe.has(SendFlags::kFence) && fetches_ != 0;
    const bool fetch_holds = wqe.is_answered() && fetches_ >= qp.attr().max_rd_atomic;
    return !fence_holds && !fetch_holds && qp.send_queue().under_way_count() < kWindow;
}

bool SegmentFlow::start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    if (!may_start(qp, wqe)) {
        return false;
    }
    if (start_one_sided(qp, wqe, local)) {
        return true;
    }
    qp.send_queue().start_next();
    wqe.msn = next_msn_++;
    wqe.moved = 0;
    fetches_ += wqe.is_answered() ? 1 : 0;
    sending_ = &wqe;
    return go_on(qp);
}

/// READ and WRITE without the peer, where the backend can. Nothing may be under way: what was
/// posted earlier has to take effect earlier. Returns: false when the peer has to be asked.
bool SegmentFlow::start_one_sided(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    const bool is_read = wqe.wr.opcode == WrOpcode::kRead;
    const bool fits = (is_read || wqe.wr.opcode == WrOpcode::kWrite) && knows_peer_ &&
                      peer_pd_ != Pd::kOwnKeys && has_all(peer_access_, wqe.info->remote_access) &&
                      qp.type() == QpType::kRc && qp.send_queue().oldest() == nullptr &&
                      wqe.bytes != 0;
    if (!fits) {
        return false;
    }
    const auto access = [&](const PieceList& part, std::uint64_t at) noexcept {
        const PeerMemory peer{wqe.wr.remote_addr + at, wqe.wr.rkey, peer_pd_, wqe.bytes - at};
        const auto move = is_read ? device_.ops().read_peer : device_.ops().write_peer;
        return move(device_, channel_, peer, part.all()).is_ok();
    };
    if (!move_list(wqe.wr.use, local, access)) {
        return false;  // also when the key does not allow it: the refusal is the peer's to give
    }
    qp.send_queue().start_next();
    complete(wqe, WcStatus::kSuccess);
    device_.stats().add_sent(wqe.bytes);
    return true;
}

bool SegmentFlow::go_on(Qp& qp) noexcept {
    SendWqe& wqe = *sending_;
    PieceList local;
    if (wqe.has(OpTraits::kPayload)) {
        // Each time again: between two parts the memory may have been deregistered.
        if (WcStatus status = local_pieces(qp, wqe, local); status != WcStatus::kSuccess) {
            finish_sending(qp, status);
            return true;
        }
    }
    const std::uint64_t total = wqe.payload_bytes;
    SegmentHeader header = request_header(qp, wqe, qp.attr().dest_qpn);
    do {
        const PieceList part = local.part(
            wqe.moved,
            std::min<std::uint64_t>(device_.limits().max_segment_bytes, total - wqe.moved));
        header.offset = wqe.moved;
        if (!stage(wqe.wr.use, wqe.moved, wqe.moved + part.bytes()).is_ok()) [[unlikely]] {
            finish_sending(qp, WcStatus::kGeneralErr);
            return true;
        }
        const Status status =
            device_.ops().send_segment(device_, channel_, bytes_of(header), part.all());
        if (status.error() == EAGAIN) {
            wait_for_room(qp);
            return false;
        }
        if (!status.is_ok()) {
            finish_sending(qp, WcStatus::kRetryExcErr);
            return true;
        }
        wqe.moved += part.bytes();
    } while (wqe.moved < total);
    device_.stats().add_sent(wqe.bytes);
    sending_ = nullptr;
    wqe.moved = 0;  // from now on: bytes that a READ has brought
    if (qp.type() == QpType::kUc) {
        complete(wqe, WcStatus::kSuccess);
    }
    return true;
}

void SegmentFlow::complete(SendWqe& wqe, WcStatus status) noexcept {
    wqe.status = status;
    wqe.done = true;
}

void SegmentFlow::finish_sending(Qp& qp, WcStatus status) noexcept {
    // UC does not learn what becomes of a message that left the queue.
    const bool lost = qp.type() == QpType::kUc && status == WcStatus::kRetryExcErr;
    complete(*sending_, lost ? WcStatus::kSuccess : status);
    fetches_ -= sending_->is_answered() ? 1 : 0;
    sending_ = nullptr;
}

// ---- answers come in ----

SendWqe* SegmentFlow::find(Qp& qp, std::uint32_t msn) noexcept {
    return qp.send_queue().find_under_way(
        [&](const SendWqe& wqe) { return !wqe.done && wqe.msn == msn; });
}

void SegmentFlow::take_answer(Qp& qp, const SegmentHeader& header,
                              const PieceList& payload) noexcept {
    SendWqe* wqe = find(qp, header.msn);
    const bool whole = wqe != sending_ || header.kind == SegmentKind::kNak;
    if (wqe == nullptr || !whole) {
        device_.stats().add(Stat::kBadSegments);
        return;
    }
    switch (header.kind) {
        case SegmentKind::kReadData: take_read_data(qp, *wqe, header, payload); break;
        case SegmentKind::kAck: take_ack(qp, *wqe, header, payload); break;
        case SegmentKind::kNak: take_nak(qp, *wqe, header); break;
        case SegmentKind::kRequest:
        case SegmentKind::kMad: break;
    }
}

void SegmentFlow::take_read_data(Qp& qp, SendWqe& wqe, const SegmentHeader& header,
                                 const PieceList& payload) noexcept {
    if (wqe.wr.opcode != WrOpcode::kRead || header.offset != wqe.moved ||
        payload.bytes() > wqe.bytes - wqe.moved) {
        device_.stats().add(Stat::kBadSegments);
        return;
    }
    PieceList local;
    WcStatus status = local_pieces(qp, wqe, local);
    if (status == WcStatus::kSuccess) {
        const PieceList room = local.part(wqe.moved, payload.bytes());
        static_cast<void>(stage(wqe.wr.use, wqe.moved, wqe.moved + payload.bytes()));
        status = copy(room, payload) == room.bytes() ? status : WcStatus::kLocProtErr;
        wqe.moved += payload.bytes();
        local.clear();  // an access is over before its operation is reported
    }
    if (status != WcStatus::kSuccess || wqe.moved == wqe.bytes) {
        --fetches_;
        complete(wqe, status);
    }
}

void SegmentFlow::take_ack(Qp& qp, SendWqe& wqe, const SegmentHeader& header,
                           const PieceList& payload) noexcept {
    knows_peer_ = true;
    peer_pd_ = header.rkey;
    peer_access_ = static_cast<Access>(header.imm);
    qp.sending().rnr_retries_left = qp.attr().rnr_retry;
    WcStatus status = WcStatus::kSuccess;
    if (wqe.is_extended_atomic()) {
        status = take_results(qp, wqe, payload);
    } else if (wqe.is_fetch()) {
        if (!wqe.has(OpTraits::kAtomic)) {
            device_.stats().add(Stat::kBadSegments);  // a READ is answered by data
            return;
        }
        std::uint64_t original = header.compare_add;
        PieceList local;
        PieceList result;
        result.add(&original, sizeof original);
        status = local_pieces(qp, wqe, local);
        if (status == WcStatus::kSuccess && copy(local, result) != result.bytes()) {
            status = WcStatus::kLocProtErr;
        }
        local.clear();
    }
    fetches_ -= wqe.is_answered() ? 1 : 0;
    complete(wqe, status);
}

void SegmentFlow::take_nak(Qp& qp, SendWqe& wqe, const SegmentHeader& header) noexcept {
    const bool known = header.nak > 0 && header.nak <= static_cast<std::uint8_t>(kLastNak);
    const Nak nak = known ? static_cast<Nak>(header.nak) : Nak::kInvalid;
    Qp::Sending& sending = qp.sending();
    if (nak != Nak::kNotReady || sending.rnr_retries_left == 0) {
        sending_ = sending_ == &wqe ? nullptr : sending_;
        fetches_ -= wqe.is_answered() ? 1 : 0;
        complete(wqe, refusal_of(nak).requester);
        return;
    }
    if (qp.attr().rnr_retry != kRnrRetryForEver) {
        --sending.rnr_retries_left;
    }
    device_.stats().add(Stat::kRetries);
    go_back(qp, wqe);
    // A peer's number: bounded by the largest that a timer code means.
    const std::uint64_t delay = std::min(header.retry_after_us, rnr_timer_us(0));
    sending.blocked_until_us = device_.now_us() + delay;
    device_.wait_until(qp.qpn(), sending.blocked_until_us, nullptr);
}

/// The peer has dropped `wqe` and all behind it: they wait once more.
void SegmentFlow::go_back(Qp& qp, SendWqe& wqe) noexcept {
    sending_ = nullptr;
    next_msn_ = wqe.msn;
    qp.send_queue().rewind_to(wqe);
    fetches_ = 0;
    qp.send_queue().find_under_way([&](const SendWqe& earlier) {
        fetches_ += !earlier.done && earlier.is_answered() ? 1 : 0;
        return false;
    });
}

void SegmentFlow::fail_sending(Qp& qp) noexcept {
    sending_ = nullptr;
    SendWqe* first = qp.send_queue().oldest_open();
    if (first != nullptr) {
        complete(*first, WcStatus::kRetryExcErr);
    }
}

// ---- requests come in ----

void SegmentFlow::queue_answer(const Qp& qp, const SegmentHeader& request, SegmentKind kind,
                               Nak nak, std::uint64_t original) noexcept {
    if (qp.type() != QpType::kRc) {
        return;
    }
    Answer answer{.header = answer_header(request, kind, nak), .request = {}};
    answer.header.retry_after_us = rnr_timer_us(qp.attr().min_rnr_timer);
    answer.header.compare_add = original;
    answer.header.rkey = qp.pd().id();
    answer.header.imm = bits(qp.attr().access);
    answers_.push_back(answer);
}

Nak SegmentFlow::take_request(Qp& qp, const SegmentHeader& header,
                              const PieceList& payload) noexcept {
    const bool reliable = qp.type() == QpType::kRc;
    if ((reliable && header.msn != expected_msn_) || answers_.size() >= 2 * kWindow) {
        device_.stats().add(Stat::kDrops);  // behind one that is being sent again
        return Nak::kNone;
    }
    if (receiving_ && header.offset == 0) {
        receiving_ = false;
        abandon_request(qp, Nak::kInvalid);  // the sender gave up in the middle of a message
    }
    Nak nak = header.offset == 0 ? begin_message(qp, header, payload) : Nak::kNone;
    if (nak == Nak::kNone) {
        nak = take_part(qp, header, payload);
    }
    if (nak != Nak::kNone) {
        receiving_ = false;
        abandon_request(qp, nak);
        queue_answer(qp, header, SegmentKind::kNak, nak);
    }
    send_answers(qp);
    return nak;
}

/// The first or only part of a SEND or WRITE, or the whole of what has an answer of its own.
Nak SegmentFlow::begin_message(Qp& qp, const SegmentHeader& header,
                               const PieceList& payload) noexcept {
    receiving_request_ = request_of(qp, header);
    if (Nak nak = begin_request(qp, receiving_request_, payload); nak != Nak::kNone) {
        return nak;
    }
    if (is_answered(receiving_request_)) {
        return answer_now(qp, receiving_request_, header, payload);
    }
    receiving_ = true;
    return Nak::kNone;
}

/// Bytes of a SEND or WRITE.
Nak SegmentFlow::take_part(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept {
    if (!receiving_) {
        // The rest of a message that was refused; what has an answer of its own has no rest.
        device_.stats().add(Stat::kDrops, header.offset != 0 ? 1 : 0);
        return Nak::kNone;
    }
    const Request& request = receiving_request_;
    const std::uint64_t placed = qp.inbound().placed;
    if (header.offset != placed || payload.bytes() > request.bytes - placed) {
        return Nak::kInvalid;
    }
    if (Nak nak = place_data(qp, request, placed, payload); nak != Nak::kNone) {
        return nak;
    }
    if (qp.inbound().placed < request.bytes) {
        return Nak::kNone;
    }
    receiving_ = false;
    if (Nak nak = finish_request(qp, request); nak != Nak::kNone) {
        return nak;
    }
    ++expected_msn_;
    queue_answer(qp, header, SegmentKind::kAck, Nak::kNone);
    return Nak::kNone;
}

/// What has an answer of its own.
Nak SegmentFlow::answer_now(Qp& qp, const Request& request, const SegmentHeader& header,
                            const PieceList& payload) noexcept {
    if (request.info->opcode == WrOpcode::kExtendedAtomic) {
        if (Nak nak = answer_extended(qp, request, header, payload); nak != Nak::kNone) {
            return nak;
        }
    } else if (!has_any(request.info->traits, OpTraits::kResult)) {
        if (Nak nak = do_answered(qp, request, payload); nak != Nak::kNone) {
            return nak;
        }
        queue_answer(qp, header, SegmentKind::kAck, Nak::kNone);
    } else if (has_any(request.info->traits, OpTraits::kAtomic)) {
        std::uint64_t original = 0;
        if (Nak nak = do_atomic(qp, request, original); nak != Nak::kNone) {
            return nak;
        }
        queue_answer(qp, header, SegmentKind::kAck, Nak::kNone, original);
    } else {
        queue_answer(qp, header, SegmentKind::kReadData, Nak::kNone);
        answers_.back().request = request;
    }
    ++expected_msn_;
    return Nak::kNone;
}

Nak SegmentFlow::answer_extended(Qp& qp, const Request& request, const SegmentHeader& header,
                                 const PieceList& operands) noexcept {
    if (result_slots_ == 0) {
        return Nak::kInvalid;  // none were asked for when the pair was connected
    }
    std::byte* const results = &results_[next_result_ * result_room_];
    if (Nak nak = do_extended_atomic(qp, request, operands, results); nak != Nak::kNone) {
        return nak;
    }
    next_result_ = (next_result_ + 1) % result_slots_;
    queue_answer(qp, header, SegmentKind::kAck, Nak::kNone);
    answers_.back().results = {results, result_bytes(request)};
    return Nak::kNone;
}

void SegmentFlow::send_answers(Qp& qp) noexcept {
    while (!answers_.empty()) {
        Answer& answer = answers_.front();
        if (answer.header.kind == SegmentKind::kReadData) {
            if (!send_read_data(qp, answer)) {
                wait_for_room(qp);
                return;
            }
        } else {
            const PieceList results = pieces_of(answer.results);
            const Status status = device_.ops().send_segment(
                device_, channel_, bytes_of(answer.header), results.all());
            if (status.error() == EAGAIN) {
                wait_for_room(qp);
                return;
            }
        }
        answers_.pop_front();
    }
}

/// Sends what a READ asks for. Returns: false when the channel has no room for the rest.
bool SegmentFlow::send_read_data(Qp& qp, Answer& answer) noexcept {
    SegmentHeader& header = answer.header;
    const std::uint64_t total = answer.request.bytes;
    header.message_bytes = total;
    do {
        const std::uint64_t part =
            std::min<std::uint64_t>(total - answer.offset, device_.limits().max_segment_bytes);
        PieceList source;
        // Each time again: between two parts the region may have been deregistered.
        if (find_source(qp, answer.request, answer.offset, part, source) != Nak::kNone) {
            header.kind = SegmentKind::kNak;
            header.nak = static_cast<std::uint8_t>(Nak::kAccess);
            source.clear();
        }
        header.offset = answer.offset;
        const Status status =
            device_.ops().send_segment(device_, channel_, bytes_of(header), source.all());
        if (status.error() == EAGAIN) {
            return false;
        }
        if (!status.is_ok() || header.kind == SegmentKind::kNak) {
            return true;
        }
        answer.offset += part;
    } while (answer.offset < total);
    return true;
}

// ---- datagrams ----

bool send_segment_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    Device& device = qp.device();
    const SegmentHeader header = request_header(qp, wqe, wqe.wr.remote_qpn);
    const Status status =
        device.ops().send_datagram(device, *wqe.wr.ah->channel(), bytes_of(header), local.all());
    if (status.error() == EAGAIN) {
        device.wait_until(qp.qpn(), device.now_us(), nullptr);
        return false;
    }
    // Any other error loses the datagram, which its sender does not learn.
    device.stats().add(status.is_ok() ? Stat::kMessagesSent : Stat::kDrops);
    device.stats().add(Stat::kBytesSent, status.is_ok() ? wqe.bytes : 0);
    qp.send_queue().start_next();
    wqe.status = WcStatus::kSuccess;
    wqe.done = true;
    return true;
}

// ---- the way in ----

namespace {

/// The flow of a pair on a segment-grade device. The caller holds one of the pair's locks.
SegmentFlow* segment_flow(const Qp& qp) noexcept {
    return static_cast<SegmentFlow*>(qp.flow());  // what open_flow() makes for that grade
}

bool is_sane(const SegmentHeader& header) noexcept {
    return header.version == SegmentHeader::kVersion && header.kind >= SegmentKind::kRequest &&
           header.kind <= SegmentKind::kMad && header.qp_type < kQpTypes &&
           wr_info(static_cast<WrOpcode>(header.opcode)) != nullptr;
}

/// Where it says that it came from is where the answer goes, whoever that is.
void deliver_mad(Device& device, const SegmentHeader& header, const PieceList& payload) noexcept {
    MadSink* const sink = device.mad_sink();
    if (sink == nullptr || payload.bytes() != protocol::kMadBytes) {
        device.stats().add(Stat::kDrops);
        return;
    }
    std::array<std::byte, protocol::kMadBytes> mad{};
    copy(pieces_of(mad), payload);
    Address source{.port = header.source_port};
    std::copy_n(header.source_gid, source.gid.size(), source.gid.begin());
    sink->take_mad(source, mad);
}

/// Tells the sender of a reliable request that nobody answers it.
void refuse_unreachable(Device& device, Channel& channel, const SegmentHeader& request) noexcept {
    device.stats().add(Stat::kDrops);
    if (request.kind == SegmentKind::kRequest &&
        request.qp_type == static_cast<std::uint8_t>(QpType::kRc)) {
        device.refuse(channel, answer_header(request, SegmentKind::kNak, Nak::kUnreachable));
    }
}

void deliver_datagram(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept {
    const Request request = request_of(qp, header);
    if (request.bytes == payload.bytes()) {
        take_datagram(qp, request, payload);
    } else {
        after_refusal(qp, Nak::kInvalid);
    }
}

/// Returns: false when the pair is not connected through this channel.
bool deliver_request(Qp& qp, Channel& channel, const SegmentHeader& header,
                     const PieceList& payload) noexcept {
    Nak nak = Nak::kNone;
    {
        const util::Guard guard(qp.rx_lock());
        SegmentFlow* flow = segment_flow(qp);
        if (flow == nullptr || &flow->channel() != &channel || !rights_of(qp.state()).receive) {
            return false;
        }
        nak = flow->take_request(qp, header, payload);
    }
    if (nak != Nak::kNone) {
        after_refusal(qp, nak);
    }
    return true;
}

void deliver_answer(Qp& qp, Channel& channel, const SegmentHeader& header,
                    const PieceList& payload) noexcept {
    {
        const util::Guard guard(qp.tx_lock());
        SegmentFlow* flow = segment_flow(qp);
        if (flow != nullptr && &flow->channel() == &channel && qp.type() == QpType::kRc) {
            flow->take_answer(qp, header, payload);
        } else {
            qp.device().stats().add(Stat::kBadSegments);
        }
    }
    run_send_queue(qp);
}

void deliver_to(Qp& qp, Channel& channel, const SegmentHeader& header,
                const PieceList& payload) noexcept {
    if (header.kind != SegmentKind::kRequest) {
        deliver_answer(qp, channel, header, payload);
    } else if (qp.type() == QpType::kUd) {
        deliver_datagram(qp, header, payload);
    } else if (!deliver_request(qp, channel, header, payload)) {
        refuse_unreachable(qp.device(), channel, header);
    }
    if (qp.take_overrun()) {
        qp.raise(EventType::kQpFatal);
        qp.enter_error();
    }
}

}  // namespace

}  // namespace rvt::core

namespace rvt {

void deliver_segment(core::Device& device, Channel& channel, std::span<const std::byte> header,
                     std::span<const iovec> payload) noexcept {
    core::SegmentHeader h{};
    core::PieceList pieces;
    bool sane = header.size() == sizeof h;
    if (sane) {
        std::memcpy(&h, header.data(), sizeof h);  // once: the bytes may change under us
        sane = core::is_sane(h);
    }
    for (const iovec& piece : payload) {
        sane = sane && pieces.add(piece.iov_base, piece.iov_len);
    }
    if (!sane) {
        device.stats().add(core::Stat::kBadSegments);
        return;
    }
    if (h.kind == core::SegmentKind::kMad) {
        core::deliver_mad(device, h, pieces);
        return;
    }
    const core::ReadPin pin;
    core::Qp* qp = device.qps().find(h.dest_qpn);
    if (qp == nullptr || static_cast<std::uint8_t>(qp->type()) != h.qp_type) {
        core::refuse_unreachable(device, channel, h);
        return;
    }
    core::deliver_to(*qp, channel, h, pieces);
}

void channel_failed(core::Device& device, Channel& channel) noexcept {
    device.forget_refusals(channel);
    const core::ReadPin pin;
    device.qps().for_each([&](core::Qp& qp) {
        bool is_its = false;
        {
            const util::Guard guard(qp.tx_lock());
            core::SegmentFlow* flow = core::segment_flow(qp);
            is_its = flow != nullptr && &flow->channel() == &channel;
            if (is_its) {
                flow->fail_sending(qp);
            }
        }
        // What fails first tells why, the rest is flushed. Of another channel's, who has posted
        // meanwhile has left the run to us.
        if (is_its || core::wants_run(qp)) {
            core::run_send_queue(qp);
        }
        if (is_its) {
            qp.raise(EventType::kQpFatal);
            qp.enter_error();
        }
    });
    if (core::MadSink* const sink = device.mad_sink()) {
        sink->channel_failed(channel);
    }
}

}  // namespace rvt
