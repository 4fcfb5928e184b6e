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

static_assert(std::endian::native == std::endian::little, "fields are written as they are");

struct RecordHeader {
    static constexpr std::uint8_t kHasTag = 1;
    static constexpr std::uint8_t kHasData = 2;
    static constexpr std::uint8_t kAllFields = kHasTag | kHasData;

    // The header as one word: where in it the members begin.
    static constexpr unsigned kFlagsAt = 8;
    static constexpr unsigned kFieldsAt = 16;
    static constexpr unsigned kPayloadBytesAt = 24;
    static constexpr unsigned kRunBytesAt = 32;
    static constexpr std::uint64_t word(std::uint8_t op, std::uint8_t flags, std::uint8_t fields,
                                        std::uint8_t payload_bytes,
                                        std::uint32_t run_bytes) noexcept {
        return op | std::uint64_t{flags} << kFlagsAt | std::uint64_t{fields} << kFieldsAt |
               std::uint64_t{payload_bytes} << kPayloadBytesAt |
               std::uint64_t{run_bytes} << kRunBytesAt;
    }
    std::uint8_t op;
    std::uint8_t flags;
    std::uint8_t fields;  // kHasTag, kHasData; those absent are zero
    std::uint8_t payload_bytes;
    std::uint32_t run_bytes;
};

/// The header of a record of kEager, which is what one register holds of such a message: see
/// RdFlowUser::take_eager().
class RdEagerHead {
  public:
    constexpr explicit RdEagerHead(std::uint64_t header) noexcept : header_(header) {}

    /// Of the payload.
    constexpr std::uint32_t length() const noexcept {
        return static_cast<std::uint8_t>(header_ >> RecordHeader::kPayloadBytesAt);
    }
    constexpr std::uint8_t flags() const noexcept {
        return static_cast<std::uint8_t>(header_ >> RecordHeader::kFlagsAt);
    }
    constexpr bool has(std::uint8_t field) const noexcept {
        return (header_ >> RecordHeader::kFieldsAt & field) != 0;
    }
    /// Whether it says nothing that one of kEager may not say.
    constexpr bool makes_sense() const noexcept {
        constexpr std::uint64_t kFree =
            RecordHeader::word(0, 0xff, RecordHeader::kAllFields, 0xff, 0);
        return (header_ & ~kFree) == static_cast<std::uint64_t>(RdOp::kEager) &&
               length() <= record_rule(RdOp::kEager).max_payload;
    }

  private:
    std::uint64_t header_;
};

/// The whole message, with the members by which one in a ring is asked for the same.
class RdEager {
  public:
    RVT_ALWAYS_INLINE RdEager(RdEagerHead head, std::uint64_t tag, std::uint64_t data,
                              const std::byte* payload) noexcept
        : head_(head), tag_(tag), data_(data), payload_(payload) {}

    std::uint8_t flags() const noexcept { return head_.flags(); }
    std::uint32_t length() const noexcept { return head_.length(); }
    std::uint64_t tag() const noexcept { return tag_; }
    std::uint64_t data() const noexcept { return data_; }
    const std::byte* payload() const noexcept { return payload_; }
    /// Precondition: count <= length().
    RVT_ALWAYS_INLINE void copy_payload(void* to, std::size_t count) const noexcept {
        util::copy_mostly_small(to, payload_, count);
    }

  private:
    RdEagerHead head_;
    std::uint64_t tag_;
    std::uint64_t data_;
    const std::byte* payload_;
};

inline constexpr std::size_t kRecordHeader = sizeof(RecordHeader);
inline constexpr std::size_t kTakenBytes = kRecordHeader + 8;  // of kTaken
inline constexpr std::size_t kMaxEagerRecord = kRecordHeader + 16 + kMaxRecordPayload;
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

RVT_ALWAYS_INLINE void copy_payload(const RdMessage& message, std::byte* to) noexcept {
    if (message.payload_bytes <= util::kMostSmall) [[likely]] {
        util::copy_small(to, message.payload, message.payload_bytes);
    } else {
        std::memcpy(to, message.payload, message.payload_bytes);
    }
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
    copy_payload(message, to);
}

