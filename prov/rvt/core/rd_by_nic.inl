// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large one-sided access to another host, by NICs. The second to a region asks for the key by which
// the target's NIC knows the region (kAskNicKey), and goes in frames like the first: many regions
// are accessed once, and registering one costs more than frames of that size. A very large access
// asks even if it is the first, and waits for the answer. With that key the initiator's NIC reads
// and writes there by itself, whether the target polls or not. Included by rd_engine.h.
//
// The target registers the region, no more than it and with no other rights, when it is first asked
// for. Before fi_close(3) of the region returns, it is deregistered; peers are told (kKeyEnds),
// and who accesses it all the same ends the connection.
//
// Small accesses stay in frames, which keeps them in order (kMaxOrderedRmaSize), and so does what
// brings data for a completion queue. A message that is sent behind a write arrives behind it: both
// are requests of one pair.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

// ---- initiator ----

/// Whether NICs could do the operation, were the region one that they reach.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::may_go_by_nic(const Peer& peer, const RdTxOp& op) const noexcept {
    // Of a key that the application chose nobody knows how long it means the same.
    return peer.path.can_rdma() && !peer.path.has_user_keys() && op.total > kMaxOrderedRmaSize &&
           op.iov_count == 1 && op.remote_count == 1 && !has(op.flags, RdFlags::kData) &&
           (!has(op.flags, RdFlags::kHasUse) || nic_place_of(*op.use) != nullptr);
}

/// Whether the operation, which has not begun, is so large that it waits for the key of its region.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::awaits_nic_key(Peer& peer, const RdTxOp& op) noexcept {
    if (op.total <= kWorthAwaiting || !may_go_by_nic(peer, op)) {
        return false;
    }
    RdNicRegion& region = nic_region_of(peer, op);
    if (region.state < RdNicRegion::State::kAsked) {
        ask_for_nic_key(peer, op, region);
    }
    return region.state != RdNicRegion::State::kAnswered;
}

/// Whether the NIC can do the operation, as far as is known now.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_for_nic(Peer& peer, const RdTxOp& op) noexcept {
    if (!may_go_by_nic(peer, op)) {
        return false;
    }
    RdNicRegion& region = nic_region_of(peer, op);
    if (region.state == RdNicRegion::State::kNew) {
        region.state = RdNicRegion::State::kAccessed;
    } else if (region.state == RdNicRegion::State::kAccessed) {
        ask_for_nic_key(peer, op, region);
    }
    // What is not permitted goes in frames as well: the target refuses it, and says why.
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    return has_all(region.rights, is_write ? Access::kRemoteWrite : Access::kRemoteRead) &&
           region.covers(op.remote.front());
}

/// What is known of the region that the operation accesses, with which it becomes known.
template <class Lock, class Host>
RdNicRegion& RdEngine<Lock, Host>::nic_region_of(Peer& peer, const RdTxOp& op) noexcept {
    const std::uint64_t key = op.remote.front().key;
    if (peer.nic_regions.size() == kMostNicKeys && peer.nic_regions.count(key) == 0) {
        peer.nic_regions.clear();
    }
    return peer.nic_regions[key];
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::ask_for_nic_key(Peer& peer, const RdTxOp& op,
                                           RdNicRegion& region) noexcept {
    const RdAccess access = access_of(op);
    if (peer.path.put(RdOp::kAskNicKey, 0, 0, 0, &access, sizeof access)) {
        region.state = RdNicRegion::State::kAsked;
    }
}

/// Lets the NIC do it, or frames where it does not. Returns: whether the operation has left the
/// queue.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_by_nic(Peer& peer, RdTxOp& op) noexcept {
    const RdRemote& remote = op.remote.front();
    const auto known = peer.nic_regions.find(remote.key);
    Status started = EOPNOTSUPP;
    if (known != peer.nic_regions.end() && known->second.covers(remote)) {  // and still is
        const RdNicRegion& region = known->second;
        const std::uint64_t there = region.nic_address + (remote.addr - region.address);
        started = post_to_nic(peer.path, op, there, region.nic_key);
    }
    if (started == Status(EAGAIN)) {
        return false;
    }
    if (!started.is_ok()) {
        op.is_by_nic = false;
        return start_access(peer, op);
    }
    access_sent(peer, op);
    return true;
}

/// Returns: EAGAIN; EOPNOTSUPP when the NIC does not reach the operation's buffer.
template <class Lock, class Host>
Status RdEngine<Lock, Host>::post_to_nic(Path& path, const RdTxOp& op, std::uint64_t there,
                                         std::uint64_t nic_key) noexcept {
    const std::uint64_t name = util::Pool<RdTxOp>::name_of(op) | kOfAccess;
    const iovec& here = op.iov.front();
    // Of a device's memory the NIC knows another name.
    const auto* const place = has(op.flags, RdFlags::kHasUse) ? op.use->nic_place() : nullptr;
    if (op.kind == RdTxOp::Kind::kWrite) {
        return place != nullptr ? path.write(*place, op.total, there, nic_key, name)
                                : path.write(here, there, nic_key, name);
    }
    const bool is_asked = place != nullptr ? path.fetch(*place, op.total, there, nic_key, name)
                                           : path.fetch(here, there, nic_key, name);
    return is_asked ? util::kOk : Status(EOPNOTSUPP);
}

