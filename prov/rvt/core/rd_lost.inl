// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that are lost, or have left: what ends with the connection, and what stays. Included by
// rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

/// The connection is no more: everything that depended on it ends with the given status.
template <class Lock, class Host>
void RdEngine<Lock, Host>::disconnected(Peer& peer, WcStatus status) noexcept {
    match_late();
    const bool was_connected = peer.state == Peer::State::kConnected;
    peer.state = Peer::State::kIdle;
    finish_let_go(peer);
    peer.path.close();
    next_run_to_ = next_run_to_ == &peer ? nullptr : next_run_to_;
    finish_answered_ones(peer);
    std::erase_if(polled_, [&](const Polled& polled) { return polled.peer == &peer; });
    std::erase_if(copiers_, [&](const Copier& copier) { return copier.peer == &peer; });
    count_hot();
    std::erase(remote_, &peer);
    fail_operations(peer, status);
    if (was_connected) {
        fail_inbound(peer);
    }
    peer.replies.clear();
    peer.responses.clear();
    peer.nic_regions.clear();
    peer.knows_nic_keys = false;
    peer.book.clear();
    peer.stream = nullptr;
    peer.is_head_due = false;
    peer.head_for = 0;
    peer.until_head = 0;
    peer.write = {};
    peer.open_access = 0;
    peer.has_refused_segment = false;
    peer.has_keys_view = peer.is_held = peer.has_refused_share = peer.is_gone = false;
    peer.outstanding = peer.outstanding_accesses = peer.rendezvous_due = peer.large_reads = 0;
    peer.is_read_held = false;
    peer.has_quiet_writes = false;
    peer.quiet_writes = 0;
    peer.shares_ahead = 0;
    give_up_if_unknown(peer);
}

/// The outcome of those that the peer has answered is known, and nothing is read of their buffers
/// any more.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_answered_ones(Peer& peer) noexcept {
    while (!peer.lent.is_empty()) {
        RdTxOp& op = *peer.lent.pop();
        if (op.state == RdTxOp::State::kAnswered) {
            finish_tx(op, op.status);
        }
    }
}

