// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Checks in the order of IBTA's responder: state, operation, resources, length, key; then the work.
#include "core/responder.h"

#include "core/atomic_ops.h"
#include "core/device.h"
#include "core/extended_atomic.h"
#include "core/qp.h"
#include "core/qp_states.h"
#include "core/rd_region.h"
#include "core/stages.h"
#include "util/fault_guard.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include <endian.h>

namespace rvt::core {
namespace {

using enum WcStatus;

constexpr std::size_t kWord = sizeof(std::uint64_t);

// clang-format off
// The responder's status is that of the receive it had taken; UC and UD drop what only the peer did wrong.
constexpr Refusal kRefusals[] = {
    //                    requester        responder      fails  raises event                        unreliable_fails
    /* kNone        */ {kSuccess,        kSuccess,      false, false, EventType::kQpFatal,           false},
    /* kNotReady    */ {kRnrRetryExcErr, kSuccess,      false, false, EventType::kQpFatal,           false},
    /* kInvalid     */ {kRemInvReqErr,   kSuccess,      true,  true,  EventType::kQpReqErr,          false},
    /* kTooLong     */ {kRemInvReqErr,   kLocLenErr,    true,  false, EventType::kQpReqErr,          false},
    /* kAccess      */ {kRemAccessErr,   kWrFlushErr,   true,  true,  EventType::kQpAccessErr,       false},
    /* kLocalFault  */ {kRemOpErr,       kLocProtErr,   true,  false, EventType::kQpFatal,           true},
    /* kUnreachable */ {kRetryExcErr,    kSuccess,      false, false, EventType::kQpFatal,           false},
};
// clang-format on

bool is_reliable(const Qp& qp) noexcept {
    return qp.type() == QpType::kRc;
}

Nak check_state(Qp& qp) noexcept {
    if (!rights_of(qp.state()).receive) {
        return Nak::kUnreachable;
    }
    if (qp.state() == QpState::kRtr && !qp.has_established()) {
        qp.set_established();
        qp.raise(EventType::kCommEst);
    }
    return Nak::kNone;
}

/// The peer must be the one that this pair is connected with, and the Q_Key the one of this pair.
Nak check_sender(const Qp& qp, const Request& request) noexcept {
    const bool ours = qp.type() == QpType::kUd ? request.qkey == qp.attr().qkey
                                               : request.src_qpn == qp.attr().dest_qpn;
    return ours ? Nak::kNone : Nak::kUnreachable;
}

/// Whether it leaves its target as it is.
bool is_read(const ExtendedAtomic& atomic) noexcept {
    return atomic.form == AtomicForm::kFetch && atomic.op == kAtomicOpRead;
}

/// As between RDM endpoints, who brings back what was there needs the right to read it, and who
/// only reads no other. The masked ones are like IBTA's two.
Access access_for_extended(const Request& request) noexcept {
    if (is_read(request.atomic)) {
        return Access::kRemoteRead;
    }
    const AtomicForm form = request.atomic.form;
    const bool fetches = form == AtomicForm::kFetch || form == AtomicForm::kCompare;
    return request.info->remote_access | (fetches ? Access::kRemoteRead : Access::kNone);
}

/// What the key and the pair have to allow.
Access access_for(const Request& request) noexcept {
    if (request.info->opcode == WrOpcode::kExtendedAtomic) {
        return access_for_extended(request);
    }
    if (request.info->opcode != WrOpcode::kFlush) {
        return request.info->remote_access;
    }
    const auto of = [&](FlushType type, Access access) {
        return has_any(request.flush_type, type) ? access : Access::kNone;
    };
    return of(FlushType::kGlobal, Access::kFlushGlobal) |
           of(FlushType::kPersistent, Access::kFlushPersistent);
}

/// Whether it is one, and as long as the pair has them.
bool is_extended_atomic(const Qp& qp, const Request& request) noexcept {
    const std::optional<AtomicShape> shape = shape_of(request.atomic);
    return shape && fits(*shape, request.bytes, qp.most_atomic_bytes()) &&
           (!shape->is_masked || request.remote_addr % 8 == 0);
}

Nak check_operation(const Qp& qp, const Request& request) noexcept {
    const WrInfo& info = *request.info;
    if (!takes(info, qp.type()) || has_any(info.traits, OpTraits::kLocal)) {
        return Nak::kInvalid;
    }
    if (info.opcode == WrOpcode::kFlush && !is_flush(request.flush_type, request.flush_level)) {
        return Nak::kInvalid;
    }
    if (info.opcode == WrOpcode::kExtendedAtomic && !is_extended_atomic(qp, request)) {
        return Nak::kInvalid;
    }
    // The pair's own access flags: which kinds of request it takes at all.
    if (!has_all(qp.attr().access, access_for(request))) {
        return Nak::kInvalid;
    }
    const bool needs_resources = has_any(info.traits, OpTraits::kAnswered);
    if (needs_resources && qp.attr().max_dest_rd_atomic == 0) {
        return Nak::kInvalid;
    }
    const bool is_atomic = has_any(info.traits, OpTraits::kAtomic);
    const bool is_no_word =
        is_atomic && (request.remote_addr % 8 != 0 || request.bytes != sizeof(std::uint64_t));
    const bool too_long = info.opcode != WrOpcode::kFlush &&
                          request.bytes > qp.pd().device().limits().max_message_bytes;
    return is_no_word || too_long ? Nak::kInvalid : Nak::kNone;
}

KeyHit look_up_remote(Qp& qp, const Request& request, std::uint64_t offset,
                      std::uint64_t bytes) noexcept {
    return qp.pd().key_view().lookup({.key = request.rkey,
                                      .pd = qp.pd().id(),
                                      .addr = request.remote_addr + offset,
                                      .length = bytes,
                                      .access = access_for(request)});
}

Nak check_remote(Qp& qp, const Request& request) noexcept {
    if (!has_any(request.info->traits, OpTraits::kRemoteAddr)) {
        return Nak::kNone;
    }
    if (request.info->opcode == WrOpcode::kFlush) {
        // Its key counts whatever its length, and alone where it is for a whole region.
        const auto access = qp.pd().key_view().access_of(request.rkey, qp.pd().id());
        if (!access.is_ok() || !has_all(access.value(), access_for(request))) {
            return Nak::kAccess;
        }
        if (request.flush_level == FlushLevel::kRegion) {
            return Nak::kNone;
        }
    }
    return look_up_remote(qp, request, 0, request.bytes).is_ok() ? Nak::kNone : Nak::kAccess;
}

/// Bytes of the message that go into the receive's buffers; UD has the route header in front.
std::uint64_t receive_bytes(const Qp& qp, const Request& request) noexcept {
    if (has_any(request.info->traits, OpTraits::kRemoteAddr)) {
        return 0;  // WRITE_IMM uses a receive, but not its buffers
    }
    return request.bytes + (qp.type() == QpType::kUd ? kGrhBytes : 0);
}

/// Where completions of the current message go.
VerbsCq& recv_cq(Qp& qp) noexcept {
    return qp.inbound().tm == Inbound::Tm::kNone ? *qp.init().recv_cq : qp.srq()->tags()->cq();
}

WcOpcode recv_opcode(Inbound::Tm tm) noexcept {
    switch (tm) {
        case Inbound::Tm::kNone: return WcOpcode::kRecv;
        case Inbound::Tm::kNoTag: return WcOpcode::kTmNoTag;
        case Inbound::Tm::kUnexpected:
        case Inbound::Tm::kMatched: return WcOpcode::kTmRecv;
    }
    return WcOpcode::kRecv;
}

/// Looks at a message's tag; takes the buffer of a posted one that fits.
Nak match_tag(Qp& qp, const Request& request, const PieceList& head) noexcept {
    Inbound& inbound = qp.inbound();
    TmHeader header;
    PieceList to;
    to.add(&header, sizeof header);
    if (copy(to, head) != sizeof header) {
        return Nak::kInvalid;
    }
    switch (header.op) {
        case TmHeader::Op::kNoTag: inbound.tm = Inbound::Tm::kNoTag; return Nak::kNone;
        case TmHeader::Op::kEager: break;
        case TmHeader::Op::kRndv:
        case TmHeader::Op::kFin:
        default: return Nak::kInvalid;  // eager messages only
    }
    inbound.tm = Inbound::Tm::kUnexpected;
    inbound.tm_tag = be64toh(header.tag);
    inbound.tm_app_ctx = be32toh(header.app_ctx);
    if (!qp.srq()->tags()->match(inbound.tm_tag, inbound.receive)) {
        return Nak::kNone;
    }
    inbound.tm = Inbound::Tm::kMatched;
    inbound.has_receive = true;
    return request.bytes - sizeof header > inbound.receive.bytes ? Nak::kTooLong : Nak::kNone;
}

bool carries_tag(const Qp& qp, const Request& request) noexcept {
    return qp.srq() != nullptr && qp.srq()->tags() != nullptr &&
           !has_any(request.info->traits, OpTraits::kRemoteAddr);
}

Nak take_receive(Qp& qp, const Request& request, const PieceList& head) noexcept {
    Inbound& inbound = qp.inbound();
    if (MessageSink* const sink = qp.init().sink) {
        return sink->has_room() ? Nak::kNone : Nak::kNotReady;
    }
    if (carries_tag(qp, request)) {
        const Nak nak = match_tag(qp, request, head);
        if (nak != Nak::kNone || inbound.tm == Inbound::Tm::kMatched) {
            return nak;
        }
    }
    const std::uint64_t bytes = receive_bytes(qp, request);
    if (inbound.is_kept) {
        inbound.has_receive = bytes <= inbound.receive.bytes;
        inbound.is_kept = !inbound.has_receive;
        return inbound.has_receive ? Nak::kNone : Nak::kTooLong;
    }
    // Unreliable services drop what is too long and keep the receive; RC consumes it in error
    // (C9-113).
    const auto taken = qp.recv_queue().take(inbound.receive, is_reliable(qp) ? 0 : bytes);
    if (taken != RecvQueue::Taken::kYes) {
        return taken == RecvQueue::Taken::kTooSmall ? Nak::kTooLong : Nak::kNotReady;
    }
    inbound.has_receive = true;
    if (inbound.tm == Inbound::Tm::kUnexpected) {
        qp.srq()->tags()->count_unexpected();
    }
    if (qp.srq() != nullptr) {
        qp.srq()->check_limit();
    }
    return bytes > inbound.receive.bytes ? Nak::kTooLong : Nak::kNone;
}

/// The buffers that the receive names, each key checked for local write.
Nak receive_pieces(Qp& qp, PieceList& pieces) noexcept {
    const WcStatus status =
        append_local(pieces, qp.pd(), qp.inbound().receive.sg_list(), Access::kLocalWrite);
    return status == kSuccess ? Nak::kNone : Nak::kLocalFault;
}

/// The area in front of a UD message: an IPv6-shaped header with the two addresses.
/// Returns: false when the memory is not there.
bool write_grh(const Request& request, const PieceList& to) noexcept {
    std::array<std::uint8_t, kGrhBytes> grh{};
    grh[0] = 6u << 4;  // version
    const auto length = static_cast<std::uint16_t>(request.bytes);
    grh[4] = static_cast<std::uint8_t>(length >> 8);
    grh[5] = static_cast<std::uint8_t>(length);
    grh[6] = 0x1b;  // next header: IBA transport
    grh[7] = 64;    // hop limit
    std::copy(request.source.gid.begin(), request.source.gid.end(), grh.begin() + 8);
    std::copy(request.dest.gid.begin(), request.dest.gid.end(), grh.begin() + 24);
    PieceList from;
    from.add(grh.data(), grh.size());
    return copy(to, from) == grh.size();
}

/// The memory that an atomic or ATOMIC WRITE names, for as long as it is accessed.
class Target {
  public:
    /// @param element_bytes  None of them lies in two buffers of a region.
    /// @param alignment      Of each buffer's first byte.
    Target(Qp& qp, const Request& request, std::size_t bytes, std::size_t element_bytes,
           std::size_t alignment, CpuAccess use = CpuAccess::kWrite) noexcept
        : hit_(look_up_remote(qp, request, 0, bytes)),
          device_(device_of(hit_)),
          bytes_(bytes),
          element_bytes_(element_bytes),
          alignment_(alignment),
          is_written_(use == CpuAccess::kWrite),
          access_(device_, use) {}