/// The NIC has done something, for a message or for an access.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_rdma_done(Peer& peer, const Arrival& arrival) noexcept {
    if ((arrival.data() & kOfAccess) == 0) {
        return on_message_fetched(peer, arrival.data());
    }
    RdTxOp* const op = tx_accesses_.find(arrival.data() & ~kOfAccess);
    if (op == nullptr || op->peer != &peer || !op->is_by_nic ||
        op->state != RdTxOp::State::kWaiting) {
        return false;
    }
    if (peer.path.wants_rma_events()) {
        const RdAccess access = access_of(*op);
        reply(peer, RdOp::kRmaEvent, event_flags(*op), 0, &access, sizeof access);
    }
    op->is_placed = has(op->flags, RdFlags::kHasUse);
    answered(peer, *op, WcStatus::kSuccess);
    return true;
}

/// The NIC does not do it, and is not at its memory any more. The connection has ended, or is about
/// to.
template <class Lock, class Host>
void RdEngine<Lock, Host>::rdma_ended(std::uint64_t name, WcStatus status) noexcept {
    if ((name & kOfAccess) == 0) {
        message_fetch_ended(name);
        return;
    }
    RdTxOp* const op = tx_accesses_.find(name & ~kOfAccess);
    if (op == nullptr || !op->is_by_nic) {
        return;
    }
    op->status = status;
    if (op->state == RdTxOp::State::kEnding) {
        finish_tx(*op, status);
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_nic_key(Peer& peer, const Arrival& arrival) noexcept {
    RdNicKey answer;
    if (arrival.length() != sizeof answer) {
        return false;
    }
    arrival.copy_payload(&answer, sizeof answer);
    const auto asked = peer.nic_regions.find(answer.key);
    // Else forgotten meanwhile, or never asked for.
    if (asked != peer.nic_regions.end() && asked->second.state == RdNicRegion::State::kAsked) {
        asked->second = {.address = answer.address,
                         .length = answer.length,
                         .nic_address = answer.nic_address,
                         .nic_key = answer.nic_key,
                         .rights = static_cast<Access>(answer.rights),
                         .state = RdNicRegion::State::kAnswered};
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_key_ends(Peer& peer, const Arrival& arrival) noexcept {
    peer.nic_regions.erase(arrival.data());
    peer.book.erase(static_cast<std::uint32_t>(arrival.data()));
    return true;
}

// ---- target ----

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_ask_nic_key(Peer& peer, const Arrival& arrival) noexcept {
    RdAccess asked;
    if (arrival.length() != sizeof asked) {
        return false;
    }
    arrival.copy_payload(&asked, sizeof asked);
    const RdNicKey answer = expose(peer, asked);
    reply(peer, RdOp::kNicKey, 0, 0, &answer, sizeof answer);
    return true;
}

/// Lets the peer's NIC reach the region that an access is for, if ours can. Returns: without rights
/// where it cannot.
template <class Lock, class Host>
RdNicKey RdEngine<Lock, Host>::expose(Peer& peer, const RdAccess& asked) noexcept {
    RdNicKey answer{};
    answer.key = asked.key;
    const ReadPin pin(pin_);
    const KeyHit hit = asked.length != 0 ? lookup(asked, Access::kNone) : KeyHit{};
    if (!hit.is_ok() || keys_.has_user_keys || !peer.path.can_rdma()) {
        return answer;
    }
    DeviceMemory* const device = hit.indirect ? memory_of(hit).device : nullptr;
    const bool has_several_buffers = hit.indirect && device == nullptr;
    if (has_several_buffers || (device != nullptr && !keys_.has_p2p)) {
        return answer;
    }
    const auto key = static_cast<std::uint32_t>(asked.key);
    const util::Result<KeyRegion> region = keys_.table->view().region(key, keys_.pd, Access::kNone);
    const util::Result<Access> allowed = keys_.table->view().access_of(key, keys_.pd);
    if (!region.is_ok() || !allowed.is_ok()) {
        return answer;
    }
    const Access rights = allowed.value() & (Access::kRemoteRead | Access::kRemoteWrite);
    if (rights == Access::kNone) {
        return answer;
    }
    const KeyRegion& whole = region.value();
    const iovec memory =
        device != nullptr
            ? memory_of(hit).segments.front()
            // NOLINTNEXTLINE(performance-no-int-to-ptr): of this process
            : iovec{reinterpret_cast<void*>(whole.base), static_cast<std::size_t>(whole.length)};
    const util::Result<std::uint32_t> nic_key = peer.path.expose(key, memory, rights, device);
    if (nic_key.is_ok()) {
        peer.knows_nic_keys = true;
        answer = {.key = asked.key,
                  .address = asked.address - hit.offset,
                  .length = whole.length,
                  .nic_address = reinterpret_cast<std::uint64_t>(memory.iov_base),
                  .nic_key = nic_key.value(),
                  .rights = static_cast<std::uint32_t>(rights)};
    }
    return answer;
}

}  // namespace rvt::core
