// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of records: what travels over a wire, and with what payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/rd_types.h"
#include "core/rd_wire.h"

namespace rvt::core {

inline constexpr std::size_t kMaxRecordPayload = 208;

/// What the record of an operation looks like.
struct RecordRule {
    bool travels = false;  // else no honest peer sends it over a wire
    std::uint8_t min_payload = 0;
    std::uint8_t max_payload = 0;
    RdOp more = RdOp::kInvalid;  // what a further part of its run counts as; kInvalid: it has none
    std::uint32_t max_whole_run = 0;  // of a run that counts only as a whole
};
using RecordRules = std::array<RecordRule, static_cast<std::size_t>(RdOp::kCount)>;
inline constexpr RecordRules kRecordRules = [] {
    RecordRules rules{};
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
    exactly(RdOp::kKeyEnds, 0);
    exactly(RdOp::kHold, 0);
    exactly(RdOp::kTaken, 0);
    exactly(RdOp::kLeave, 0);
    exactly(RdOp::kMayLeave, 0);
    exactly(RdOp::kStay, 0);
    return rules;
}();
inline constexpr RecordRule kNoRecord{};
constexpr const RecordRule& record_rule(RdOp op) noexcept {
    const auto index = static_cast<std::size_t>(op);
    return index < kRecordRules.size() ? kRecordRules[index] : kNoRecord;
}

}  // namespace rvt::core
