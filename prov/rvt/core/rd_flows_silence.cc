// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that owe something and are silent. Of one that is gone nothing tells when all that was sent
// to it has been acknowledged: it is sent a frame of no bytes, whose fate does. Who polls sees that
// a look is due; what is owed only the owner knows.
#include <utility>

#include "core/rd_flows.h"

namespace rvt::core {
namespace {

constexpr std::uint64_t kLookUs = 500'000;

}  // namespace

void RdFlows::look_at_peers(std::uint64_t now_us) noexcept {
    // relaxed: a hint to who polls; what it is about comes under locks.
    if (look_due_us_.load(std::memory_order_relaxed) == 0) {
        look_due_us_.store(now_us + kLookUs, std::memory_order_relaxed);  // relaxed: as above
        return;
    }
    const bool is_new = !std::exchange(wants_look_, true);
    room_due_us_.store(0, std::memory_order_relaxed);  // relaxed: as above
    chores_.note();
    if (is_owner_polling_) {
        look_due_us_.store(kNever, std::memory_order_relaxed);  // relaxed: as above
        return;
    }
    // An owner that polls, but not just now, is to be told again that the wire is worth it.
    look_due_us_.store(now_us + kLookUs, std::memory_order_relaxed);  // relaxed: as above
    if (is_new) {
        user_->work_waits();
    }
}

/// Returns: whether the peer may owe something.
bool RdFlows::look_at_peer(Link& link) noexcept {
    RdFlow& flow = *link.flow;
    const std::uint64_t moved = flow.life_signs() + flow.frames();
    if (std::exchange(link.moved, moved) != moved || flow.user_peer_ == nullptr) {
        link.was_idle = false;
        return true;
    }
    // Of a flow that is being left, what has come up since the last look does not move.
    if (!link.was_idle || flow.is_leaving()) {
        link.was_idle = taker_->is_idle(flow.user_peer_);
        if (!link.was_idle) {
            flow.ask_for_life();
        }
    }
    return !link.was_idle;
}

void RdFlows::look_for_silent_locked(std::uint64_t now_us) noexcept {
    bool is_due_again = false;
    for (auto& [id, link] : links_) {
        is_due_again |= link.state == State::kOpen && look_at_peer(link);
    }
    if (is_due_again) {
        look_due_us_.store(now_us + kLookUs, std::memory_order_relaxed);  // relaxed: as above
    }
}

}  // namespace rvt::core