/// The same of a message of kEager, whose size needs not be known before. Returns: its end.
/// Precondition: `to` has room for kMaxEagerRecord bytes.
RVT_ALWAYS_INLINE std::byte* encode_eager(const RdMessage& message, std::byte* to) noexcept {
    std::byte* at = to + kRecordHeader;
    std::uint8_t fields = 0;
    if (message.tag != 0) {
        std::memcpy(at, &message.tag, sizeof message.tag);
        at += sizeof message.tag;
        fields |= RecordHeader::kHasTag;
    }
    if (message.data != 0) {
        std::memcpy(at, &message.data, sizeof message.data);
        at += sizeof message.data;
        fields |= RecordHeader::kHasData;
    }
    const std::uint64_t header =
        RecordHeader::word(static_cast<std::uint8_t>(RdOp::kEager), message.flags, fields,
                           static_cast<std::uint8_t>(message.payload_bytes), 0);
    std::memcpy(to, &header, sizeof header);
    copy_payload(message, at);
    return at + message.payload_bytes;
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

/// What a record of kEager holds.
struct DecodedEager {
    RdEagerHead head{0};
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    const std::byte* payload = nullptr;
    const std::byte* end = nullptr;  // of the record
};

/// As decode_record(), of a record of kEager, which most are: what its header may not say takes one
/// comparison. Returns: false for another one, and for what no honest peer sends.
RVT_ALWAYS_INLINE bool decode_eager(std::span<const std::byte> bytes,
                                    DecodedEager& eager) noexcept {
    static_assert(record_rule(RdOp::kEager).min_payload == 0);
    const std::byte* at = bytes.data();
    std::size_t left = bytes.size();
    const auto take_word = [&](std::uint64_t& word) {
        if (left < sizeof word) [[unlikely]] {
            return false;
        }
        std::memcpy(&word, at, sizeof word);
        at += sizeof word;
        left -= sizeof word;
        return true;
    };
    std::uint64_t header = 0;
    if (!take_word(header)) [[unlikely]] {
        return false;
    }
    eager.head = RdEagerHead(header);
    if (!eager.head.makes_sense()) [[unlikely]] {
        return false;
    }
    if (eager.head.has(RecordHeader::kHasTag) && !take_word(eager.tag)) [[unlikely]] {
        return false;
    }
    if (eager.head.has(RecordHeader::kHasData) && !take_word(eager.data)) [[unlikely]] {
        return false;
    }
    if (eager.head.length() > left) [[unlikely]] {
        return false;
    }
    eager.payload = at;
    eager.end = at + eager.head.length();
    return true;
}

/// Returns: nothing for what no honest peer sends.
inline std::optional<DecodedRecord> decode_record(std::span<const std::byte> bytes) noexcept {
    RecordHeader header;
    if (bytes.size() < sizeof header) {
        return {};
    }
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto op = static_cast<RdOp>(header.op);
    const RecordRule& rule = record_rule(op);
    const bool has_tag = (header.fields & RecordHeader::kHasTag) != 0;
    const bool has_data = (header.fields & RecordHeader::kHasData) != 0;
    const std::size_t data_at = kRecordHeader + (has_tag ? 8u : 0u);
    const std::size_t payload_at = data_at + (has_data ? 8u : 0u);
    const std::size_t run_at = payload_at + header.payload_bytes;
    if (!rule.travels || (header.fields & ~RecordHeader::kAllFields) != 0 ||
        header.payload_bytes < rule.min_payload || header.payload_bytes > rule.max_payload ||
        bytes.size() < run_at || (header.run_bytes != 0 && !has_run(op)) ||
        (rule.more == RdOp::kInvalid && header.run_bytes > rule.max_whole_run)) {
        return {};
    }
    std::optional<DecodedRecord> record(std::in_place);  // returned where it lies
    RdMessage& message = record->message;
    message.op = op;
    message.flags = header.flags;
    if (has_tag) {
        std::memcpy(&message.tag, bytes.data() + kRecordHeader, sizeof message.tag);
    }
    if (has_data) {
        std::memcpy(&message.data, bytes.data() + data_at, sizeof message.data);
    }
    message.payload = bytes.data() + payload_at;
    message.payload_bytes = header.payload_bytes;
    message.run = bytes.data() + run_at;
    record->run_bytes = header.run_bytes;
    const std::size_t there =
        has_run(op) ? std::min<std::size_t>(header.run_bytes, bytes.size() - run_at) : 0;
    message.length = has_run(op) ? static_cast<std::uint32_t>(there) : header.payload_bytes;
    record->bytes = run_at + there;
    return record;
}

}  // namespace rvt::core
