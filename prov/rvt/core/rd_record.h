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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/rd_wire.h"

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

/// What the record of an operation looks like.
struct RecordRule {
    bool travels = false;  // else no honest peer sends it over a wire
    std::uint8_t min_payload = 0;
    std::uint8_t max_payload = 0;
    RdOp more = RdOp::kInvalid;  // what a further part of its run counts as; kInvalid: it has none
    std::uint32_t max_whole_run = 0;  // of a run that counts only as a whole
};
const RecordRule& record_rule(RdOp op) noexcept;

inline constexpr std::size_t kMaxRecordPayload = 208;
inline constexpr std::size_t kRecordHeader = 8;
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
void encode_record(const RdMessage& message, std::uint32_t run_bytes, std::byte* to) noexcept;

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
/// Returns: nothing for what no honest peer sends.
std::optional<DecodedRecord> decode_record(std::span<const std::byte> bytes) noexcept;

}  // namespace rvt::core
