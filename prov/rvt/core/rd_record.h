// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The messages of the RD service as bytes on a wire: what a frame, one SEND of a flow, consists of.
// docs/roce.md describes it; who sends and takes frames is core/rd_flow.h.
//
//   header, 8 bytes | tag, 8 | data, 8 | payload, up to 208 | run
//
// A frame holds any number of records (core/rd_open_frame.h). But for its run a record lies in one
// packet; zeros before it are padding. Fields are in the byte order of x86; ends that do not agree
// on it do not connect.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "core/rd_record_rules.h"
#include "core/rd_wire.h"
#include "util/cpu.h"
#include "util/mem_copy.h"

namespace rvt::core {

/// A message, or a part of one: its run may have been divided, see RecordRule::more.
struct RdMessage {
    RdOp op = RdOp::kInvalid;
    std::uint8_t flags = 0;
    std::uint32_t length = 0;  // of the run if the operation has one, else of the payload
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    const std::byte* payload = nullptr;
    std::size_t payload_bytes = 0;
    const std::byte* run = nullptr;
};

/// What one register holds of a message of kEager: see RdFlowUser::take_eager().
struct RdEagerHead {
    std::uint32_t length = 0;  // of the payload
    std::uint8_t flags = 0;
};
static_assert(sizeof(RdEagerHead) == 8);

/// The whole message, with the members by which one in a ring is asked for the same.
class RdEager {
  public:
    RVT_ALWAYS_INLINE RdEager(RdEagerHead head, std::uint64_t tag, std::uint64_t data,
                              const std::byte* payload) noexcept
        : head_(head), tag_(tag), data_(data), payload_(payload) {}

    std::uint8_t flags() const noexcept { return head_.flags; }
    std::uint32_t length() const noexcept { return head_.length; }
    std::uint64_t tag() const noexcept { return tag_; }
    std::uint64_t data() const noexcept { return data_; }
    const std::byte* payload() const noexcept { return payload_; }
    /// Precondition: count <= length().
    RVT_ALWAYS_INLINE void copy_payload(void* to, std::size_t count) const noexcept {
        if (count <= util::kMostSmall) [[likely]] {
            util::copy_small(to, payload_, count);
        } else {
            std::memcpy(to, payload_, count);
        }
    }

  private:
    RdEagerHead head_;
    std::uint64_t tag_;
    std::uint64_t data_;
    const std::byte* payload_;
};

static_assert(std::endian::native == std::endian::little, "fields are written as they are");

struct RecordHeader {
    static constexpr std::uint8_t kHasTag = 1;
    static constexpr std::uint8_t kHasData = 2;