    /// Whether the key allows it, and its device does, and all of it is there.
    [[nodiscard]] bool is_there() const noexcept {
        const auto is_part_there = [this](std::byte* part, std::size_t, std::size_t count) {
            return reinterpret_cast<std::uintptr_t>(part) % alignment_ == 0 &&
                   (is_written_ ? util::can_write(part, count) : util::can_read(part, count));
        };
        return hit_.is_ok() && access_.status().is_ok() &&
               (device_ == nullptr || device_->refresh(hit_.offset, bytes_).is_ok()) &&
               for_each_part(hit_, bytes_, element_bytes_, is_part_there);
    }
    /// Of one element; nullptr: it is not there.
    [[nodiscard]] std::uint64_t* word() const noexcept {
        std::byte* memory = nullptr;
        if (is_there()) {
            visit([&memory](std::byte* part, std::size_t, std::size_t) { memory = part; });
        }
        return reinterpret_cast<std::uint64_t*>(memory);
    }
    /// Calls each(memory, begin, count) for its parts. Precondition: is_there().
    template <class Each>
    void visit(Each each) const noexcept {
        for_each_part(hit_, bytes_, element_bytes_,
                      [&each](std::byte* part, std::size_t begin, std::size_t count) {
                          each(part, begin, count);
                          return true;
                      });
    }
    /// What has been done is the device's, too.
    [[nodiscard]] Nak finish() const noexcept {
        const bool is_done =
            device_ == nullptr || !is_written_ || device_->write_back(hit_.offset, bytes_).is_ok();
        return is_done ? Nak::kNone : Nak::kLocalFault;
    }

