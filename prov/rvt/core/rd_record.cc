// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of records, and their bytes.
#include "core/rd_record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/rd_types.h"
#include "util/cpu.h"
#include "util/mem_copy.h"

namespace rvt::core {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are written as they are");

constexpr std::uint8_t kHasTag = 1;
constexpr std::uint8_t kHasData = 2;

struct Header {
    std::uint8_t op;
    std::uint8_t flags;
    std::uint8_t fields;  // kHasTag, kHasData; those absent are zero
    std::uint8_t payload_bytes;
    std::uint32_t run_bytes;
};
static_assert(sizeof(Header) == kRecordHeader);

constexpr std::size_t kOps = static_cast<std::size_t>(RdOp::kCount);
constexpr auto kRules = [] {
    std::array<RecordRule, kOps> rules{};
    const auto payload = [&](RdOp op, std::size_t least, std::size_t most) {
        rules[static_cast<std::size_t>(op)] = {.travels = true,
                                               .min_payload = static_cast<std::uint8_t>(least),
                                               .max_payload = static_cast<std::uint8_t>(most)};
    };
    const auto exactly = [&](RdOp op, std::size_t bytes) { payload(op, bytes, bytes); };
    const auto with_run = [&](RdOp op, std::size_t bytes, RdOp more, std::uint32_t whole) {
        exactly(op, bytes);
        rules[static_cast<std::size_t>(op)].more = more;
        rules[static_cast<std::size_t>(op)].max_whole_run = whole;
    };
    payload(RdOp::kEager, 0, kMaxRecordPayload);
    with_run(RdOp::kEagerFirst, sizeof(RdHeader), RdOp::kEagerMore, 0);
    with_run(RdOp::kEagerMore, 0, RdOp::kEagerMore, 0);
    payload(RdOp::kRendezvous, sizeof(RdHeader), sizeof(RdHeader) + sizeof(RdReadable));
    exactly(RdOp::kPull, sizeof(RdPull));
    with_run(RdOp::kPullData, 0, RdOp::kPullData, 0);
    exactly(RdOp::kPullDone, sizeof(RdOutcome));
    exactly(RdOp::kFinish, sizeof(RdOutcome));
    exactly(RdOp::kAck, sizeof(RdOutcome));
    with_run(RdOp::kWrite, sizeof(RdAccess), RdOp::kWriteMore, 0);
    payload(RdOp::kWriteLine, sizeof(RdAccess), kMaxRecordPayload);
    with_run(RdOp::kWriteMore, 0, RdOp::kWriteMore, 0);
    exactly(RdOp::kRead, sizeof(RdAccess));
    with_run(RdOp::kReadData, 0, RdOp::kReadData, 0);
    payload(RdOp::kReadLine, 0, kMaxRecordPayload);
    with_run(RdOp::kAtomic, sizeof(RdAtomicHeader), RdOp::kInvalid, 2 * kMaxAtomicSize);
    exactly(RdOp::kAtomicInline, sizeof(RdAtomicHeader));
    with_run(RdOp::kAtomicResult, 0, RdOp::kInvalid, kMaxAtomicSize);
    payload(RdOp::kAtomicAnswer, 0, 40);
    exactly(RdOp::kAccessDone, sizeof(RdOutcome));
    exactly(RdOp::kRmaEvent, sizeof(RdAccess));
    exactly(RdOp::kAskNicKey, sizeof(RdAccess));
    exactly(RdOp::kNicKey, sizeof(RdNicKey));
    exactly(RdOp::kNicKeyEnds, 0);
    exactly(RdOp::kHold, 0);
    exactly(RdOp::kTaken, 0);
    exactly(RdOp::kLeave, 0);
    exactly(RdOp::kMayLeave, 0);
    exactly(RdOp::kStay, 0);
    return rules;
}();

/// Returns: false for what no honest peer sends.
RVT_ALWAYS_INLINE bool decode(std::span<const std::byte> bytes, DecodedRecord& record) noexcept {
    Header header;
    if (bytes.size() < sizeof header) {
        return false;
    }
    std::memcpy(&header, bytes.data(), sizeof header);
    RdMessage& message = record.message;
    message.op = static_cast<RdOp>(header.op);
    message.flags = header.flags;
    const RecordRule& rule = record_rule(message.op);
    const std::size_t data_at = kRecordHeader + ((header.fields & kHasTag) != 0 ? 8u : 0u);
    const std::size_t payload_at = data_at + ((header.fields & kHasData) != 0 ? 8u : 0u);
    const std::size_t run_at = payload_at + header.payload_bytes;
    if (!rule.travels || (header.fields & ~(kHasTag | kHasData)) != 0 ||
        header.payload_bytes < rule.min_payload || header.payload_bytes > rule.max_payload ||
        bytes.size() < run_at || (header.run_bytes != 0 && !has_run(message.op)) ||
        (rule.more == RdOp::kInvalid && header.run_bytes > rule.max_whole_run)) {
        return false;
    }
    if ((header.fields & kHasTag) != 0) {
        std::memcpy(&message.tag, bytes.data() + kRecordHeader, sizeof message.tag);
    }
    if ((header.fields & kHasData) != 0) {
        std::memcpy(&message.data, bytes.data() + data_at, sizeof message.data);
    }
    message.payload = bytes.data() + payload_at;
    message.payload_bytes = header.payload_bytes;
    message.run = bytes.data() + run_at;
    record.run_bytes = header.run_bytes;
    const std::size_t there = std::min<std::size_t>(header.run_bytes, bytes.size() - run_at);
    message.length = has_run(message.op) ? static_cast<std::uint32_t>(there) : header.payload_bytes;
    record.bytes = run_at + there;
    return true;
}

}  // namespace

const RecordRule& record_rule(RdOp op) noexcept {
    static constexpr RecordRule kNone{};
    const auto index = static_cast<std::size_t>(op);
    return index < kOps ? kRules[index] : kNone;
}

void encode_record(const RdMessage& message, std::uint32_t run_bytes, std::byte* to) noexcept {
    const bool has_both = has_run(message.op);
    const bool has_tag = has_both || message.tag != 0;
    const bool has_data = has_both || message.data != 0;
    const Header header{
        .op = static_cast<std::uint8_t>(message.op),
        .flags = message.flags,
        .fields = static_cast<std::uint8_t>((has_tag ? kHasTag : 0) | (has_data ? kHasData : 0)),
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

std::optional<DecodedRecord> decode_record(std::span<const std::byte> bytes) noexcept {
    std::optional<DecodedRecord> record(std::in_place);  // returned where it lies
    if (!decode(bytes, *record)) {
        record.reset();
    }
    return record;
}

}  // namespace rvt::core