/// A connection by which nothing was under way has been closed. What has come up since takes
/// another one.
template <class Lock, class Host>
void RdEngine<Lock, Host>::left(Peer& peer) noexcept {
    if (!has_nothing_under_way(peer)) {
        disconnected(peer, WcStatus::kPeerDead);  // the peer ended before it was through
        return;
    }
    forget_acknowledgements(peer);
    match_late();
    peer.state = Peer::State::kIdle;
    peer.path.close();
    next_run_to_ = next_run_to_ == &peer ? nullptr : next_run_to_;
    std::erase(remote_, &peer);
    peer.nic_regions.clear();
    peer.knows_nic_keys = false;
    peer.is_held = peer.has_refused_share = peer.has_refused_segment = false;
    peer.open_access = 0;
    peer.has_quiet_writes = false;
    peer.quiet_writes = 0;
    const auto begin_anew = [](RdTxOp& op) { op.state = RdTxOp::State::kQueued; };
    for_each_of(peer, tx_messages_, begin_anew);
    for_each_of(peer, tx_accesses_, begin_anew);
    if (peer.has_work()) {
        connect(peer);
    } else {
        give_up_if_unknown(peer);
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_idle(void* peer) noexcept {
    Peer& idle = *static_cast<Peer*>(peer);
    return !idle.has_work() && has_nothing_under_way(idle);
}

/// Visits the records of a pool that name this peer. A pool looks at all that it ever had.
template <class Lock, class Host>
template <class Record, class Visit>
void RdEngine<Lock, Host>::for_each_of(const Peer& peer, util::Pool<Record>& pool,
                                       Visit visit) noexcept {
    if (peer.records == 0) {
        return;
    }
    pool.for_each_taken([&](Record& record) {
        if (record.peer == &peer) {
            visit(record);
        }
    });
}

/// Whether the peer and this endpoint expect nothing of each other. Operations that have not begun
/// to leave do not count.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::has_nothing_under_way(const Peer& peer) noexcept {
    if (peer.outstanding != 0 || peer.outstanding_accesses != 0 || peer.rendezvous_due != 0 ||
        peer.stream != nullptr || peer.is_head_due || peer.write.is_active ||
        !peer.jobs.is_empty() || !peer.lent.is_empty() || !peer.replies.empty() ||
        !peer.responses.empty()) {
        return false;
    }
    bool is_free = true;
    const auto look = [&](const RdTxOp& op) {
        const bool is_whole = op.state == RdTxOp::State::kQueued ||
                              (op.state == RdTxOp::State::kStreaming && op.done == 0 &&
                               op.segment == 0 && op.segment_done == 0);
        is_free &= is_whole;
    };
    for_each_of(peer, tx_messages_, look);
    for_each_of(peer, tx_accesses_, look);
    for_each_of(peer, inbound_, [&](const RdInbound& each) { is_free &= each.is_here(); });
    return is_free;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::fail_operations(Peer& peer, WcStatus status) noexcept {
    peer.queue = {};
    peer.accesses = {};
    peer.jobs = {};
    peer.waiting = peer.fences = peer.write_shares = 0;
    peer.answered_write_shares = 0;
    const auto fail = [&](RdTxOp& op) {
        if (op.is_by_nic && op.state == RdTxOp::State::kWaiting) {
            if (op.status == WcStatus::kSuccess) {
                op.state = RdTxOp::State::kEnding;  // until rdma_ended()
                op.peer = nullptr;
                --peer.records;
                return;
            }
            finish_tx(op, op.status);
            return;
        }
        finish_tx(op, status);
    };
    for_each_of(peer, tx_messages_, fail);
    for_each_of(peer, tx_accesses_, fail);
}

/// Nobody waits any more for those that messages have asked for of which everything is here: who
/// has agreed to an end has asked for none, and who connects from the same address next has
/// operations of the same names.
template <class Lock, class Host>
void RdEngine<Lock, Host>::forget_acknowledgements(const Peer& peer) noexcept {
    for_each_of(peer, inbound_, [](RdInbound& inbound) {
        if (inbound.is_here()) {
            inbound.wire_flags &= static_cast<std::uint8_t>(~wire::kAnyAck);
        }
    });
}

/// Ends the messages of a lost peer: those being received with an error; of the unexpected ones
/// those stay of which everything is here.
template <class Lock, class Host>
void RdEngine<Lock, Host>::fail_inbound(Peer& peer) noexcept {
    if (peer.records == 0) {
        return;
    }
    const auto is_lost = [&peer](const RdInbound& inbound) {
        return inbound.peer == &peer && !inbound.is_here() &&
               inbound.state != RdInbound::State::kEnding;
    };
    unexpected_tagged_.remove_if([&](RdInbound& inbound) { return is_lost(inbound); });
    unexpected_messages_.remove_if([&](RdInbound& inbound) { return is_lost(inbound); });
    std::erase_if(claimed_, [&](const auto& claim) { return is_lost(*claim.second); });
    while (copies_.take([&peer](const RdInbound& copied) { return copied.peer == &peer; })) {
    }
    forget_acknowledgements(peer);
    for_each_of(peer, inbound_, [&](RdInbound& inbound) {
        if (!is_lost(inbound)) {
            return;
        }
        if (inbound.state == RdInbound::State::kFetching) {
            inbound.state = RdInbound::State::kEnding;
        } else {
            end_lost(inbound);
        }
    });
}

/// Ends a message of a lost peer that is in no queue any more.
template <class Lock, class Host>
void RdEngine<Lock, Host>::end_lost(RdInbound& inbound) noexcept {
    pulls_ -= inbound.is_being_pulled() ? 1 : 0;
    if (inbound.entry != nullptr) {
        inbound.status = WcStatus::kPeerDead;
        complete_rx(inbound, *inbound.entry);
        release_entry(*inbound.entry);
    } else if (inbound.state != RdInbound::State::kDiscarding) {
        note_unexpected(-inbound.kept_bytes());
    }
    inbound.storage.reset();
    give_back(inbound);
}

}  // namespace rvt::core
