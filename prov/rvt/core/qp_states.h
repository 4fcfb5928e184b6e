// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The queue pair's state machine as data: which transitions exist, and for each type of pair which
// attributes a transition must and may name; what each state lets a queue do.
// IBTA vol. 1, 10.3.1 and 11.2.5.2; ibv_modify_qp(3).
#pragma once

#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

/// Checks a modify of a pair of `type` from state `from` to `to` that names the attributes in
/// `mask`.
/// Returns: EINVAL when the transition does not exist, a required attribute is missing, or one is
///          named that the transition does not take.
Status check_transition(QpType type, QpState from, QpState to, QpMask mask) noexcept;

/// What a state permits (IBTA 10.3.1).
struct StateRights {
    bool post_recv;
    bool post_send;
    bool start_send;  // takes the next work request of the send queue
    bool receive;     // takes in messages
    bool flush_send;  // completes work requests of the send queue with kWrFlushErr
    bool flush_recv;
};

namespace qp_states_detail {
// clang-format off
//                                         post_recv post_send start  receive flush_s flush_r
inline constexpr StateRights kRights[kQpStates] = {
    /* kReset */                          {false,    false,    false, false,  false,  false},
    /* kInit  */                          {true,     false,    false, false,  false,  false},
    /* kRtr   */                          {true,     false,    false, true,   false,  false},
    /* kRts   */                          {true,     true,     true,  true,   false,  false},
    /* kSqd   */                          {true,     true,     false, true,   false,  false},
    /* kSqe   */                          {true,     true,     false, true,   true,   false},
    /* kErr   */                          {true,     true,     false, false,  true,   true},
};
// clang-format on
}  // namespace qp_states_detail

inline const StateRights& rights_of(QpState state) noexcept {
    return qp_states_detail::kRights[static_cast<std::size_t>(state)];
}

const char* to_string(QpState state) noexcept;
const char* to_string(QpType type) noexcept;

}  // namespace rvt::core