    std::uint8_t op;
    std::uint8_t flags;
    std::uint8_t fields;  // kHasTag, kHasData; those absent are zero
    std::uint8_t payload_bytes;
    std::uint32_t run_bytes;
};

inline constexpr std::size_t kRecordHeader = sizeof(RecordHeader);
inline constexpr std::size_t kTakenBytes = kRecordHeader + 8;  // of kTaken
/// In front of a run: kTaken, and a record's header, tag, data, payload of at most 40 bytes.
inline constexpr std::size_t kMaxRunHeader = kTakenBytes + kRecordHeader + 16 + 40;

/// Bytes of a record in front of its run.
constexpr std::size_t run_record_bytes(std::size_t payload_bytes) noexcept {
    return kRecordHeader + 16 + payload_bytes;
}
/// The same, or those of a record without a run: fields that are 0 do not travel.
constexpr std::size_t record_bytes(const RdMessage& message) noexcept {
    if (has_run(message.op)) {
        return run_record_bytes(message.payload_bytes);
    }
    return kRecordHeader + (message.tag != 0 ? 8u : 0u) + (message.data != 0 ? 8u : 0u) +
           message.payload_bytes;
}

/// Writes a record but for its run. Precondition: `to` has room for record_bytes(message).
/// @param run_bytes  Of the run that follows.
RVT_ALWAYS_INLINE void encode_record(const RdMessage& message, std::uint32_t run_bytes,
                                     std::byte* to) noexcept {
    const bool has_both = has_run(message.op);
    const bool has_tag = has_both || message.tag != 0;
    const bool has_data = has_both || message.data != 0;
    const RecordHeader header{
        .op = static_cast<std::uint8_t>(message.op),
        .flags = message.flags,
        .fields = static_cast<std::uint8_t>((has_tag ? RecordHeader::kHasTag : 0) |
                                            (has_data ? RecordHeader::kHasData : 0)),
        .payload_bytes = static_cast<std::uint8_t>(message.payload_bytes),
        .run_bytes = run_bytes};
    std::memcpy(to, &header, sizeof header);
    to += sizeof header;
    if (has_tag) {
        std::memcpy(to, &message.tag, sizeof message.tag);
        to += sizeof message.tag;
    }
    if (has_data) {
        std::memcpy(to, &message.data, sizeof message.data);
        to += sizeof message.data;
    }
    if (message.payload_bytes <= util::kMostSmall) [[likely]] {
        util::copy_small(to, message.payload, message.payload_bytes);
    } else {
        std::memcpy(to, message.payload, message.payload_bytes);
    }
}

/// A record at the begin of some bytes.
struct DecodedRecord {
    RdMessage message;            // `length` and `run`: of the part of the run that is there
    std::uint32_t run_bytes = 0;  // of the whole run
    std::size_t bytes = 0;        // of the record, as far as it is there
};
/// How many bytes are no record.
inline std::size_t padding_before(std::span<const std::byte> bytes) noexcept {
    std::size_t count = 0;
    while (count < bytes.size() && bytes[count] == std::byte{0}) {
        ++count;
    }
    return count;
}

/// Decodes a record of which the first byte says that it is of `op`: cheaper than decode_record()
/// where the compiler knows which. Returns: false for what no honest peer sends.
RVT_ALWAYS_INLINE bool decode_as(RdOp op, std::span<const std::byte> bytes,
                                 DecodedRecord& record) noexcept {
    RecordHeader header;
    if (bytes.size() < sizeof header) {
        return false;
    }
    std::memcpy(&header, bytes.data(), sizeof header);
    RdMessage& message = record.message;
    message.op = op;
    message.flags = header.flags;
    const bool has_tag = (header.fields & RecordHeader::kHasTag) != 0;
    const bool has_data = (header.fields & RecordHeader::kHasData) != 0;
    const RecordRule& rule = record_rule(op);
    const std::size_t data_at = kRecordHeader + (has_tag ? 8u : 0u);
    const std::size_t payload_at = data_at + (has_data ? 8u : 0u);
    const std::size_t run_at = payload_at + header.payload_bytes;
    if (!rule.travels || (header.fields & ~(RecordHeader::kHasTag | RecordHeader::kHasData)) != 0 ||
        header.payload_bytes < rule.min_payload || header.payload_bytes > rule.max_payload ||
        bytes.size() < run_at || (header.run_bytes != 0 && !has_run(op)) ||
        (rule.more == RdOp::kInvalid && header.run_bytes > rule.max_whole_run)) {
        return false;
    }
    if (has_tag) {
        std::memcpy(&message.tag, bytes.data() + kRecordHeader, sizeof message.tag);
    }
    if (has_data) {
        std::memcpy(&message.data, bytes.data() + data_at, sizeof message.data);
    }
    message.payload = bytes.data() + payload_at;
    message.payload_bytes = header.payload_bytes;
    message.run = bytes.data() + run_at;
    record.run_bytes = header.run_bytes;
    const std::size_t there =
        has_run(op) ? std::min<std::size_t>(header.run_bytes, bytes.size() - run_at) : 0;
    message.length = has_run(op) ? static_cast<std::uint32_t>(there) : header.payload_bytes;
    record.bytes = run_at + there;
    return true;
}

/// Returns: nothing for what no honest peer sends.
inline std::optional<DecodedRecord> decode_record(std::span<const std::byte> bytes) noexcept {
    std::optional<DecodedRecord> record(std::in_place);  // returned where it lies
    if (bytes.empty() || !decode_as(static_cast<RdOp>(bytes[0]), bytes, *record)) {
        record.reset();
    }
    return record;
}

}  // namespace rvt::core
