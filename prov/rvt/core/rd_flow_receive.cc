// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Frames into messages: on the thread that polls, and what has to wait for the owner's.
#include "core/rd_flow.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/packet_flow.h"
#include "core/qp.h"
#include "core/rd_flows.h"

namespace rvt::core {
namespace {

// Kept of a frame: many times what one has, whatever the packets of the two ends.
constexpr std::size_t kMostOfFrame = 1u << 20;

constexpr bool is_eager(std::byte first) noexcept {
    return first == std::byte{static_cast<std::uint8_t>(RdOp::kEager)};
}

}  // namespace

bool RdFlow::has_room() noexcept {
    return can_take();
}

bool RdFlow::has_room_for_waiting() const noexcept {
    return flows_.has_room_to_wait();
}

std::uint64_t RdFlow::life_signs() const noexcept {
    return packets() + completed();
}

/// Those of a packet. Returns: whether they make sense.
RVT_ALWAYS_INLINE bool RdFlow::handle_records(std::span<const std::byte> bytes) noexcept {
    for (;;) {
        bytes = bytes.subspan(padding_before(bytes));
        if (bytes.empty() || is_closed_) {
            return true;
        }
        if (is_eager(bytes[0])) [[likely]] {
            DecodedEager eager;
            if (!decode_eager(bytes, eager)) {
                return false;
            }
            bytes = {eager.end, bytes.data() + bytes.size()};
            hand_over_eager(eager);
            continue;
        }
        const auto record = decode_record(bytes);
        if (!record || record->message.op == RdOp::kTaken) {
            return false;
        }
        bytes = bytes.subspan(record->bytes);
        if (record->run_bytes != (has_run(record->message.op) ? record->message.length : 0)) {
            begin_run(record->message, record->run_bytes);
            return true;
        }
        hand_over(record->message);
    }
}

void RdFlow::handle(std::span<const std::byte> part, bool starts, bool ends) noexcept {
    if (is_closed_ || is_broken_) {
        return;
    }
    const std::size_t of_run = std::min<std::size_t>(incoming_.left, part.size());
    if (of_run != 0 && !starts) {
        go_on_with_run(part.first(of_run));
    }
    const bool makes_sense = (of_run == 0 || !starts) && handle_records(part.subspan(of_run)) &&
                             (!ends || incoming_.left == 0);
    if (!makes_sense && !is_closed_) {
        is_broken_ = true;
        flows_.taker().take_malformed(user_peer_);
    }
}

void RdFlow::take(std::span<const std::byte> part, bool starts, bool ends) noexcept {
    note_packet();
    note_use();
    if (starts) {
        part = part.subspan(heed_taken(part));
    }
    if (may_hand_over()) [[likely]] {
        handle(part, starts, ends);
    } else {
        keep_part(part, starts, ends);
    }
}

/// Mostly it is one small message, which needs no more than this.
void RdFlow::take_frame(std::span<const std::byte> frame) noexcept {
    note_packet();
    note_use();
    DecodedEager eager;
    if (!may_hand_over()) [[unlikely]] {
        keep_part(frame, true, true);
    } else if (!is_closed_ && !is_broken_ && decode_eager(frame, eager) &&
               eager.end == frame.data() + frame.size()) [[likely]] {
        hand_over_eager(eager);
    } else {
        handle(frame, true, true);
    }
}

/// Whether the owner polls, and nothing that came earlier waits for it.
RVT_ALWAYS_INLINE bool RdFlow::may_hand_over() const noexcept {
    return flows_.is_owner_polling() && user_peer_ != nullptr && parts_.empty();
}

/// For the owner, who is not here. A frame begins only where there is room, and none is endless: in
/// place of what an honest peer does not send the owner finds what makes no sense.
void RdFlow::keep_part(std::span<const std::byte> part, bool starts, bool ends) noexcept {
    static constexpr std::byte kNonsense[] = {std::byte{0xff}};
    if (is_endless_) {
        return;
    }
    kept_of_frame_ = (starts ? 0 : kept_of_frame_) + part.size();
    is_endless_ = kept_of_frame_ > kMostOfFrame;
    if (is_endless_) {
        part = kNonsense;
        starts = true;
    }
    parts_.push_back({.bytes = {part.begin(), part.end()}, .starts = starts, .ends = ends});
    flows_.note_waiting(*this, part.size());
}

/// Notes an acknowledgement, though the rest of the frame may have to wait for the owner: the next
/// poll heeds it, so that who waits for the message has it sooner. Returns: how many bytes it had.
RVT_ALWAYS_INLINE std::size_t RdFlow::heed_taken(std::span<const std::byte> frame) noexcept {
    if (frame.empty() || frame[0] != std::byte{static_cast<std::uint8_t>(RdOp::kTaken)}) {
        return 0;
    }
    const auto record = decode_record(frame);
    if (!record || (record->message.data & wire::kPsn) == 0) {
        return 0;  // makes no sense, which is found where the rest is
    }
    // relaxed: a hint, which goes with the number below.
    heard_us_.store(flows_.device().poll_us(), std::memory_order_relaxed);
    // release: pairs with the acquire in settle().
    if (heard_.exchange(record->message.data, std::memory_order_release) == 0) {
        flows_.note_heard(*this);
    }
    return record->bytes;
}

bool RdFlow::settle() noexcept {
    // acquire: pairs with the release in heed_taken().
    const std::uint64_t heard =
        has_heard() ? heard_.exchange(0, std::memory_order_acquire) : std::uint64_t{0};
    if (heard == 0) {
        return false;
    }
    // relaxed: a newer time than that of the number differs by a poll.
    take_acknowledged(*qp_, protocol::Psn(static_cast<std::uint32_t>(heard)),
                      heard_us_.load(std::memory_order_relaxed));
    return true;
}

/// Hands over what has waited. Returns: whether nothing does any more.
bool RdFlow::drain() noexcept {
    while (user_peer_ != nullptr && !parts_.empty()) {
        const Part part = std::move(parts_.front());
        parts_.pop_front();
        flows_.note_taken(part.bytes.size());
        if (part.is_rdma_done) {
            hand_over_rdma(part.rdma);
        } else {
            handle(part.bytes, part.starts, part.ends);
        }
    }
    return parts_.empty();
}

/// Of this run only the beginning has come, with which the packet ends.
void RdFlow::begin_run(const RdMessage& message, std::uint32_t run_bytes) noexcept {
    incoming_.left = run_bytes - message.length;
    incoming_.more = record_rule(message.op).more;
    incoming_.data = message.op == incoming_.more ? message.data : 0;
    incoming_.last_flags = 0;
    if (incoming_.more == RdOp::kInvalid) {
        incoming_.message = message;
        incoming_.payload.assign(message.payload, message.payload + message.payload_bytes);
        incoming_.whole.assign(message.run, message.run + message.length);
        return;
    }
    RdMessage first = message;
    if (message.op == RdOp::kReadData) {
        // What marks the last part goes with it.
        incoming_.last_flags = message.flags;
        first.flags = 0;
    }
    hand_over(first);
}

void RdFlow::go_on_with_run(std::span<const std::byte> part) noexcept {
    incoming_.left -= static_cast<std::uint32_t>(part.size());
    const bool is_last = incoming_.left == 0;
    if (incoming_.more != RdOp::kInvalid) {
        hand_over({.op = incoming_.more,
                   .flags = is_last ? incoming_.last_flags : std::uint8_t{0},
                   .length = static_cast<std::uint32_t>(part.size()),
                   .data = incoming_.data,
                   .run = part.data()});
        return;
    }
    incoming_.whole.insert(incoming_.whole.end(), part.begin(), part.end());
    if (is_last) {
        RdMessage whole = incoming_.message;
        whole.length = static_cast<std::uint32_t>(incoming_.whole.size());
        whole.payload = incoming_.payload.data();
        whole.run = incoming_.whole.data();
        hand_over(whole);
    }
}

RVT_ALWAYS_INLINE void RdFlow::hand_over_eager(const DecodedEager& eager) noexcept {
    flows_.taker().take_eager(user_peer_, eager.head, eager.tag, eager.data, eager.payload);
}

void RdFlow::hand_over(const RdMessage& message) noexcept {
    if (message.op == RdOp::kHold) {
        is_held_ = (message.flags & wire::kLast) != 0;
        return;
    }
    if (message.op >= RdOp::kLeave) {
        take_word(message);
        return;
    }
    flows_.taker().take_message(user_peer_, message);
}

}  // namespace rvt::core
