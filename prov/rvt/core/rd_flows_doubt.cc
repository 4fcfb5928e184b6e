// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Word that a peer is gone: from its host, or from who has its address now, or says so. That
// packets do not get through. And a silence that was this process's own.
#include <algorithm>
#include <utility>

#include "core/addresses.h"
#include "core/missed_pair.h"
#include "core/path_probe.h"
#include "core/qp.h"
#include "core/rd_flows.h"
#include "util/log.h"

namespace rvt::core {
namespace {

// Anybody can send word that a peer is gone. It is believed when the peer gives no sign of life for
// so long though something is under way to it.
constexpr std::uint64_t kDoubtUs = 200'000;
/// By so much a process that runs looks late.
constexpr std::uint64_t kLongestDelayUs = 500'000;

}  // namespace

void RdFlows::take_mad(const Address& source,
                       std::span<const std::byte, protocol::kMadBytes> mad) noexcept {
    if (const auto qpn = read_missed(mad)) {
        peer_refused(source, *qpn);
        return;
    }
    const util::Guard guard(lock_);
    agent_->take_mad(source, mad, device_.now_us());
    cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: read by this thread
}

void RdFlows::peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept {
    const util::Guard guard(lock_);
    heed_stop_locked(device_.now_us());
    Link* const link = at_locked(peer);
    const bool is_request = dest_qpn == protocol::kGsiQpn || dest_qpn == kProbeQpn;
    if (link == nullptr || link->is_refused ||
        link->state != (is_request ? State::kDialing : State::kOpen)) {
        return;  // known, or of a time before the peer was there
    }
    if (!is_request && link->flow->qp_->attr().dest_qpn != dest_qpn) {
        return;  // of the flow before this one
    }
    link->is_refused = true;
    const std::uint64_t now = device_.now_us();
    if (is_request) {
        // It may be just starting.
        set_deadline_locked(*link, std::min(link->deadline_us, now + refused_timeout_us_));
    } else {
        set_deadline_locked(*link, now + kDoubtUs);
        link->flow->ask_for_life();
        link->life_signs = link->flow->life_signs();
    }
    cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: read by this thread
}

/// Says so to the peer: it would try for a minute.
void RdFlows::pair_missed(const Address& source, std::uint32_t qpn) noexcept {
    const util::Guard guard(lock_);
    if (at_locked(source) != nullptr ||
        !notices_.may_tell(AddressHash()(source), device_.now_us())) {
        return;
    }
    send_missed(device_, source, qpn);
    note_packets();
}

/// Both ends have agreed on the size of a flow's packets and cannot go on with another: one that
/// does not get through ends, and the next one has smaller packets.
void RdFlows::path_narrowed(const Address& host) noexcept {
    const util::Guard guard(lock_);
    for (auto& [id, link] : links_) {
        const Address& peer = link.flow->address_;
        if (link.state != State::kOpen || link.flow->is_over_nic() || !peer.has_gid_of(host)) {
            continue;
        }
        const std::uint32_t most = device_.payload_to(peer);
        if (link.flow->payload_bytes_ > most) {
            RVT_WARN(kEpCtrl,
                     "the connection to %s ends: the way there takes packets of %u bytes by now, "
                     "and these carry %u; the next one has smaller packets",
                     to_sock_addr(peer).to_string().c_str(), most, link.flow->payload_bytes_);
            end_locked(link);
        }
    }
}

/// Nobody has looked when that was due: this process was stopped, and the peers maybe with it. All
/// deadlines move by so much, and each who is waited for has a moment to speak. That is once: who
/// runs for moments alone gives up at some time, too.
void RdFlows::heed_stop_locked(std::uint64_t now_us) {
    if (planned_us_ == kNever || now_us < planned_us_ + kLongestDelayUs) {
        return;
    }
    const std::uint64_t stopped_us = now_us - std::exchange(planned_us_, kNever);
    const auto put_off = [&](std::uint64_t& due_us, bool& had_moment) {
        due_us += stopped_us;
        if (!std::exchange(had_moment, true)) {
            due_us = std::max(due_us, now_us + kDeadlineLookUs);
        }
    };
    for (auto& [id, link] : links_) {
        put_off(link.deadline_us, link.had_moment);
    }
    for (Waiting& one : for_room_) {
        if (one.is_ours) {
            put_off(one.until_us, one.had_moment);
        }
    }
    deadline_us_ = now_us;  // to look at them anew
}

/// What is said of an open link's peer is true, or forgotten.
void RdFlows::resolve_doubt_locked(Link& link) {
    link.is_refused = false;
    if (link.flow->life_signs() == link.life_signs && !link.flow->is_drained()) {
        end_locked(link);
    }
}

/// The link to who asks for a flow at the address of an open one's peer, as another process. It may
/// be one that has ended, whose request comes late: that its answer arrives shows that it is there.
RdFlows::Link* RdFlows::successor_locked(const Link& link) {
    Link* const successor = find_locked(link.successor);
    return successor != nullptr && successor->state == State::kAccepted ? successor : nullptr;
}

void RdFlows::drop_successor_locked(const Link& link) {
    if (Link* const successor = successor_locked(link)) {
        drop_locked(*successor);
    }
}

/// The link's peer is there: who was at its address before is not.
void RdFlows::succeed_locked(const Link& link) {
    Link* const before = at_locked(link.flow->address_);
    if (before != nullptr && before != &link) {
        end_locked(*before);  // which leaves its place to this one
    }
}

}  // namespace rvt::core
