// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The transition table and the table of what each state permits.
#include "core/qp_states.h"

#include <array>
#include <cstddef>

namespace rvt::core {
namespace {

using enum QpMask;

/// Attributes of one transition for one type of pair.
struct Attributes {
    QpMask required = kNone;
    QpMask optional = kNone;
};

struct Transition {
    QpState from = QpState::kReset;
    QpState to = QpState::kReset;
    std::array<Attributes, kQpTypes> by_type{};  // in the order of QpType: RC, UC, UD, RD
};

// Every modify names the state or repeats it; RESET and ERR are reached from everywhere with
// nothing else.
constexpr QpMask kAddress = kPkeyIndex | kPort;
constexpr QpMask kConnect = kAv | kPathMtu | kDestQpn | kRqPsn;
constexpr QpMask kReliableSend = kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxRdAtomic;
constexpr QpMask kReliableOptional = kCurState | kAccess | kMinRnrTimer;
constexpr QpMask kRvtOnly = kExtendedAtomics | kKeepsEarly;  // not of the table

// clang-format off
constexpr Transition kTransitions[] = {
    {QpState::kReset, QpState::kInit, {{
        /* RC */ {kAddress | kAccess, kNone},
        /* UC */ {kAddress | kAccess, kNone},
        /* UD */ {kAddress | kQkey,   kNone},
        /* RD */ {kAddress | kQkey,   kAccess}}}},
    {QpState::kInit, QpState::kInit, {{
        /* RC */ {kNone, kAddress | kAccess},
        /* UC */ {kNone, kAddress | kAccess},
        /* UD */ {kNone, kAddress | kQkey},
        /* RD */ {kNone, kAddress | kQkey | kAccess}}}},
    {QpState::kInit, QpState::kRtr, {{
        /* RC */ {kConnect | kMaxDestRdAtomic | kMinRnrTimer, kAccess | kPkeyIndex | kRvtOnly},
        /* UC */ {kConnect,                                   kAccess | kPkeyIndex},
        /* UD */ {kNone,                                      kPkeyIndex | kQkey},
        /* RD */ {kNone,                                      kPkeyIndex | kQkey | kAccess | kMinRnrTimer}}}},
    {QpState::kRtr, QpState::kRts, {{
        /* RC */ {kReliableSend, kReliableOptional},
        /* UC */ {kSqPsn,        kCurState | kAccess},
        /* UD */ {kSqPsn,        kCurState | kQkey},
        /* RD */ {kNone,         kCurState | kQkey | kAccess | kMinRnrTimer | kReliableSend}}}},
    {QpState::kRts, QpState::kRts, {{
        /* RC */ {kNone, kReliableOptional},
        /* UC */ {kNone, kCurState | kAccess},
        /* UD */ {kNone, kCurState | kQkey},
        /* RD */ {kNone, kCurState | kQkey | kAccess | kMinRnrTimer}}}},
    {QpState::kRts, QpState::kSqd, {{
        /* RC */ {kNone, kSqdNotify},
        /* UC */ {kNone, kSqdNotify},
        /* UD */ {kNone, kSqdNotify},
        /* RD */ {kNone, kSqdNotify}}}},
    {QpState::kSqd, QpState::kRts, {{
        /* RC */ {kNone, kReliableOptional},
        /* UC */ {kNone, kCurState | kAccess},
        /* UD */ {kNone, kCurState | kQkey},
        /* RD */ {kNone, kCurState | kQkey | kAccess | kMinRnrTimer}}}},
    {QpState::kSqd, QpState::kSqd, {{
        /* RC */ {kNone, kPkeyIndex | kPort | kAccess | kAv | kMaxRdAtomic | kMinRnrTimer | kMaxDestRdAtomic |
                         kTimeout | kRetryCnt | kRnrRetry | kSqdNotify},
        /* UC */ {kNone, kPkeyIndex | kAccess | kAv | kSqdNotify},
        /* UD */ {kNone, kPkeyIndex | kQkey | kSqdNotify},
        /* RD */ {kNone, kPkeyIndex | kQkey | kAccess | kSqdNotify}}}},
    {QpState::kSqe, QpState::kRts, {{
        /* RC: never in SQE */ {},
        /* UC */ {kNone, kCurState | kAccess},
        /* UD */ {kNone, kCurState | kQkey},
        /* RD */ {kNone, kCurState | kQkey | kAccess}}}},
};
// clang-format on

const Transition* find(QpState from, QpState to) noexcept {
    for (const Transition& row : kTransitions) {
        if (row.from == from && row.to == to) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace

Status check_transition(QpType type, QpState from, QpState to, QpMask mask) noexcept {
    const QpMask named = without(mask, kState);
    if (to == QpState::kReset || to == QpState::kErr) {
        return named == kNone ? kOk : Status(EINVAL);
    }
    const Transition* row = find(from, to);
    if (row == nullptr || (from == QpState::kSqe && type == QpType::kRc)) {
        return EINVAL;
    }
    const Attributes& attributes = row->by_type[static_cast<std::size_t>(type)];
    const bool complete = has_all(named, attributes.required);
    const bool known = without(named, attributes.required | attributes.optional) == kNone;
    return complete && known ? kOk : Status(EINVAL);
}

const char* to_string(QpState state) noexcept {
    constexpr const char* kNames[kQpStates] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return kNames[static_cast<std::size_t>(state)];
}

const char* to_string(QpType type) noexcept {
    constexpr const char* kNames[kQpTypes] = {"RC", "UC", "UD", "RD"};
    return kNames[static_cast<std::size_t>(type)];
}

}  // namespace rvt::core