  private:
    const KeyHit hit_;
    DeviceMemory* const device_;
    const std::size_t bytes_;
    const std::size_t element_bytes_;
    const std::size_t alignment_;
    const bool is_written_;
    const CpuAccessScope access_;
};

/// Copies what has arrived into the range that was looked up. Returns: false when its memory is not
/// there, or its device does not allow it.
bool write_region(const KeyHit& hit, const PieceList& data) noexcept {
    PieceList to;
    if (data.bytes() == 0 || append(to, hit, data.bytes())) {
        return copy(to, data) == to.bytes();
    }
    if (memory_of(hit).device != nullptr) {
        return write_to_copy(hit, data);
    }
    // More pieces than the list has room for.
    std::uint64_t done = 0;
    for (const iovec& piece : data.all()) {
        const auto* const from = static_cast<const std::byte*>(piece.iov_base);
        if (!copy_to_region(hit, done, from, piece.iov_len).is_ok()) {
            return false;
        }
        done += piece.iov_len;
    }
    return true;
}

}  // namespace

const Refusal& refusal_of(Nak nak) noexcept {
    return kRefusals[static_cast<std::size_t>(nak)];
}

std::uint32_t rnr_timer_us(std::uint8_t code) noexcept {
    static constexpr std::uint32_t kUs[32] = {
        655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
        480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
        20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
    return kUs[code % 32];
}

Nak begin_request(Qp& qp, const Request& request, const PieceList& head) noexcept {
    qp.inbound().has_receive = false;
    qp.inbound().tm = Inbound::Tm::kNone;
    qp.inbound().placed = 0;
    if (Nak nak = check_state(qp); nak != Nak::kNone) {
        return nak;
    }
    if (Nak nak = check_sender(qp, request); nak != Nak::kNone) {
        return nak;
    }
    if (Nak nak = check_operation(qp, request); nak != Nak::kNone) {
        return nak;
    }
    if (Nak nak = check_remote(qp, request); nak != Nak::kNone) {
        return nak;
    }
    return has_any(request.info->traits, OpTraits::kConsumesRecv) ? take_receive(qp, request, head)
                                                                  : Nak::kNone;
}

Nak place_data(Qp& qp, const Request& request, std::uint64_t offset,
               const PieceList& data) noexcept {
    PieceList to;
    if (has_any(request.info->traits, OpTraits::kRemoteAddr)) {
        const KeyHit hit = look_up_remote(qp, request, offset, data.bytes());
        if (!hit.is_ok() || !write_region(hit, data)) {
            return Nak::kAccess;
        }
    } else {
        if (Nak nak = receive_pieces(qp, to); nak != Nak::kNone) {
            return nak;
        }
        if (qp.type() == QpType::kUd) {
            if (!write_grh(request, to)) {
                return Nak::kLocalFault;
            }
            offset += kGrhBytes;
        }
        // A tag's buffer gets the message without its header, which is in the first part.
        const bool matched = qp.inbound().tm == Inbound::Tm::kMatched;
        const std::uint64_t skip = matched && offset == 0 ? sizeof(TmHeader) : 0;
        const std::uint64_t at = offset + skip - (matched ? sizeof(TmHeader) : 0);
        const PieceList room = to.part(at, data.bytes() - skip);
        static_cast<void>(stage(qp.inbound().receive.use, at, at + room.bytes()));
        if (copy(room, data.part(skip, data.bytes() - skip)) != room.bytes()) {
            return Nak::kLocalFault;
        }
    }
    qp.inbound().placed += data.bytes();
    return Nak::kNone;
}

Nak check_longer(const Qp& qp, const Request& request) noexcept {
    const Inbound& inbound = const_cast<Qp&>(qp).inbound();
    const bool matched = inbound.tm == Inbound::Tm::kMatched;
    const std::uint64_t bytes = request.bytes - (matched ? sizeof(TmHeader) : 0);
    if (request.bytes > qp.device().limits().max_message_bytes) {
        return Nak::kInvalid;
    }
    return bytes > inbound.receive.bytes ? Nak::kTooLong : Nak::kNone;
}

Nak take_late_receive(Qp& qp, const Request& request) noexcept {
    const bool is_late = has_all(request.info->traits, OpTraits::kImm | OpTraits::kRemoteAddr);
    return is_late ? take_receive(qp, request, {}) : Nak::kNone;
}

Nak finish_request(Qp& qp, const Request& request) noexcept {
    const OpTraits traits = request.info->traits;
    Device& device = qp.device();
    // A region may be open to others, who have done nothing: the peer cannot take it back.
    if (has_any(traits, OpTraits::kInvalidates) &&
        !qp.pd().keys().invalidate_window(request.imm, qp.pd().id()).is_ok()) {
        return Nak::kLocalFault;
    }
    device.stats().add(Stat::kMessagesReceived);
    device.stats().add(Stat::kBytesReceived, request.bytes);
    Inbound& inbound = qp.inbound();
    if (!inbound.has_receive) {
        return Nak::kNone;
    }
    inbound.has_receive = false;
    const bool ud = qp.type() == QpType::kUd;
    const bool write = has_any(traits, OpTraits::kRemoteAddr);
    const bool matched = inbound.tm == Inbound::Tm::kMatched;
    WcFlags flags = ud ? WcFlags::kGrh : WcFlags::kNone;
    flags = flags | (has_any(traits, OpTraits::kImm) ? WcFlags::kWithImm : WcFlags::kNone);
    flags = flags | (has_any(traits, OpTraits::kInvalidates) ? WcFlags::kWithInv : WcFlags::kNone);
    flags = flags | (matched ? WcFlags::kTmMatch | WcFlags::kTmDataValid : WcFlags::kNone);
    qp.complete(
        recv_cq(qp),
        {.wr_id = inbound.receive.wr_id,
         .opcode = write ? WcOpcode::kRecvWriteImm : recv_opcode(inbound.tm),
         .flags = flags,
         .byte_len = request.bytes + (ud ? kGrhBytes : 0) - (matched ? sizeof(TmHeader) : 0),
         .imm = request.imm,
         .src_qpn = request.src_qpn,
         .src_port = request.source.port,
         .tm_tag = matched ? inbound.tm_tag : 0,
         .tm_app_ctx = matched ? inbound.tm_app_ctx : 0},
        request.solicited);
    return Nak::kNone;
}

void abandon_request(Qp& qp, Nak nak) noexcept {
    Inbound& inbound = qp.inbound();
    const Refusal& refusal = refusal_of(nak);
    if (inbound.has_receive) {
        const WcStatus status = refusal.responder == kSuccess ? kWrFlushErr : refusal.responder;
        qp.complete(
            recv_cq(qp),
            {.wr_id = inbound.receive.wr_id, .status = status, .opcode = recv_opcode(inbound.tm)});
        inbound.has_receive = false;
        if (inbound.tm == Inbound::Tm::kUnexpected) {
            qp.srq()->tags()->discount_unexpected();
        }
    }
}

Nak find_source(Qp& qp, const Request& request, std::uint64_t offset, std::uint64_t bytes,
                PieceList& source) noexcept {
    const KeyHit hit = look_up_remote(qp, request, offset, bytes);
    if (hit.is_ok() && (bytes == 0 || append(source, hit, bytes))) {
        return is_there(source) ? Nak::kNone : Nak::kAccess;
    }
    return hit.is_ok() && append_refreshed(source, hit, bytes) ? Nak::kNone : Nak::kAccess;
}

Nak do_atomic(Qp& qp, const Request& request, std::uint64_t& original) noexcept {
    const Target target(qp, request, kWord, kWord, kWord);
    std::uint64_t* const word = target.word();
    if (word == nullptr) {
        return Nak::kAccess;
    }
    // acq_rel: pairs with the same operation of other peers, and with what the application
    // synchronises by it.
    if (request.info->opcode == WrOpcode::kFetchAdd) {
        original = __atomic_fetch_add(word, request.compare_add, __ATOMIC_ACQ_REL);
    } else {
        original = request.compare_add;
        // acquire on failure: pairs with the release half of the peers' operations.
        __atomic_compare_exchange_n(word, &original, request.swap, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
    return target.finish();
}

Nak do_answered(Qp& qp, const Request& request, const PieceList& data) noexcept {
    if (request.info->opcode == WrOpcode::kFlush) {
        // seq_cst: pairs with any load of who learns of the answer: it sees all earlier writes.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        return Nak::kNone;
    }
    std::uint64_t value = 0;
    PieceList to;
    to.add(&value, sizeof value);
    if (copy(to, data) != sizeof value) {
        return Nak::kInvalid;
    }
    const Target target(qp, request, kWord, kWord, kWord);
    std::uint64_t* const word = target.word();
    if (word == nullptr) {
        return Nak::kAccess;
    }
    // release: pairs with what the application reads it by; earlier writes of the pair come before.
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return target.finish();
}

Nak do_extended_atomic(Qp& qp, const Request& request, const PieceList& operands,
                       std::byte* results) noexcept {
    const AtomicShape shape = *shape_of(request.atomic);
    if (operands.bytes() != shape.operands * request.bytes) {
        return Nak::kInvalid;
    }
    const Target target(qp, request, request.bytes, shape.element_bytes,
                        shape.is_masked ? kWord : 1,
                        is_read(request.atomic) ? CpuAccess::kRead : CpuAccess::kWrite);
    if (!target.is_there()) {
        return Nak::kAccess;
    }
    std::array<std::byte, kMostAtomicBytes> together;  // only what is copied next is read
    PieceList to;
    to.add(together.data(), operands.bytes());
    copy(to, operands);
    target.visit([&](std::byte* part, std::size_t begin, std::size_t count) {
        apply(request.atomic, part, count, &together[begin], results + begin, request.bytes);
    });
    return target.finish();
}

std::size_t result_bytes(const Request& request) noexcept {
    return shape_of(request.atomic)->results * request.bytes;
}

void take_datagram(Qp& qp, const Request& request, const PieceList& payload) noexcept {
    Nak nak = Nak::kNone;
    {
        const util::Guard guard(qp.rx_lock());
        nak = begin_request(qp, request, payload);
        nak = nak == Nak::kNone ? place_data(qp, request, 0, payload) : nak;
        nak = nak == Nak::kNone ? finish_request(qp, request) : nak;
        if (nak != Nak::kNone) {
            abandon_request(qp, nak);
        }
    }
    if (nak != Nak::kNone) {
        after_refusal(qp, nak);
    }
}

void after_refusal(Qp& qp, Nak nak) noexcept {
    const Refusal& refusal = refusal_of(nak);
    Stats& stats = qp.device().stats();
    if (!is_reliable(qp) && !refusal.unreliable_fails) {
        stats.add(Stat::kDrops);
        return;
    }
    switch (nak) {
        case Nak::kNone: return;
        case Nak::kNotReady: stats.add(Stat::kRnrNaks); break;
        case Nak::kAccess: stats.add(Stat::kAccessNaks); break;
        case Nak::kUnreachable: stats.add(Stat::kDrops); break;
        case Nak::kInvalid:
        case Nak::kTooLong:
        case Nak::kLocalFault: stats.add(Stat::kRequestNaks); break;
    }
    if (refusal.raises) {
        qp.raise(refusal.event);
    }
    if (refusal.fails_pair) {
        qp.enter_error();
    }
}

}  // namespace rvt::core
