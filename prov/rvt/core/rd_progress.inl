// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Progress: who is looked at and when, what is sent from queues, and going to sleep. Included by
// rd_engine.h.
#pragma once

#include <utility>

#include "core/rd_engine.h"

namespace rvt::core {

/// Looks for arrived work once. The caller holds the lock. Two functions, which this jumps to: none
/// saves registers for the other.
template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::progress_locked() noexcept {
    return hot_count_ > 1 ? progress_many() : progress_one();
}

/// Where there is one peer, or none.
template <class Lock, class Host>
[[gnu::noinline]] unsigned RdEngine<Lock, Host>::progress_one() noexcept {
    unsigned moved = station_.note_poll();
    if (hot_count_ != 0) [[likely]] {
        moved += poll_peer(*polled_[0].peer);
    }
    if (moved == 0 && next_run_to_ != nullptr) [[unlikely]] {
        prepare_next_run();
    }
    return progress_rest(moved);
}

template <class Lock, class Host>
[[gnu::noinline]] unsigned RdEngine<Lock, Host>::progress_many() noexcept {
    const unsigned moved = station_.note_poll();
    return progress_rest(moved + poll_many());
}

/// What there is to do beside looking at peers. Returns: `moved`, and how much else was done.
template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::progress_rest(unsigned moved) noexcept {
    if (late_count_ != 0) [[unlikely]] {
        match_late();
        ++moved;
    }
    if (!busy_.empty() || !copies_.is_empty()) [[unlikely]] {
        moved += run_busy();
    }
    // relaxed: only whether there is mail; read_mail() takes it with acquire.
    if (mail_.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
        read_mail();
        ++moved;
    }
    return moved;
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::poll_path(Peer& peer) noexcept {
    return peer.path.poll(
        kPollBudget,
        [this, &peer](const LineArrival& line)
            RVT_ALWAYS_INLINE_LAMBDA { return on_eager(peer, line); },
        [this, &peer](const Arrival& arrival) { return handle(peer, arrival); });
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::poll_peer(Peer& peer) noexcept {
    const unsigned moved = poll_path(peer);
    if (peer.path.is_broken()) [[unlikely]] {
        retire(peer);
    }
    return moved;
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::progress_any() noexcept {
    return capture_.is_on() ? progress_captured() : progress_locked();
}

/// progress_locked() of an endpoint whose arrivals are captured.
template <class Lock, class Host>
[[gnu::cold]] unsigned RdEngine<Lock, Host>::progress_captured() noexcept {
    unsigned moved = station_.note_poll();
    for (std::size_t i = 0; i < polled_.size(); ++i) {
        Peer& peer = *polled_[i].peer;
        moved += peer.path.poll(
            kPollBudget,
            [this, &peer](const LineArrival& line) {
                return handle_captured(peer, Arrival(message_of(line)));
            },
            [this, &peer](const Arrival& arrival) { return handle_captured(peer, arrival); });
        polled_[i].look = peer.path.look();
        if (peer.path.is_broken()) {
            retire(peer);
        }
    }
    moved = progress_rest(moved);
    if (capture_.is_on()) {
        capture_.flush_when_idle();
    }
    return moved;
}

/// Takes the way of a message that came by a wire, so that the one for rings stays as it is.
template <class Lock, class Host>
[[gnu::cold]] bool RdEngine<Lock, Host>::handle_captured(Peer& peer,
                                                         const Arrival& arrival) noexcept {
    const bool runs = has_run(arrival.op());
    const std::size_t bytes = runs ? record_rule(arrival.op()).max_payload
                                   : std::min<std::size_t>(arrival.length(), Path::kMaxLinePayload);
    std::array<std::byte, Path::kMaxLinePayload> payload;
    arrival.copy_payload(payload.data(), bytes);
    const RdMessage message{.op = arrival.op(),
                            .flags = arrival.flags(),
                            .length = arrival.length(),
                            .tag = arrival.tag(),
                            .data = arrival.data(),
                            .payload = payload.data(),
                            .payload_bytes = bytes,
                            .run = runs ? arrival.run() : nullptr};
    capture_.received(to_address(peer.address), message);
    return take_whole(peer, message);
}

template <class Lock, class Host>
[[gnu::noinline]] bool RdEngine<Lock, Host>::take_whole(Peer& peer,
                                                        const RdMessage& message) noexcept {
    return handle(peer, Arrival(message));
}

/// A message that came by a wire.
template <class Lock, class Host>
void RdEngine<Lock, Host>::take_message(void* peer, const RdMessage& message) noexcept {
    Peer& from = *static_cast<Peer*>(peer);
    if (!take_whole(from, message)) [[unlikely]] {
        retire(from);
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::take_eager(void* peer, RdEagerHead head, std::uint64_t tag,
                                      std::uint64_t data, const std::byte* payload) noexcept {
    Peer& from = *static_cast<Peer*>(peer);
    if (!on_eager(from, RdEager(head, tag, data, payload))) [[unlikely]] {
        retire(from);
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::take_malformed(void* peer) noexcept {
    retire(*static_cast<Peer*>(peer));
}

/// A look at many peers.
template <class Lock, class Host>
struct RdEngine<Lock, Host>::Scan {
    bool has_begun = false;      // with who has sent last
    std::uint32_t next = 0;      // of the first kHotPeers
    std::size_t cold_looks = 0;  // that are left
    bool is_cold = false;        // all of the first have been looked at
};

/// The next peer that has sent something, of those that were active lately, and of a few of the
/// others in rotation. Each look takes one cache line that is seldom in the cache of a busy core,
/// no more. Who has sent last is looked at first and among the others: of many peers it is the one
/// that is likely to send next. Returns: nullptr when all looks have been taken.
/// @param has_moved  Whether this scan has found something.
template <class Lock, class Host>
RVT_ALWAYS_INLINE auto RdEngine<Lock, Host>::next_arrival(Scan& scan, bool has_moved) noexcept
    -> Polled* {
    if (!std::exchange(scan.has_begun, true) && polled_[latest_].look.has_arrival()) {
        return &polled_[latest_];
    }
    while (scan.next < hot_count_) {
        Polled& polled = polled_[scan.next++];
        if (polled.look.has_arrival()) {
            latest_ = scan.next - 1;
            return &polled;
        }
    }
    return polled_.size() > kHotPeers ? next_cold_arrival(scan, has_moved) : nullptr;
}

/// Who has sent something moves to the front.
template <class Lock, class Host>
[[gnu::noinline]] auto RdEngine<Lock, Host>::next_cold_arrival(Scan& scan, bool has_moved) noexcept
    -> Polled* {
    const std::size_t count = polled_.size();
    if (!std::exchange(scan.is_cold, true)) {
        // Who has nothing to do looks further: the next call may be a turn of the scheduler away.
        scan.cold_looks = std::min(count - kHotPeers, has_moved ? kColdLooks : kColdLooksIdle);
    }
    for (; scan.cold_looks != 0; --scan.cold_looks) {
        if (scan.cold_looks % kColdLooksInRow == 0 && polled_[latest_].look.has_arrival()) {
            --scan.cold_looks;
            return &polled_[latest_];
        }
        rotation_ = rotation_ + 1 < count ? rotation_ + 1 : kHotPeers;
        if (polled_[rotation_].look.has_arrival()) {
            // The one that became hot first gives way.
            victim_ = (victim_ + 1) % kHotPeers;
            std::swap(polled_[victim_], polled_[rotation_]);
            --scan.cold_looks;
            latest_ = victim_;
            return &polled_[victim_];
        }
    }
    return nullptr;
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE unsigned RdEngine<Lock, Host>::poll_many() noexcept {
    unsigned moved = 0;
    Scan scan;
    const Polled* const latest = &polled_[latest_];
    bool is_turn_of_others = false;
    while (Polled* const polled = next_arrival(scan, moved != 0)) {
        Peer& peer = *polled->peer;
        moved += poll_path(peer);
        polled->look = peer.path.look();
        if (peer.path.is_broken()) [[unlikely]] {
            retire(peer);  // `polled` is another one's now
        }
        // The application waits for this, not for looks at the many who are quiet.
        if (polled == latest && polled_.size() > kHotPeers && !is_turn_of_others) {
            is_turn_of_others = ++hits_ % kHitsInRow == 0;
            if (!is_turn_of_others) {
                return moved;
            }
        }
    }
    if (moved == 0 && next_run_to_ != nullptr) {
        prepare_next_run();
    }
    return moved;
}

/// There is nothing to do now.
template <class Lock, class Host>
[[gnu::noinline]] void RdEngine<Lock, Host>::prepare_next_run() noexcept {
    Peer& peer = *next_run_to_;
    if (!peer.path.is_peer_busy()) {
        peer.path.prepare_run();
    } else if (!peer.path.prepare_run_if_drained()) {
        return;
    }
    next_run_to_ = nullptr;
}

/// Ends the connection to a peer that sent what no honest peer sends, or what there is no memory
/// for.
template <class Lock, class Host>
[[gnu::cold]] void RdEngine<Lock, Host>::retire(Peer& peer) noexcept {
    station_.close_link(peer.link, std::exchange(lacks_memory_, false)
                                       ? "there is no memory for a message that it sent"
                                       : "it sent a malformed message");
    disconnected(peer, WcStatus::kPeerDead);
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::make_busy(Peer& peer) noexcept {
    peer.waits_for_room = false;
    if (!peer.is_busy) {
        peer.is_busy = true;
        busy_.push_back(&peer);
        has_busy_.store(true, std::memory_order_relaxed);  // relaxed: see control_send()
        station_.wake_sleepers();
    }
}

/// Sends what waits. Returns: how many peers or copies went on.
template <class Lock, class Host>
[[gnu::noinline]] unsigned RdEngine<Lock, Host>::run_busy() noexcept {
    station_.note_long_work();
    unsigned moved = run_copies();
    for (std::size_t i = 0; i < busy_.size();) {
        Peer& peer = *busy_[i];
        moved += run_peer(peer) ? 1 : 0;
        if (peer.state == Peer::State::kConnected && peer.has_work()) {
            ++i;
        } else {
            peer.is_busy = false;
            busy_[i] = busy_.back();
            busy_.pop_back();
            has_busy_.store(!busy_.empty(), std::memory_order_relaxed);  // relaxed: as above
        }
    }
    return moved;
}

/// Whether an operation that has just not gone on lacks room. One that this process copies by
/// itself can always go on.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::lacks_room(Peer& peer, const RdTxOp& op) noexcept {
    return peer.path.take_lack_of_room() && !op.is_direct;
}

/// Sends what waits for one peer: replies first, then data it asked for, then new operations.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_peer(Peer& peer) noexcept {
    if (peer.state != Peer::State::kConnected) {
        return false;
    }
    peer.path.take_lack_of_room();
    peer.waits_for_room = false;
    bool has_moved = finish_let_go(peer);
    while (!peer.replies.empty()) {
        const RdReply& next = peer.replies.front();
        if (!peer.path.put_control(next.op, next.flags, next.tag, next.data, next.payload.data(),
                                   next.count)) {
            peer.waits_for_room = peer.path.take_lack_of_room();
            return has_moved;
        }
        peer.replies.pop_front();
        has_moved = true;
    }
    bool waits_for_room = true;  // whatever is left
    while (!peer.responses.empty() && run_response(peer, peer.responses.front())) {
        peer.responses.pop_front();
        has_moved = true;
    }
    waits_for_room &= peer.responses.empty() || peer.path.take_lack_of_room();
    if (RdTxOp* const op = peer.jobs.front()) {
        has_moved |= run_job(peer, *op);
        waits_for_room &= peer.jobs.is_empty() || lacks_room(peer, *peer.jobs.front());
    }
    if (peer.has_queued()) {
        const std::uint32_t before = peer.waiting;
        run_queues(peer);
        has_moved |= peer.waiting != before;
        waits_for_room &= !peer.may_leave() || lacks_room(peer, *peer.first_to_leave());
    }
    peer.waits_for_room = waits_for_room && peer.lent.is_empty() && peer.has_work_now();
    return has_moved;
}

/// Sends a reply of one line, now or before anything else to that peer.
template <class Lock, class Host>
void RdEngine<Lock, Host>::reply(Peer& peer, RdOp op, std::uint8_t flags, std::uint64_t data,
                                 const void* payload, std::size_t count) noexcept {
    if (peer.replies.empty() && peer.path.put_control(op, flags, 0, data, payload, count))
        [[likely]] {
        return;
    }
    RdReply& late = peer.replies.emplace_back();
    late.op = op;
    late.flags = flags;
    late.data = data;
    late.count = static_cast<std::uint8_t>(count);
    std::memcpy(late.payload.data(), payload, count);
    make_busy(peer);
}

// ---- sleeping ----

/// Whether the target has a part of an access to do, or to take.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_access_due(Peer& peer) noexcept {
    return !peer.has_no_access() || peer.has_begun_in_line() || !are_quiet_writes_done(peer);
}

/// Targets that polled when they were asked for their part in an access, and have ceased to: their
/// control threads do it, if somebody says so.
template <class Lock, class Host>
void RdEngine<Lock, Host>::remind_peers_locked() noexcept {
    if (!has_accessed_) {
        return;
    }
    bool is_any_due = false;
    for (const Polled& polled : polled_) {
        Peer& peer = *polled.peer;
        const bool is_due = is_access_due(peer);
        is_any_due |= is_due;
        if (is_due && peer.path.must_wake_peer()) {
            station_.wake_peer(peer.link);
        }
    }
    // What waits for a peer to be met, or behind a fence, sets it when it begins to leave.
    has_accessed_ = is_any_due;
}

/// Whether a target does its part in an access itself, but may cease to poll in the middle of it
/// and would have to be reminded then.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::must_watch_targets() noexcept {
    return has_accessed_ && std::ranges::any_of(polled_, [](const Polled& polled) {
               return is_access_due(*polled.peer) && polled.peer->path.must_watch_peer();
           });
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::arm_locked() noexcept {
    if (must_watch_targets()) {
        return EAGAIN;
    }
    const bool is_armed = station_.arm(!polled_.empty(), wants_room()).is_ok();
    if (!is_armed || has_work()) {
        station_.give_back_wake();
        return EAGAIN;
    }
    remind_peers_locked();
    return util::kOk;
}

/// Whether there is something to do that no descriptor tells of, or that came before arming.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::has_work() const noexcept {
    bool has_work = !copies_.is_empty() || late_count_ != 0;
    // relaxed: as in progress_locked(); the control thread wakes wake_fd() after it has pushed.
    has_work = has_work || mail_.load(std::memory_order_relaxed) != nullptr;
    const bool has_looks = polled_.size() > 1;  // that of one peer alone is not kept
    for (const Polled& polled : polled_) {
        has_work =
            has_work || (has_looks ? polled.look.has_arrival() : polled.peer->path.has_arrival());
    }
    for (const Peer* const peer : busy_) {
        const bool is_stuck = peer->waits_for_room && !peer->path.has_new_credits();
        has_work = has_work || (peer->has_work_now() && !is_stuck);
    }
    return has_work;
}

/// Whether a peer that returns credits is to wake who sleeps.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::wants_room() const noexcept {
    return std::ranges::any_of(busy_, [](const Peer* peer) { return peer->waits_for_room; });
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::control_arm() noexcept {
    if (!lock_.try_lock_control()) {
        return false;
    }
    station_.arm_for_control(!polled_.empty());
    // It serves who does not wait: to be woken for each bit of room would slow that down.
    const bool is_armed = !has_work() && !wants_room();
    if (!is_armed) {
        station_.give_back_wake();
        station_.disarm_for_control();
    }
    lock_.unlock_control();
    return is_armed;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::control_progress() noexcept {
    if (!lock_.try_lock_control()) {
        return false;
    }
    station_.disarm();
    progress_uncounted();
    lock_.unlock_control();
    return true;
}

/// Progress that does not count as a poll of the application.
template <class Lock, class Host>
void RdEngine<Lock, Host>::progress_uncounted() noexcept {
    const auto polling = station_.polling();
    for (unsigned i = 0; i < kControlRounds && progress_any() != 0; ++i) {
    }
    station_.restore(polling);
}

// ---- sending for an application that does not poll ----

template <class Lock, class Host>
bool RdEngine<Lock, Host>::has_unsent_locked() const noexcept {
    // relaxed: as in progress_locked().
    const bool has_mail = mail_.load(std::memory_order_relaxed) != nullptr;
    const auto may_go = [](const auto& peer) {
        return peer != nullptr && peer->state == Peer::State::kConnecting && peer->waiting != 0;
    };
    return !busy_.empty() || (has_mail && std::ranges::any_of(peers_, may_go));
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::send_waiting_locked() noexcept {
    if (has_unsent_locked()) {
        progress_uncounted();
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::control_send() noexcept {
    // relaxed: the owner has left a poll or a call long ago, or makes it in vain to look. To claim
    // the lock interrupts the application.
    if (mail_.load(std::memory_order_relaxed) == nullptr &&
        !has_busy_.load(std::memory_order_relaxed)) {
        return false;
    }
    if (!lock_.try_lock_control()) {
        return true;
    }
    send_waiting_locked();
    const bool is_left = !busy_.empty();
    lock_.unlock_control();
    return is_left;
}

}  // namespace rvt::core
