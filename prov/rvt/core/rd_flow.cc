// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records into frames. How frames become messages is in rd_flow_receive.cc.
#include "core/rd_flow.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>

#include "core/joined_packets.h"
#include "core/packet_flow.h"
#include "core/qp.h"
#include "core/rd_flows.h"
#include "core/rd_nic.h"
#include "core/requester.h"
#include "util/long_copy.h"

namespace rvt::core {

RdFlow::RdFlow(RdFlows& flows, std::uint64_t id, const Address& peer) noexcept
    : flows_(flows), id_(id), address_(peer), used_us_(flows.traffic_us()) {}

RdFlow::~RdFlow() = default;

void RdFlow::set_packet(std::uint32_t payload_bytes) noexcept {
    const util::Guard guard(lock_);
    payload_bytes_ = payload_bytes;
    const std::size_t packets = nic_ != nullptr ? 1 : most_joined(payload_bytes);
    frame_.set_sizes(payload_bytes, payload_bytes * packets);
    inline_bytes_ =
        nic_ != nullptr ? std::min(qp_->init().cap.max_inline_bytes, kMostInlineBytes) : 0;
    max_run_ = (nic_ != nullptr ? RdNic::kFrameBytes : frame_.most_bytes()) - kMaxRunHeader;
}

void RdFlow::drop_open() noexcept {
    const util::Guard guard(lock_);
    frame_.drop();
}

void RdFlow::close() noexcept {
    flows_.close(*this);
}

// ---- sending ----

/// @param wants_completion  Now, and not behind so many frames.
RVT_ALWAYS_INLINE bool RdFlow::post_frame_locked(std::span<const Sge> parts, SendFlags flags,
                                                 bool wants_completion) noexcept {
    RdFlows& flows = flows_;
    const bool is_signaled = ++unsignaled_ >= kMostUnsignaled || wants_completion;
    posted_at_ = flows.polls();
    flows.note_traffic();
    flows.expect_life();
    send_.wr_id = ring_.taken();
    send_.sg_list = parts;
    if (is_signaled) [[unlikely]] {
        send_.flags = flags | SendFlags::kSignaled;
        return post_timed_locked();
    }
    send_.flags = flags;
    return qp_->post_send(send_).is_ok() || lose_pair_locked();
}

/// What follows a frame that the NIC has refused must not arrive without it: nothing more leaves,
/// and the flow ends. Returns: false.
[[gnu::cold]] bool RdFlow::lose_pair_locked() noexcept {
    [[maybe_unused]] const Status ended = qp_->modify({.state = QpState::kErr}, QpMask::kState);
    qp_->raise(EventType::kQpFatal);
    return false;
}

/// A frame of no bytes says nothing, but completes like any other.
RVT_ALWAYS_INLINE bool RdFlow::post_to_nic_locked(std::span<const Sge> parts) noexcept {
    const std::uint32_t bytes = parts.empty() ? 0 : parts[0].length;
    unsignaled_bytes_ += bytes;
    return post_frame_locked(parts, bytes <= inline_bytes_ ? SendFlags::kInline : SendFlags::kNone,
                             unsignaled_bytes_ >= kMostUnsignaledBytes || bytes == 0);
}

/// Each that is signaled shows how long it takes.
bool RdFlow::post_timed_locked() noexcept {
    unsignaled_ = 0;
    unsignaled_bytes_ = 0;
    Device& device = flows_.device();
    const std::uint64_t before = device.now_us();
    const bool is_posted = qp_->post_send(send_).is_ok() || lose_pair_locked();
    device.send_hold().note_cost(device.now_us() - before);
    return is_posted;
}

/// Sends a record as a frame of its own that the NIC copies as it is posted, so that it needs no
/// place in the ring. One that cannot be posted is lost: see post_locked().
/// Precondition: may_put_inline_locked().
RVT_ALWAYS_INLINE void RdFlow::put_inline_locked(std::span<const std::byte> record) noexcept {
    ring_.take_none();
    note_use();
    const Sge place{.addr = reinterpret_cast<std::uint64_t>(record.data()),
                    .length = static_cast<std::uint32_t>(record.size()),
                    .lkey = 0};
    post_frame_locked({&place, 1}, SendFlags::kInline, false);
}

/// @param bytes  Of the record, or as many as it has at least.
RVT_ALWAYS_INLINE bool RdFlow::may_put_inline_locked(std::size_t bytes) noexcept {
    return frame_.is_empty() && bytes <= inline_bytes_ && posted_at_ != flows_.polls() &&
           has_frames_left_locked();
}

/// Inline, for callers of which the compiler knows what they send.
RVT_ALWAYS_INLINE bool RdFlow::put_now(const RdMessage& message, Room room) noexcept {
    const util::Guard guard(lock_);
    reserved_ = nullptr;
    if (!may_put_locked()) {
        return false;
    }
    std::array<std::byte, kMostInlineBytes> record;
    if (message.op == RdOp::kEager) {
        // How long it is shows when it stands there.
        static_assert(kMaxEagerRecord <= sizeof record);
        if (may_put_inline_locked(kRecordHeader + message.payload_bytes)) {
            std::byte* const end = encode_eager(message, record.data());
            const std::span<const std::byte> whole(record.data(), end);
            if (whole.size() <= inline_bytes_) [[likely]] {
                put_inline_locked(whole);
                return true;
            }
        }
    } else if (const std::size_t bytes = record_bytes(message); may_put_inline_locked(bytes)) {
        encode_record(message, 0, record.data());
        put_inline_locked({record.data(), bytes});
        return true;
    }
    const std::size_t bytes = record_bytes(message);
    if (!write_record_locked(message, bytes, room)) {
        return false;
    }
    if (room != Room::kReply || !leave_with_poll_locked(bytes)) {
        send_or_hold_locked(bytes, 1);
    }
    return true;
}

bool RdFlow::put(const RdMessage& message, Room room) noexcept {
    return put_now(message, room);
}

bool RdFlow::put_eager(std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                       const void* payload, std::size_t bytes) noexcept {
    return !is_held_ && put_now({.op = RdOp::kEager,
                                 .flags = flags,
                                 .tag = tag,
                                 .data = data,
                                 .payload = static_cast<const std::byte*>(payload),
                                 .payload_bytes = bytes},
                                Room::kAny);
}

/// Of those that are not for replies alone.
bool RdFlow::has_frames_left_locked() noexcept {
    if (ring_.frames() + kReplyFrames < RdFrameRing::kMaxFrames) [[likely]] {
        return true;
    }
    reclaim_locked();
    return ring_.frames() + kReplyFrames < RdFrameRing::kMaxFrames;
}

bool RdFlow::put_locked(const RdMessage& message, Room room) noexcept {
    const std::size_t bytes = record_bytes(message);
    if (!write_record_locked(message, bytes, room)) {
        return false;
    }
    send_or_hold_locked(bytes, 1);
    return true;
}

/// Adds a record to the open frame.
RVT_ALWAYS_INLINE bool RdFlow::write_record_locked(const RdMessage& message, std::size_t bytes,
                                                   Room room) noexcept {
    std::byte* const to = place_locked({.record = bytes}, room);
    if (to == nullptr) {
        return false;
    }
    encode_record(message, 0, to);
    frame_.add(bytes);
    // One that asks for no answer, and counts when the peer has it.
    is_awaited_ = is_awaited_ || message.op == RdOp::kWriteLine;
    return true;
}

/// An answer of `bytes` has been put. One to what the poll that is under way has brought leaves at
/// its end, with others. Returns: false for one that does not.
RVT_ALWAYS_INLINE bool RdFlow::leave_with_poll_locked(std::size_t bytes) noexcept {
    if (nic_ != nullptr || !flows_.is_owner_polling() || frame_.left() < bytes) {
        return false;
    }
    note_open_locked();
    return true;
}

/// A message of `bytes` has been put, which may wait for others behind so many frames.
RVT_ALWAYS_INLINE void RdFlow::send_or_hold_locked(std::size_t bytes,
                                                   std::uint64_t frames) noexcept {
    Device& device = flows_.device();
    const bool leaves_alone = may_leave_alone_locked(frames);
    packets_before_ = packets();
    if (leaves_alone || frame_.left() < bytes) {
        post_locked();
    } else if (device.send_hold().may_hold([&] { return device.now_us(); })) {
        note_open_locked();
    } else {
        post_locked();
        device.flush_packets();
    }
}

/// Whether no other message is likely to join this one's frame: none before it is under way, or it
/// is the first since the peer has said something. Of two that speak at once, neither knows yet
/// that the other has its last message. Over a NIC most frames are not heard of again: there it is
/// the first since the last poll that does not wait for others.
RVT_ALWAYS_INLINE bool RdFlow::may_leave_alone_locked(std::uint64_t frames) noexcept {
    if (nic_ != nullptr) {
        return posted_at_ != flows_.polls();
    }
    free_sent_locked();
    // An acknowledgement that waits is mostly that of the last frame.
    return ring_.frames() < frames + (has_heard() ? 1 : 0) + (packets() != packets_before_ ? 1 : 0);
}

/// Whether others like it are likely to follow at once, as far as what sends it knows. For a part
/// of what was asked for somebody waits.
bool RdFlow::has_followers(const RdMessage& message) noexcept {
    return message.op == RdOp::kEagerFirst || message.op == RdOp::kEagerMore ||
           message.op == RdOp::kWrite || message.op == RdOp::kWriteMore ||
           message.op == RdOp::kAtomic;
}

/// Where the next record of the open frame goes; begins another one when that is full.
RVT_ALWAYS_INLINE std::byte* RdFlow::place_locked(const RdOpenFrame::Extent& next,
                                                  Room room) noexcept {
    std::byte* const here = frame_.is_empty() ? nullptr : frame_.place_here(next);
    return here != nullptr ? here : place_anew_locked(next, room);
}

std::byte* RdFlow::place_anew_locked(const RdOpenFrame::Extent& next, Room room) noexcept {
    const RdOpenFrame::Spare spare =
        room == Room::kReply ? RdOpenFrame::Spare{}
                             : RdOpenFrame::Spare{.bytes = kReplyBytes, .frames = kReplyFrames};
    free_sent_locked();
    if (!frame_.is_empty()) {
        if (std::byte* const place = frame_.place(next, spare)) [[likely]] {
            return place;
        }
        post_locked();
    }
    if (!frame_.begin(kTakenBytes, next, spare)) {
        return nullptr;
    }
    put_taken_locked();
    return frame_.end();
}

std::byte* RdFlow::reserve_run(std::size_t bytes, std::size_t payload_bytes) noexcept {
    const util::Guard guard(lock_);
    reserved_ = nullptr;
    if (may_put_locked()) {
        const std::size_t record = run_record_bytes(payload_bytes);
        std::byte* const place = place_locked({.record = record, .copied = bytes}, Room::kAny);
        reserved_ = place == nullptr ? nullptr : place + record;
    }
    return reserved_;
}

void RdFlow::put_run(const RdMessage& message, std::size_t run_bytes) noexcept {
    const util::Guard guard(lock_);
    const std::size_t bytes = record_bytes(message);
    encode_record(message, static_cast<std::uint32_t>(run_bytes), reserved_ - bytes);
    reserved_ = nullptr;
    frame_.add(bytes + run_bytes);
    const bool is_answer = message.op == RdOp::kReadData || message.op == RdOp::kAtomicResult;
    if (has_followers(message)) {
        send_or_hold_locked(bytes + run_bytes, 1);
    } else if (!is_answer || !leave_with_poll_locked(bytes + run_bytes)) {
        post_locked();
    }
}

bool RdFlow::put_borrowed(const RdMessage& message, const iovec& run, bool has_more) noexcept {
    const util::Guard guard(lock_);
    reserved_ = nullptr;
    if (!may_put_locked()) {
        return false;
    }
    // The application's memory is not registered with a NIC.
    const bool is_copied = nic_ != nullptr;
    const std::size_t bytes = record_bytes(message);
    std::byte* const to = place_locked({.record = bytes,
                                        .copied = is_copied ? run.iov_len : 0,
                                        .borrowed = is_copied ? 0 : run.iov_len},
                                       Room::kAny);
    if (to == nullptr) {
        return false;
    }
    encode_record(message, static_cast<std::uint32_t>(run.iov_len), to);
    frame_.add(bytes);
    if (is_copied) {
        util::copy_bytes(to + bytes, run.iov_base, run.iov_len);
        frame_.add(run.iov_len);
    } else {
        frame_.borrow(run);
        is_awaited_ = true;
    }
    if (!has_more && has_followers(message)) {
        send_or_hold_locked(bytes + run.iov_len, kMostFramesOfOne);
    } else {
        packets_before_ = packets();  // as send_or_hold_locked() does
        post_locked(has_more ? SendFlags::kMore : SendFlags::kNone);
    }
    return true;
}

std::uint64_t RdFlow::frames() noexcept {
    const util::Guard guard(lock_);
    return ring_.taken() + (frame_.is_empty() ? 0 : 1);
}

/// What a NIC sends are copies.
bool RdFlow::has_let_go(std::uint64_t frames) const noexcept {
    return nic_ != nullptr || completed() >= frames;
}

std::uint64_t RdFlow::completed() const noexcept {
    // acquire: pairs with the release in note_sent(): the memory of these frames is free.
    return nic_ != nullptr ? sent_.load(std::memory_order_acquire) : qp_->send_queue().completed();
}

RVT_ALWAYS_INLINE bool RdFlow::post_packets_locked(std::span<const Sge> parts,
                                                   SendFlags flags) noexcept {
    flows_.note_packets();
    send_.wr_id = id_;
    send_.flags = is_awaited_ ? flags : flags | SendFlags::kSolicited;
    is_awaited_ = false;
    send_.sg_list = parts;
    return enqueue_send(*qp_, send_).is_ok();  // as post_send() does where packets carry the pair
}

/// Makes the open frame a work request. One that cannot be posted is lost, and the pair with it:
/// RdFlows sees that.
bool RdFlow::post_locked(SendFlags flags) noexcept {
    const std::span<const Sge> parts =
        frame_.take(nic_ != nullptr ? ring_region_->lkey() : kLocalDmaLkey);
    if (ring_.is_large()) {
        flows_.note_large();
    }
    note_use();
    const bool is_posted =
        nic_ != nullptr ? post_to_nic_locked(parts) : post_packets_locked(parts, flags);
    Device& device = flows_.device();
    device.send_hold().note_left([&] { return device.now_us(); });
    return is_posted;
}

/// Sends a frame of no bytes, unless another one is about to leave.
void RdFlow::post_empty_locked() noexcept {
    if (frame_.is_empty() && reserved_ == nullptr && frame_.begin(0, {.record = 0}, {})) {
        is_awaited_ = true;
        post_locked();
    }
}

/// Somebody waits until the peer has all.
void RdFlow::ask_for_completion_locked() noexcept {
    if (nic_ != nullptr && unsignaled_ != 0) {
        post_empty_locked();
    }
}

void RdFlow::ask_for_life() noexcept {
    const util::Guard guard(lock_);
    reclaim_locked();
    if (ring_.frames() == 0 || unsignaled_ != 0) {
        post_empty_locked();
    }
}

/// Says at the begin of a frame what would leave as an acknowledgement behind it, or will before
/// the frame does: of a message of many records the first is answered before the last packet has
/// come.
RVT_ALWAYS_INLINE void RdFlow::put_taken_locked() noexcept {
    const std::optional<protocol::Psn> taken =
        nic_ != nullptr ? std::nullopt : take_over_coming_ack(*qp_);
    taken_ = taken ? frame_.end() : nullptr;
    if (taken) {
        say_taken_locked(*taken);
        frame_.add(kTakenBytes);
    }
}

RVT_ALWAYS_INLINE void RdFlow::say_taken_locked(protocol::Psn psn) noexcept {
    encode_record({.op = RdOp::kTaken, .data = wire::kPsn | psn.value()}, 0, taken_);
}

void RdFlow::reclaim_locked() noexcept {
    settle();
    free_sent_locked();
}

/// The same without what the peer has acknowledged in a frame of the poll that has just been.
RVT_ALWAYS_INLINE void RdFlow::free_sent_locked() noexcept {
    ring_.free_until(completed());
}

void RdFlow::note_open_locked() noexcept {
    if (!is_noted_open_) {
        is_noted_open_ = true;
        // relaxed: see will_tell().
        will_tell_.store(taken_ != nullptr && flows_.is_owner_polling(), std::memory_order_relaxed);
        flows_.note_open(*this);
    }
}

/// Sends what takes no further records.
void RdFlow::flush() noexcept {
    const util::Guard guard(lock_);
    flush_locked();
}

/// The same unless somebody is at it. Returns: whether it is done.
bool RdFlow::try_flush() noexcept {
    if (!lock_.try_lock()) {
        return false;
    }
    flush_locked();
    lock_.unlock();
    return true;
}

void RdFlow::flush_locked() noexcept {
    is_noted_open_ = false;
    will_tell_.store(false, std::memory_order_relaxed);  // relaxed: see will_tell()
    tell_hold_locked();
    tell_stay_locked();
    // Who polls in the owner's stead keeps off the frame that the owner is filling.
    if (!frame_.is_empty() && reserved_ == nullptr) {
        if (const auto taken = taken_ == nullptr ? std::nullopt : take_over_ack(*qp_)) {
            say_taken_locked(*taken);
        }
        post_locked();
    }
    reclaim_locked();
}

bool RdFlow::trim() noexcept {
    const util::Guard guard(lock_);
    reclaim_locked();
    const bool is_unused = frames_before_ == ring_.taken() && ring_.frames() == 0 &&
                           frame_.is_empty() && reserved_ == nullptr;
    frames_before_ = ring_.taken();
    // Of memory that a NIC knows, pages cannot be given back.
    if (is_unused && nic_ == nullptr) {
        ring_.trim();
    }
    return nic_ != nullptr || !ring_.is_large();
}

std::size_t RdFlow::next_run(std::uint64_t left) noexcept {
    const util::Guard guard(lock_);
    if (nic_ != nullptr) {
        return max_run_;
    }
    if (frame_.is_empty()) {
        free_sent_locked();
        const bool starts_early = left > max_run_ && ring_.frames() == 0;
        return starts_early ? max_run_ / 2 : max_run_;
    }
    // Twice: a record that does not fit into a packet begins with the next one.
    const std::size_t room = frame_.left();
    return room >= frame_.most_bytes() / kLeastShare ? room - 2 * kMaxRunHeader : max_run_;
}

bool RdFlow::is_drained() noexcept {
    const util::Guard guard(lock_);
    reclaim_locked();
    ask_for_completion_locked();
    return frame_.is_empty() && ring_.frames() == 0;
}

void RdFlow::hold_eager(bool hold) noexcept {
    const util::Guard guard(lock_);
    wants_hold_ = hold;
    tell_hold_locked();
}

void RdFlow::tell_hold_locked() noexcept {
    const RdMessage message{.op = RdOp::kHold,
                            .flags = wants_hold_ ? wire::kLast : std::uint8_t{0}};
    if (wants_hold_ != told_hold_) {
        const std::size_t bytes = record_bytes(message);
        // Who polls in the owner's stead keeps off the place that the owner is about to fill.
        std::byte* const to =
            reserved_ != nullptr ? nullptr : place_locked({.record = bytes}, Room::kReply);
        if (to != nullptr) {
            encode_record(message, 0, to);
            frame_.add(bytes);
            told_hold_ = wants_hold_;
        }
        note_open_locked();  // it leaves, or is tried again, with the next poll
    }
}

}  // namespace rvt::core
