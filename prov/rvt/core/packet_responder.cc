// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Checks in IBTA's order (9.7.4.1): number, place in the message, form; then core/responder.h.
#include "core/packet_responder.h"

#include "core/device.h"
#include "core/packet_burst.h"
#include "core/qp.h"
#include "protocol/atomic_word.h"
#include "protocol/feth.h"

#include <algorithm>
#include <array>

namespace rvt::core {
namespace {

using protocol::DecodedPacket;
using protocol::Ext;
using protocol::Kind;
using protocol::NakCode;
using protocol::Opcode;
using protocol::OpcodeInfo;
using protocol::PacketHeader;
using protocol::Part;
using protocol::Psn;

/// The work request that a packet belongs to, as far as the packet tells.
const WrInfo& request_info(const OpcodeInfo& info, Opcode opcode) noexcept {
    switch (info.kind) {
        case Kind::kSend:
            return *wr_info(info.has(Ext::kImm)    ? WrOpcode::kSendImm
                            : info.has(Ext::kIeth) ? WrOpcode::kSendInv
                                                   : WrOpcode::kSend);
        case Kind::kWrite:
            return *wr_info(info.has(Ext::kImm) ? WrOpcode::kWriteImm : WrOpcode::kWrite);
        case Kind::kAtomic:
            return *wr_info(opcode == Opcode::kRcFetchAdd ? WrOpcode::kFetchAdd : WrOpcode::kCas);
        case Kind::kFlush: return *wr_info(WrOpcode::kFlush);
        case Kind::kAtomicWrite: return *wr_info(WrOpcode::kAtomicWrite);
        case Kind::kExtendedAtomic: return *wr_info(WrOpcode::kExtendedAtomic);
        case Kind::kRead:
        case Kind::kReadResponse:
        case Kind::kAck:
        case Kind::kAtomicAck:
        case Kind::kExtendedResult:
        case Kind::kSack: break;
    }
    return *wr_info(WrOpcode::kRead);
}

/// Whether a request gets an answer of its own, which has to be known when it comes again.
bool is_answered(Kind kind) noexcept {
    return kind == Kind::kRead || kind == Kind::kAtomic || kind == Kind::kFlush ||
           kind == Kind::kAtomicWrite || kind == Kind::kExtendedAtomic;
}

/// The answer to FLUSH and ATOMIC WRITE is that to a READ of no bytes.
Request request_of_answer(const Request& request) noexcept {
    Request answer = request;
    if (!has_any(request.info->traits, OpTraits::kResult)) {
        answer.bytes = 0;
    }
    return answer;
}

/// What the first or only packet of a message says of it. The length of a SEND is not among that.
Request request_of(const Qp& qp, const DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    const OpcodeInfo& info = header.info();
    const bool adds = header.opcode == Opcode::kRcFetchAdd;
    Request request{.info = &request_info(info, header.opcode),
                    .src_qpn = qp.attr().dest_qpn,
                    .imm = header.imm,
                    .rkey = header.rkey,
                    .remote_addr = header.remote_addr,
                    .bytes = packet.payload.size(),
                    .compare_add = adds ? header.swap_add : header.compare,
                    .swap = header.swap_add,
                    .flush_type = protocol::flush_type(header.flush),
                    .flush_level = protocol::flush_level(header.flush),
                    .atomic = protocol::extended_atomic(header.atomic),
                    .solicited = header.solicited};
    if (info.has(Ext::kReth)) {
        request.bytes = header.dma_bytes;
    } else if (info.kind == Kind::kAtomic) {
        request.bytes = sizeof(std::uint64_t);
    }
    return request;
}

/// Which answer a refusal gets; IBTA tables 46 and 47.
protocol::Syndrome syndrome_for(const Qp& qp, Nak nak) noexcept {
    switch (nak) {
        case Nak::kNotReady: return protocol::rnr_nak(qp.attr().min_rnr_timer);
        case Nak::kAccess: return protocol::nak(NakCode::kRemoteAccess);
        case Nak::kLocalFault: return protocol::nak(NakCode::kRemoteOperational);
        case Nak::kInvalid:
        case Nak::kTooLong:
        case Nak::kNone:
        case Nak::kUnreachable: break;
    }
    return protocol::nak(NakCode::kInvalidRequest);
}

}  // namespace

PacketResponder::PacketResponder(Device& device, const Address& dest) noexcept
    : device_(device), dest_{.dest = dest}, early_(device.early_room()) {}

void PacketResponder::start_at(const QpAttr& attr) {
    mtu_ = std::min(attr.path_mtu_bytes, device_.payload_bytes());
    expected_ = Psn(attr.rq_psn);
    early_.clear();
    newest_unkept_.reset();
    note_no_gap();
    result_room_ = attr.extended_atomics ? attr.path_mtu_bytes : 0;
    change_to(attr);
}

/// What is remembered moves along, the oldest first. A ring that is to be smaller stays as it is,
/// and remembers more than it has to.
void PacketResponder::change_to(const QpAttr& attr) {
    dest_ = attr.ah;
    const std::size_t before = executed_.size();
    const std::size_t oldest = next_executed_;
    if (attr.max_dest_rd_atomic <= before) {
        return;
    }
    std::vector<Executed> executed(attr.max_dest_rd_atomic);
    // Not written to: it costs no memory before there are extended atomics.
    std::unique_ptr<std::byte[]> results(new std::byte[executed.size() * result_room_]);
    for (std::size_t i = 0; i < before; ++i) {
        const std::size_t slot = (oldest + i) % before;
        executed[i] = executed_[slot];
        std::copy_n(&results_[slot * result_room_], executed[i].result_bytes,
                    &results[i * result_room_]);
    }
    for (Answer& answer : answers_) {
        answer.slot = before != 0 ? (answer.slot + before - oldest) % before : 0;
    }
    executed_ = std::move(executed);
    results_ = std::move(results);
    next_executed_ = before;
}

// ---- requests ----

Nak PacketResponder::take_request(Qp& qp, const DecodedPacket& packet) noexcept {
    has_part_for_sink_ = false;
    if (!answers_.empty() && answers_.size() >= kMaxAnswers) [[unlikely]] {
        device_.stats().add(Stat::kDrops);  // the peer asks again
        return Nak::kNone;
    }
    if (!is_expected(qp, packet)) {
        return Nak::kNone;
    }
    Nak nak = check_form(packet);
    if (nak == Nak::kNone && packet.header.info().starts()) {
        nak = begin(qp, packet);
    }
    if (nak == Nak::kNone) {
        nak = execute(qp, packet);
    }
    if (nak == Nak::kNone) {
        if (is_gap_due()) {
            report_gap(qp);
        }
        return nak;
    }
    if (nak == Nak::kNotReady) {
        // The last packet of a WRITE with immediate data may be refused so, and come again.
        receiving_ = receiving_ && !packet.header.info().starts();
        has_sent_nak_ = is_refused_ = true;  // what follows comes too early, which the peer knows
    } else if (qp.type() == QpType::kUc && !refusal_of(nak).unreliable_fails) {
        drop_message(qp);
    } else {
        receiving_ = false;
        abandon_request(qp, nak);
    }
    if (nak != Nak::kUnreachable) {
        queue_nak(qp, syndrome_for(qp, nak));
    }
    return nak;
}

bool PacketResponder::take_simple(Qp& qp, const protocol::Bth& header, std::size_t payload_bytes,
                                  bool starts, bool ends) noexcept {
    if (header.psn != expected_ || !answers_.empty() || !early_.is_empty()) {
        return false;
    }
    // As check_form() and begin() would have it.
    const bool in_order = starts ? !receiving_ : receiving_ && message_kind_ == Kind::kSend;
    const bool fits =
        ends ? payload_bytes <= mtu_ && (starts || payload_bytes != 0) : payload_bytes == mtu_;
    if (!in_order || !fits || header.pad != (-payload_bytes & 3) ||
        (starts && !qp.init().sink->has_room())) {
        return false;
    }
    if (starts) {
        message_kind_ = Kind::kSend;
        request_.info = wr_info(WrOpcode::kSend);
    }
    note_no_gap();
    ++expected_;
    ++since_answer_;
    receiving_ = !ends;
    if (ends) {
        msn_ = (msn_ + 1) & Psn::kMask;
    }
    if (header.ack_request) {
        queue_ack(qp, header.psn, !header.solicited);
    }
    return true;
}

/// Whether the packet has the number that comes next, or on UC begins a message.
bool PacketResponder::is_expected(Qp& qp, const DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    const std::int32_t ahead = distance(header.psn, expected_);
    if (ahead == 0) {
        note_no_gap();
        return qp.type() == QpType::kRc || receiving_ || header.info().starts();
    }
    if (qp.type() == QpType::kUc) {
        // Packets are missing. Their message is lost, with what remains of it.
        drop_message(qp);
        expected_ = header.psn;
        device_.stats().add(Stat::kDrops);
        return header.info().starts();
    }
    if (ahead < 0) {
        device_.stats().add(Stat::kDuplicates);
        answer_duplicate(qp, header);
        return false;
    }
    device_.stats().add(Stat::kSequenceErrors);
    // What has an answer of its own comes again: the peer goes back for it.
    if (qp.keeps_early() && !is_answered(header.info().kind) &&
        static_cast<std::uint32_t>(ahead) < EarlyPackets::kMost && packet.payload.size() <= mtu_) {
        keep_early(packet);
        // The peer asks what has come, or repeats something behind what is still missing.
        has_sent_nak_ = has_sent_nak_ && (is_refused_ || keeps_none() || !header.ack_request);
    }
    report_gap(qp);
    return false;
}

/// Who goes back, or has been refused, sends what was not kept again, unasked.
void PacketResponder::keep_early(const DecodedPacket& packet) noexcept {
    const Psn psn = packet.header.psn;
    lacks_room_ = !early_.keep(packet);
    const bool is_known = goes_back_ || is_refused_;
    if (lacks_room_ && !is_known && (!newest_unkept_ || distance(psn, *newest_unkept_) > 0)) {
        newest_unkept_ = psn;
    }
}

/// After a packet was taken in: whether the next one, which is not here, has been sent before. It
/// may be that nothing follows those that were not kept, so that they are told of now.
bool PacketResponder::is_gap_due() noexcept {
    if (!early_.is_empty()) {
        return !has_next();
    }
    if (newest_unkept_ && distance(*newest_unkept_, expected_) < 0) {
        newest_unkept_.reset();
    }
    return newest_unkept_.has_value();
}

/// Once for each gap: the packet that is expected is missing. Where there is no room for those
/// behind it all of them have to come again, as to a pair that never keeps any.
void PacketResponder::report_gap(Qp& qp) noexcept {
    if (!has_sent_nak_) {
        has_sent_nak_ = true;
        goes_back_ = !qp.keeps_early() || keeps_none();
        if (goes_back_) {
            newest_unkept_.reset();
            queue_nak(qp, protocol::nak(NakCode::kPsnSequence));
        } else {
            queue_sack(qp);
        }
    }
}

/// Place in the message, and length (C9-92).
Nak PacketResponder::check_form(const DecodedPacket& packet) const noexcept {
    const OpcodeInfo& info = packet.header.info();
    const bool in_order = info.starts() ? !receiving_ : receiving_ && info.kind == message_kind_;
    const std::size_t bytes = packet.payload.size();
    const bool fits =
        info.ends() ? bytes <= mtu_ && (info.part == Part::kOnly || bytes != 0) : bytes == mtu_;
    const bool padded = packet.header.pad == (-bytes & 3);
    return in_order && fits && padded ? Nak::kNone : Nak::kInvalid;
}

/// UC: what has come of a message is worth nothing; its receive serves the next one.
void PacketResponder::drop_message(Qp& qp) noexcept {
    Inbound& inbound = qp.inbound();
    receiving_ = false;
    inbound.is_kept = inbound.is_kept || inbound.has_receive;
    inbound.has_receive = false;
}

Nak PacketResponder::begin(Qp& qp, const DecodedPacket& packet) noexcept {
    message_kind_ = packet.header.info().kind;
    MessageSink* const sink = qp.init().sink;
    if (sink != nullptr && message_kind_ == Kind::kSend) {
        // It has no receives, and no other request is of concern to it.
        request_.info = wr_info(WrOpcode::kSend);
        return sink->has_room() ? Nak::kNone : Nak::kNotReady;
    }
    request_ = request_of(qp, packet);
    return begin_request(qp, request_, pieces_of(packet.payload));
}

Nak PacketResponder::execute(Qp& qp, const DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    if (has_any(request_.info->traits, OpTraits::kAnswered)) {
        return answer_now(qp, packet);
    }
    if (Nak nak = take_data(qp, packet); nak != Nak::kNone) {
        return nak;
    }
    ++expected_;
    ++since_answer_;
    receiving_ = !header.info().ends();
    if (!receiving_) {
        msn_ = (msn_ + 1) & Psn::kMask;
    }
    if (header.ack_request && qp.type() == QpType::kRc) {
        queue_ack(qp, header.psn, qp.init().sink == nullptr || !header.solicited);
    }
    return Nak::kNone;
}

/// Bytes of a SEND or WRITE.
Nak PacketResponder::take_data(Qp& qp, const DecodedPacket& packet) noexcept {
    const OpcodeInfo& info = packet.header.info();
    if (info.kind == Kind::kSend && qp.init().sink != nullptr) {
        has_part_for_sink_ = !info.has(Ext::kImm) && !info.has(Ext::kIeth);
        return has_part_for_sink_ ? Nak::kNone : Nak::kInvalid;  // bytes are all that it takes
    }
    const std::uint64_t placed = qp.inbound().placed;
    const std::uint64_t bytes = packet.payload.size();
    if (info.kind == Kind::kSend) {
        request_.bytes = placed + bytes;
        if (Nak nak = check_longer(qp, request_); nak != Nak::kNone) {
            return nak;
        }
    } else if (bytes > request_.bytes - placed ||
               (info.ends() && bytes != request_.bytes - placed)) {
        return Nak::kInvalid;  // more or less than the first packet said
    }
    if (info.ends() && !info.starts()) {
        // Only now it shows what the message brings beside its bytes.
        request_.info = &request_info(info, packet.header.opcode);
        request_.imm = packet.header.imm;
        request_.solicited = packet.header.solicited;
        if (Nak nak = take_late_receive(qp, request_); nak != Nak::kNone) {
            return nak;
        }
    }
    if (Nak nak = place_data(qp, request_, placed, pieces_of(packet.payload)); nak != Nak::kNone) {
        return nak;
    }
    return info.ends() ? finish_request(qp, request_) : Nak::kNone;
}

/// What has an answer of its own.
Nak PacketResponder::answer_now(Qp& qp, const DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    Answer answer{.kind = Answer::Kind::kReadData,
                  .syndrome = protocol::to_wire(protocol::ack()),
                  .psn = header.psn,
                  .request = request_of_answer(request_)};
    if (executed_.empty()) {
        return Nak::kInvalid;  // none were asked for when the pair was connected
    }
    if (Nak nak = carry_out(qp, packet, answer); nak != Nak::kNone) {
        return nak;
    }
    expected_ = expected_ + answer.packets;
    msn_ = (msn_ + 1) & Psn::kMask;
    answer.msn = msn_;
    remember({.psn = header.psn,
              .packets = answer.packets,
              .kind = header.info().kind,
              .original = answer.original,
              .result_bytes = answer.result_bytes});
    queue(qp, answer);
    return Nak::kNone;
}

/// Does it, and notes in `answer` what there is to say.
Nak PacketResponder::carry_out(Qp& qp, const DecodedPacket& packet, Answer& answer) noexcept {
    switch (packet.header.info().kind) {
        case Kind::kAtomic:
            answer.kind = Answer::Kind::kAtomicResult;
            return do_atomic(qp, request_, answer.original);
        case Kind::kExtendedAtomic: {
            answer.kind = Answer::Kind::kExtendedResult;
            answer.slot = next_executed_;
            const Nak nak = do_extended_atomic(qp, request_, pieces_of(packet.payload),
                                               result_slot(answer.slot));
            answer.result_bytes = nak == Nak::kNone ? result_bytes(request_) : 0;
            return nak;
        }
        case Kind::kRead: answer.packets = packets_of(request_.bytes); return Nak::kNone;
        default: return do_answered(qp, request_, pieces_of(packet.payload));
    }
}

void PacketResponder::remember(const Executed& executed) noexcept {
    executed_[next_executed_] = executed;
    next_executed_ = (next_executed_ + 1) % executed_.size();
}

/// The newest of that number: one that lies a whole round of numbers back has the same.
const PacketResponder::Executed* PacketResponder::find_executed(Psn psn, Kind kind) const noexcept {
    for (std::size_t back = 1; back <= executed_.size(); ++back) {
        const std::size_t slot = (next_executed_ + executed_.size() - back) % executed_.size();
        const Executed& executed = executed_[slot];
        const std::int32_t at = distance(psn, executed.psn);
        if (at >= 0 && static_cast<std::uint32_t>(at) < executed.packets && executed.kind == kind) {
            return &executed;
        }
    }
    return nullptr;
}

/// Answers once more what has been carried out; whatever the peer asks for behind it will come
/// again too. Who asks for a READ from its middle on has what is before, and until that comes no
/// use for what is behind.
void PacketResponder::answer_duplicate(Qp& qp, const PacketHeader& header) noexcept {
    std::erase_if(answers_, [&](const Answer& answer) {
        return answer.kind != Answer::Kind::kNak && answer.kind != Answer::Kind::kSack &&
               distance(answer.psn + (answer.packets - 1), header.psn) >= 0;
    });
    has_ack_ = has_ack_ && distance(ack_psn_, header.psn) < 0;
    const Kind kind = header.info().kind;
    if (!is_answered(kind)) {
        queue_ack(qp, expected_ - 1, true);
        return;
    }
    const Executed* const found = find_executed(header.psn, kind);
    if (found == nullptr) {
        return;  // older than what is kept
    }
    Answer answer{.kind = kind == Kind::kAtomic           ? Answer::Kind::kAtomicResult
                          : kind == Kind::kExtendedAtomic ? Answer::Kind::kExtendedResult
                                                          : Answer::Kind::kReadData,
                  .syndrome = protocol::to_wire(protocol::ack()),
                  .psn = header.psn,
                  .msn = msn_,
                  .original = found->original,
                  .slot = static_cast<std::size_t>(found - executed_.data()),
                  .result_bytes = found->result_bytes,
                  .request = request_of_answer(request_of(qp, {.header = header, .payload = {}}))};
    answer.packets = kind == Kind::kRead ? packets_of(answer.request.bytes) : 1;
    const auto skipped = static_cast<std::uint32_t>(distance(header.psn, found->psn));
    if (answer.packets <= found->packets - skipped) {
        queue(qp, answer);
    }
}

// ---- answers ----

void PacketResponder::queue(Qp& qp, const Answer& answer) noexcept {
    if (has_ack_) {
        answers_.push_back(ack());
        has_ack_ = false;
    }
    // The report of a gap that has closed would leave with the number behind this answer.
    if (!answers_.empty() && answers_.back().kind == Answer::Kind::kSack &&
        answers_.back().psn != expected_) {
        answers_.pop_back();
    }
    answers_.push_back(answer);
    device_.answer_later(qp.qpn(), AnswerHurry::kNow);
}

/// How long the acknowledgement of what has come may wait.
AnswerHurry PacketResponder::ack_hurry(const Qp& qp, bool is_awaited) noexcept {
    const MessageSink* const sink = qp.init().sink;
    const bool is_told = sink != nullptr && sink->will_tell();
    const bool is_urgent = since_answer_ >= kUrgentPackets && !is_told;
    if (!is_urgent && (!is_awaited || is_told)) {
        return is_awaited ? AnswerHurry::kSoon : AnswerHurry::kNone;
    }
    // Of the end of a SEND the application has something to take.
    if (is_urgent && (receiving_ || message_kind_ != Kind::kSend)) {
        return AnswerHurry::kNow;
    }
    if (!device_.ack_hold().may_hold()) {
        return AnswerHurry::kPoll;
    }
    return is_urgent ? AnswerHurry::kReply : AnswerHurry::kSoon;
}

/// It speaks for an earlier one that has not left.
/// @param is_awaited  Whether somebody at the peer's waits for it.
void PacketResponder::queue_ack(Qp& qp, Psn psn, bool is_awaited) noexcept {
    const bool is_first = !has_ack_;
    has_ack_ = true;
    ack_psn_ = psn;
    ack_msn_ = msn_;
    const AnswerHurry hurry = ack_hurry(qp, is_awaited);
    if (is_first || hurry > ack_hurry_) {
        ack_hurry_ = hurry;
        device_.answer_later(qp.qpn(), hurry);
    }
}

PacketResponder::Answer PacketResponder::ack() const noexcept {
    return {.syndrome = protocol::to_wire(protocol::ack()), .psn = ack_psn_, .msn = ack_msn_};
}

/// Refuses the packet that is expected.
void PacketResponder::queue_nak(Qp& qp, protocol::Syndrome syndrome) noexcept {
    if (qp.type() == QpType::kRc) {
        queue(qp, {.kind = Answer::Kind::kNak,
                   .syndrome = protocol::to_wire(syndrome),
                   .psn = expected_,
                   .msn = msn_});
    }
}

/// What it says is found when it leaves; it speaks for an acknowledgement before it too.
void PacketResponder::queue_sack(Qp& qp) noexcept {
    const Answer answer{.kind = Answer::Kind::kSack,
                        .syndrome = protocol::to_wire(protocol::nak(NakCode::kPsnSequence)),
                        .psn = expected_};
    if (!answers_.empty() && answers_.back().kind == Answer::Kind::kSack) {
        answers_.back().psn = expected_;
        return;
    }
    has_ack_ = false;
    queue(qp, answer);
}

PacketHeader PacketResponder::answer_header(const Qp& qp, const Answer& answer,
                                            Opcode opcode) const noexcept {
    return {.opcode = opcode,
            .dest_qpn = qp.attr().dest_qpn,
            .psn = answer.psn + answer.sent,
            .syndrome = answer.syndrome,
            .msn = answer.msn,
            .original = answer.original};
}

std::optional<Psn> PacketResponder::take_over_ack() noexcept {
    if (!has_ack_ || !answers_.empty()) {
        return std::nullopt;
    }
    has_ack_ = false;
    since_answer_ = 0;
    return ack_psn_;
}

void PacketResponder::send_answers(Qp& qp) noexcept {
    since_answer_ = 0;
    bool has_left = true;
    while (has_left && !answers_.empty()) {
        has_left = send(qp, answers_.front());
        if (has_left) {
            answers_.pop_front();
        }
    }
    if (has_left && has_ack_) {
        Answer answer = ack();
        has_left = send(qp, answer);
        has_ack_ = !has_left;
    }
    if (!has_left) {
        device_.wait_until(qp.qpn(), device_.now_us(), nullptr);  // poll() makes room
    }
}

/// Returns: whether all of it has left.
bool PacketResponder::send(Qp& qp, Answer& answer) noexcept {
    if (answer.kind == Answer::Kind::kReadData) {
        return send_read_data(qp, answer);
    }
    if (answer.kind == Answer::Kind::kSack) {
        return send_sack(qp, answer);
    }
    const Opcode opcode = answer.kind == Answer::Kind::kAtomicResult     ? Opcode::kRcAtomicAck
                          : answer.kind == Answer::Kind::kExtendedResult ? Opcode::kRvtAtomicResult
                                                                         : Opcode::kRcAck;
    PacketHeader header = answer_header(qp, answer, opcode);
    PieceList results;
    if (answer.result_bytes != 0) {
        results.add(result_slot(answer.slot), answer.result_bytes);
    }
    PacketBurst burst(device_, dest_);
    burst.add(header, results);
    return burst.send() == 1;
}

bool PacketResponder::send_sack(const Qp& qp, Answer& answer) noexcept {
    answer.psn = expected_;
    answer.msn = msn_;
    PacketHeader header = answer_header(qp, answer, Opcode::kRvtSack);
    std::array<std::byte, EarlyPackets::kMapBytes> map;  // only what is written is read
    PieceList payload;
    payload.add(map.data(), early_.write_map(expected_, map));
    PacketBurst burst(device_, dest_);
    burst.add(header, payload);
    return burst.send() == 1;
}

/// Adds packets of a READ's answer while there is room. Where the memory is gone the answer becomes
/// a refusal.
void PacketResponder::add_read_data(Qp& qp, Answer& answer, PacketBurst& burst) noexcept {
    for (; answer.sent < answer.packets; ++answer.sent) {
        const std::uint64_t offset = std::uint64_t{answer.sent} * mtu_;
        const std::uint64_t bytes = std::min<std::uint64_t>(answer.request.bytes - offset, mtu_);
        PieceList source;
        // Each time again: between two packets the region may have been deregistered.
        if (find_source(qp, answer.request, offset, bytes, source) != Nak::kNone) {
            answer.kind = Answer::Kind::kNak;
            answer.syndrome = protocol::to_wire(protocol::nak(NakCode::kRemoteAccess));
            return;
        }
        if (!burst.has_room_for(source) || !burst.can_keep(source)) {
            return;
        }
        const Part part = protocol::part_of(answer.sent == 0, answer.sent + 1 == answer.packets);
        PacketHeader header =
            answer_header(qp, answer, protocol::opcode_of(QpType::kRc, Kind::kReadResponse, part));
        burst.add(header, source);
        burst.keep(source);
    }
}

bool PacketResponder::send_read_data(Qp& qp, Answer& answer) noexcept {
    PacketBurst burst(device_, dest_);
    while (answer.sent < answer.packets) {
        const std::uint32_t before = answer.sent;
        add_read_data(qp, answer, burst);
        const auto count = static_cast<std::uint32_t>(burst.count());
        const auto taken = static_cast<std::uint32_t>(burst.send());
        if (taken < count) {
            answer.sent = before + taken;
            return false;
        }
        if (answer.kind == Answer::Kind::kNak) {
            return send(qp, answer);
        }
    }
    return true;
}

}  // namespace rvt::core
