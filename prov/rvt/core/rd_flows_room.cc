// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Room for further flows: what waits for it, and which of the open ones are asked to end.
#include <algorithm>
#include <utility>

#include "core/rd_flows.h"

namespace rvt::core {
namespace {

// One flow is asked at a time, for each that is wanted; one that does not answer, because its
// peer's owner does not poll, is not waited for.
constexpr std::uint64_t kAskPauseUs = 200;
constexpr std::uint64_t kAnswerUs = 5000;
// A peer without room is asked again after about so long.
constexpr std::uint64_t kRetryUs = 4000;
// A peer that was turned away and still wants a flow asks again within so long.
constexpr std::uint64_t kPeerWantsUs = 16'000;
constexpr std::size_t kMostWaiting = 1024;

}  // namespace

/// Whether there is room for a flow to this peer, beside those for whom there is not and who came
/// before it.
bool RdFlows::has_turn_locked(const Address& peer) const {
    const std::uint64_t now = device_.now_us();
    std::size_t taken = by_address_.size();
    for (const Waiting& one : for_room_) {
        if (one.peer == peer) {
            break;
        }
        taken += now >= one.from_us ? 1 : 0;
    }
    return taken < max_flows_;
}

/// Keeps a wish until there is room. Returns: false when no flow could make it.
bool RdFlows::wish_locked(const Address& peer) {
    if (by_address_.empty() && is_short_) {
        return false;
    }
    if (!is_wished_locked(peer)) {
        const std::uint64_t now = device_.now_us();
        for_room_.push_back({.peer = peer, .is_ours = true, .until_us = now + connect_timeout_us_});
        want_room_locked(now);
    }
    return true;
}

bool RdFlows::is_wished_locked(const Address& peer) const {
    return std::any_of(for_room_.begin(), for_room_.end(),
                       [&](const Waiting& one) { return one.is_ours && one.peer == peer; });
}

/// Keeps the turn of a peer until it asks again.
void RdFlows::turn_away_locked(const Address& peer) {
    const std::uint64_t now = device_.now_us();
    const auto known = std::find_if(for_room_.begin(), for_room_.end(), [&](const Waiting& one) {
        return !one.is_ours && one.peer == peer;
    });
    if (known != for_room_.end()) {
        known->until_us = now + kPeerWantsUs;
    } else if (for_room_.size() < kMostWaiting) {
        for_room_.push_back({.peer = peer, .is_ours = false, .until_us = now + kPeerWantsUs});
    }
    want_room_locked(now);
    if (!is_owner_polling_) {
        user_->work_waits();  // only the owner knows which flows are idle
    }
}

/// A flow to this peer is being made.
void RdFlows::forget_waiting_locked(const Address& peer) {
    std::erase_if(for_room_, [&](const Waiting& one) { return one.peer == peer; });
}

std::uint64_t RdFlows::wish_due_locked() const {
    const std::uint64_t now = device_.now_us();
    std::uint64_t due = kNever;
    for (const Waiting& one : for_room_) {
        const std::uint64_t next = now < one.from_us ? one.from_us : one.until_us;
        due = one.is_ours ? std::min({due, next, now + kDeadlineLookUs}) : due;
    }
    return due;
}

void RdFlows::want_room_locked(std::uint64_t now_us) {
    // relaxed: read again under the lock; the same for cm_due_us_, which learns of the deadline.
    room_due_us_.store(std::min(room_due_us_.load(std::memory_order_relaxed), now_us),
                       std::memory_order_relaxed);
    cm_due_us_.store(0, std::memory_order_relaxed);
    chores_.note();
    note_packets();
}

/// The peer has no room. While it makes some, the place is free for others: of several that wait
/// for each other in a ring nobody would get one. Not all come back together.
void RdFlows::pause_locked(Link& link) {
    const std::uint64_t now = device_.now_us();
    const Waiting waiting{.peer = link.flow->address_,
                          .is_ours = true,
                          .until_us = link.deadline_us,
                          .from_us = now + kRetryUs / 2 + random_locked() % kRetryUs};
    if (std::exchange(link.is_wanted, false)) {
        for_room_.push_back(waiting);
        want_room_locked(now);
    }
    drop_locked(link);
}

void RdFlows::grant_wishes_locked(std::uint64_t now_us) {
    heed_stop_locked(now_us);
    for (std::size_t i = 0; i < for_room_.size();) {
        const Waiting one = for_room_[i];
        const bool may_try = one.is_ours && now_us >= one.from_us && now_us < one.until_us;
        const auto added = may_try ? add_to_dial_locked(one.peer) : Result<Link*>(ENOMEM);
        if (added.is_ok()) {
            added.value()->is_wanted = true;
            set_deadline_locked(*added.value(), one.until_us);
            dial_locked(*added.value());
        } else if (now_us >= one.until_us || (one.is_ours && is_short_ && by_address_.empty())) {
            for_room_.erase(for_room_.begin() + static_cast<std::ptrdiff_t>(i));
            if (one.is_ours) {
                user_->connect_failed(one.peer, ENOMEM);
            }
        } else {
            ++i;
        }
    }
}

/// Asks flows to end, as many as are wanted, and looks for silent peers when that is due.
void RdFlows::make_room() noexcept {
    // relaxed: what is wanted right now is seen at the next call.
    const std::uint64_t due = room_due_us_.load(std::memory_order_relaxed);
    if (due == kNever) [[likely]] {
        return;
    }
    const std::uint64_t now = device_.now_us();
    if (now < due) {
        return;
    }
    const util::Guard guard(lock_);
    if (std::exchange(wants_look_, false)) {
        look_for_silent_locked(now);
    }
    grant_wishes_locked(now);
    const std::size_t free =
        is_short_ || by_address_.size() >= max_flows_ ? 0 : max_flows_ - by_address_.size();
    const auto ready = static_cast<std::size_t>(
        std::count_if(for_room_.begin(), for_room_.end(),
                      [&](const Waiting& one) { return now >= one.from_us; }));
    const std::size_t wanted = ready - std::min(ready, free);
    std::size_t leaving = 0;
    Link* const idle = wanted == 0 ? nullptr : longest_idle_locked(now, leaving);
    if (idle != nullptr && leaving < wanted && idle->flow->ask_to_leave()) {
        idle->asked_us = now;
    }
    // relaxed: under the lock.
    room_due_us_.store(for_room_.empty() ? kNever : now + kAskPauseUs, std::memory_order_relaxed);
}

/// @param leaving  Set to how many others have been asked just now.
RdFlows::Link* RdFlows::longest_idle_locked(std::uint64_t now_us, std::size_t& leaving) {
    Link* longest = nullptr;
    std::uint64_t longest_us = kNever;
    for (auto& [id, link] : links_) {
        RdFlow& flow = *link.flow;
        if (link.state != State::kOpen) {
            continue;
        }
        if (flow.is_leaving()) {
            leaving += now_us - link.asked_us < kAnswerUs ? 1 : 0;
            continue;
        }
        // relaxed: see RdFlow::note_use().
        const std::uint64_t used_us = flow.used_us_.load(std::memory_order_relaxed);
        const bool is_older = longest == nullptr || used_us < longest_us;
        if (is_older && flow.user_peer_ != nullptr && !flow.has_waiting() && flow.is_drained() &&
            taker_->is_idle(flow.user_peer_)) {
            longest = &link;
            longest_us = used_us;
        }
    }
    return longest;
}

/// Closes what both ends have agreed upon.
void RdFlows::close_left() noexcept {
    if (left_.empty()) [[likely]] {
        return;
    }
    const util::Guard guard(lock_);
    for (RdFlow* const flow : left_) {
        if (Link* const link = find_locked(flow->id())) {
            end_locked(*link);
        }
    }
    left_.clear();
}

}  // namespace rvt::core
