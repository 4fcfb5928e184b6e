// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Making and ending flows: what the communication manager reports, and what follows.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/addresses.h"
#include "core/packet_flow.h"
#include "core/path_probe.h"
#include "core/qp.h"
#include "core/rd_flows.h"
#include "core/rd_greeting.h"
#include "util/log.h"

namespace rvt::core {
namespace {

// A request is sent again after so long; when all of them are lost another one is made, until the
// time for the connection is over.
constexpr std::uint32_t kResponseUs = 60'000;
constexpr std::uint8_t kCmRetries = 15;

// The pair of a flow. A peer that has no room says so and is asked again for ever; one that does
// not answer at all is given up after eight time-outs of 8.6 seconds: its process may be stopped.
constexpr std::uint8_t kAckTimeout = 21;
// A NIC answers for a process that is stopped; a peer that does not is gone after 2 s.
constexpr std::uint8_t kNicAckTimeout = 16;
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kNicRetries = 6;  // rxe of the kernel takes 7 for any number
// What requests name instead decides how long an ended connection is remembered.
constexpr std::uint8_t kTimeWait = 12;  // 17 ms
constexpr std::uint8_t kRnrTimer = 12;  // 0.64 ms
// Small messages of one frame, where the frame is not a packet.
constexpr std::uint32_t kNicFill = 4096;

bool is_lower(const Address& a, const Address& b) noexcept {
    return a.gid != b.gid ? a.gid < b.gid : a.port < b.port;
}

}  // namespace

// ---- the table of links ----

RdFlows::Link* RdFlows::find_locked(std::uint64_t id) {
    const auto found = links_.find(id);
    return found == links_.end() ? nullptr : &found->second;
}

RdFlows::Link* RdFlows::at_locked(const Address& peer) {
    const auto found = by_address_.find(peer);
    return found == by_address_.end() ? nullptr : find_locked(found->second);
}

std::uint64_t RdFlows::random_locked() noexcept {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_;
}

bool RdFlows::is_before(const Address& peer) const noexcept {
    return is_lower(device_.address(), peer);
}

/// A link with a pair in state INIT.
Result<RdFlows::Link*> RdFlows::add_locked(const Address& peer, Place place, bool over_nic) {
    if (place == Place::kOwn && !has_turn_locked(peer)) {
        return ENOMEM;
    }
    const std::uint64_t id = next_id_++;
    auto flow = std::make_unique<RdFlow>(*this, id, peer);
    const auto made = make_pair(*flow, over_nic);
    is_short_ = !made.is_ok() && !over_nic;
    if (!made.is_ok()) {
        return made.status();
    }
    forget_waiting_locked(peer);
    Link& link = links_[id];
    link.flow = std::move(flow);
    link.own_port = made.value();
    link.psn = static_cast<std::uint32_t>(random_locked() >> 40);
    if (place == Place::kNext) {
        at_locked(peer)->successor = id;
    } else {
        by_address_[peer] = id;
    }
    return &link;
}

/// Returns: where the peer finds it. A port of InfiniBand is asked for each flow anew, since it may
/// have got another LID.
Result<IbPort> RdFlows::make_nic_pair_locked(RdFlow& flow) {
    flow.nic_ = nic_.get();
    const auto port = nic_->port();
    if (!port.is_ok()) {
        RVT_INFO(kEpCtrl, "NIC %s has no port for a flow now: %s; packets will do",
                 nic_->device().name().c_str(), strerrordesc_np(port.status().error()));
    }
    Status made = port.is_ok() ? flow.ring_.open(RdFrameRing::kLeastBytes) : port.status();
    if (made.is_ok()) {
        made = nic_->register_frames({flow.ring_.base(), flow.ring_.bytes()}, flow.ring_region_);
    }
    if (made.is_ok()) {
        made = nic_->make_pair(flow, port.value(), flow.qp_);
    }
    return made.is_ok() ? port : Result<IbPort>(made);
}

Result<IbPort> RdFlows::make_pair(RdFlow& flow, bool over_nic) {
    const util::Guard guard(flow.lock_);
    if (over_nic) {
        return make_nic_pair_locked(flow);
    }
    if (Status status = flow.ring_.open(); !status.is_ok()) {
        return status;
    }
    Status made = keep(flow.qp_, create_qp(*pd_, {.type = QpType::kRc,
                                                  .send_cq = cq_.get(),
                                                  .recv_cq = cq_.get(),
                                                  .sink = &flow,
                                                  .cap = {.max_send_wr = RdFrameRing::kMaxFrames,
                                                          .max_recv_wr = 0,
                                                          .max_send_sge = RdOpenFrame::kMaxSge,
                                                          .max_recv_sge = 0,
                                                          .max_inline_bytes = 0}}));
    if (made.is_ok()) {
        made = flow.qp_->modify({.state = QpState::kInit}, QpMask::kState | QpMask::kPkeyIndex |
                                                               QpMask::kPort | QpMask::kAccess);
    }
    return made.is_ok() ? Result<IbPort>(IbPort{}) : Result<IbPort>(made);
}

/// READs that the flow's pair answers at a time, and may have outstanding.
std::uint8_t RdFlows::reads_of(const RdFlow& flow) noexcept {
    return flow.is_over_nic() ? flow.nic_->device().limits().max_rd_atomic : std::uint8_t{0};
}

CmPair RdFlows::own_pair(const Link& link) noexcept {
    const std::uint8_t reads = reads_of(*link.flow);
    return {.qpn = link.flow->qp_->qpn(),
            .starting_psn = link.psn,
            .responder_resources = reads,
            .initiator_depth = reads};
}

/// Takes the pair to RTS, with what the peer has said of its own.
Status RdFlows::connect_pair_locked(Link& link, const CmEvent& event) {
    RdFlow& flow = *link.flow;
    const IbPort peer_port =
        flow.is_over_nic() ? read_greeting_port(event.private_data()) : IbPort{};
    if (why_apart(link.own_port, peer_port) != nullptr) {
        return EHOSTUNREACH;
    }
    const std::uint32_t peer_bytes = read_greeting(event.private_data()).payload_bytes;
    const std::uint32_t path_bytes = std::min(peer_bytes, link.payload_bytes);
    flow.set_packet(flow.is_over_nic() ? kNicFill : path_bytes / kPayloadStep * kPayloadStep);
    const QpAttr attr{
        .state = QpState::kRtr,
        .ah = way_between(link.own_port, peer_port, flow.address_),
        .dest_qpn = event.remote.qpn,
        .rq_psn = link.psn,
        .path_mtu_bytes = flow.is_over_nic() ? mtu_within(path_bytes) : flow.payload_bytes_,
        .max_dest_rd_atomic = reads_of(flow),
        .min_rnr_timer = kRnrTimer};
    Status status = flow.qp_->modify(attr, QpMask::kState | QpMask::kAv | QpMask::kPathMtu |
                                               QpMask::kDestQpn | QpMask::kRqPsn |
                                               QpMask::kMaxDestRdAtomic | QpMask::kMinRnrTimer);
    if (status.is_ok()) {
        status = flow.qp_->modify(
            {.state = QpState::kRts,
             .sq_psn = event.remote.starting_psn,
             .max_rd_atomic = std::min(reads_of(flow), event.remote.responder_resources),
             .timeout = flow.is_over_nic() ? kNicAckTimeout : kAckTimeout,
             .retry_cnt = flow.is_over_nic() ? kNicRetries : kRetries,
             .rnr_retry = kRnrRetryForEver},
            QpMask::kState | QpMask::kTimeout | QpMask::kRetryCnt | QpMask::kRnrRetry |
                QpMask::kSqPsn | QpMask::kMaxRdAtomic);
    }
    return status;
}

/// Of the largest packet to the peer.
std::uint32_t RdFlows::own_payload(const Link& link) const noexcept {
    if (!link.flow->is_over_nic()) {
        return device_.payload_to(link.flow->address_);
    }
    const std::uint32_t most = nic_->device().payload_bytes();
    return link.own_port.lid != 0 ? std::min<std::uint32_t>(most, link.own_port.mtu_bytes) : most;
}

/// What the peer is told, which decides how large the link's packets may be.
std::array<std::byte, RdFlows::kGreetingBytes> RdFlows::own_greeting_locked(Link& link) {
    static_assert(kGreetingBytes == sizeof(RdGreetingMessage));
    const RdFlow& flow = *link.flow;
    link.payload_bytes = own_payload(link);
    const RdGreeting greeting{.flags = static_cast<std::uint8_t>(
                                  (own_.has_user_keys ? RdGreeting::kUserKeys : 0) |
                                  (own_.wants_rma_events ? RdGreeting::kRmaEvents : 0) |
                                  (flow.is_over_nic() ? RdGreeting::kNic : 0) |
                                  (flow.is_over_nic() && nic_->can_rdma() ? RdGreeting::kRdma : 0) |
                                  (link.own_port.lid != 0 ? RdGreeting::kIb : 0)),
                              .payload_bytes = static_cast<std::uint16_t>(link.payload_bytes),
                              .incarnation = own_.incarnation,
                              .dials = dials_};
    return std::bit_cast<std::array<std::byte, kGreetingBytes>>(
        RdGreetingMessage{.greeting = greeting, .port = to_greeting_port(link.own_port)});
}

/// Keeps what the peer has said of itself.
void RdFlows::note_greeting(Link& link, const CmEvent& event) noexcept {
    const RdGreeting greeting = read_greeting(event.private_data());
    link.flow->peer_ = greeting.peer();
    link.flow->peer_.can_rdma &= event.remote.responder_resources != 0;
    link.peer_dials = greeting.dials;
}

// ---- the owner's wishes ----

void RdFlows::connect(const Address& peer) {
    const util::Guard guard(lock_);
    heed_stop_locked(device_.now_us());
    if (Link* const known = at_locked(peer)) {
        known->is_wanted = known->state != State::kOpen;
        if (known->state == State::kAccepted) {
            known->deadline_us = device_.now_us() + connect_timeout_us_;
        }
        note_traffic();
        return;  // it is on its way, or the user is about to hear of it
    }
    const auto added = add_to_dial_locked(peer);
    if (!added.is_ok()) {
        if (!wish_locked(peer)) {
            user_->connect_failed(peer, added.status().error());
        }
        return;
    }
    added.value()->is_wanted = true;
    set_deadline_locked(*added.value(), device_.now_us() + connect_timeout_us_);
    dial_locked(*added.value());
}

/// By the NIC, if there is one with room; the peer may have none.
Result<RdFlows::Link*> RdFlows::add_to_dial_locked(const Address& peer) {
    if (nic_ != nullptr) {
        auto added = add_locked(peer, Place::kOwn, true);
        if (added.is_ok()) {
            return added;
        }
    }
    return add_locked(peer, Place::kOwn, false);
}

/// In the place of a link to the same peer.
/// @param over_nic  If the NIC carries it: it may have no room.
void RdFlows::dial_in_place_locked(const Address& peer, bool over_nic, bool is_wanted,
                                   std::uint64_t until_us) {
    auto added = add_locked(peer, Place::kOfAnother, over_nic);
    if (!added.is_ok() && over_nic) {
        added = add_locked(peer, Place::kOfAnother, false);
    }
    if (!added.is_ok()) {
        if (is_wanted) {
            user_->connect_failed(peer, added.status().error());
        }
        return;
    }
    added.value()->is_wanted = is_wanted;
    set_deadline_locked(*added.value(), until_us);
    dial_locked(*added.value());
}

/// A link that comes to nothing gives way to a new one.
void RdFlows::dial_anew_locked(Link& link, bool over_nic) {
    const bool is_wanted = std::exchange(link.is_wanted, false);
    const Address peer = link.flow->address_;
    const std::uint64_t until_us = link.deadline_us;
    drop_locked(link);
    dial_in_place_locked(peer, over_nic, is_wanted, until_us);
}

/// Of a request of the peer's that we have answered nothing comes: the answer was too late for it.
/// Who wants the flow here asks for it, then, as the peer may do meanwhile.
void RdFlows::ask_instead_locked(Link& link, int error) {
    if (link.is_wanted && device_.now_us() < link.deadline_us) {
        dial_anew_locked(link, link.flow->is_over_nic());
    } else {
        fail_locked(link, error);
    }
}

void RdFlows::dial_locked(Link& link) {
    ++dials_;
    const auto greeting = own_greeting_locked(link);
    link.state = State::kDialing;
    const auto handle = agent_->connect({.service_id = kRdServiceId,
                                         .dest = {.dest = link.flow->address_},
                                         .own = own_pair(link),
                                         .path_mtu_bytes = device_.mtu_bytes(),
                                         .retry_cnt = kRetries,
                                         .local_ack_timeout = kTimeWait,
                                         .response_timeout_us = kResponseUs,
                                         .max_cm_retries = kCmRetries,
                                         .context = link.flow->id(),
                                         .private_data = greeting},
                                        device_.now_us());
    if (!handle.is_ok()) {
        fail_locked(link, handle.status().error());
        return;
    }
    link.handle = handle.value();
    if (!link.flow->is_over_nic()) {
        // Behind the request: of a host that tells seldom that nobody listens it is what matters.
        send_path_probe(device_, link.flow->address_, link.payload_bytes);
    }
    cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: a hint to who polls
    note_packets();
}

void RdFlows::close(RdFlow& flow) noexcept {
    const util::Guard guard(lock_);
    flow.is_closed_ = true;
    flow.drop_open();
    if (!flow.is_over_nic()) {
        abandon_sending(*flow.qp_);
    } else {
        // What the peer may have read until now is the application's again.
        [[maybe_unused]] const Status ended =
            flow.qp_->modify({.state = QpState::kErr}, QpMask::kState);
    }
    Link* const link = find_locked(flow.id());
    if (link == nullptr) {
        return;
    }
    drop_locked(*link);
}

// ---- the communication manager ----

void RdFlows::send_mad(const AhAttr& to, CmMadBytes mad) noexcept {
    core::send_mad(device_, to.dest, mad.first<protocol::kMadBytes>());
}

/// Runs timers and takes events; there may be some.
void RdFlows::look_at_cm() noexcept {
    read_nic();
    const util::Guard guard(lock_);
    run_cm_locked();
}

void RdFlows::run_cm_locked() {
    const std::uint64_t now = device_.now_us();
    heed_stop_locked(now);
    for (const RdFlow* const flow : waiting_) {
        Link* const link = find_locked(flow->id());
        if (link != nullptr && link->state == State::kAccepted) {
            [[maybe_unused]] const Status known = agent_->note_traffic(link->handle, now);
        }
    }
    agent_->run_timers(now);
    while (const auto event = agent_->poll_event()) {
        on_event_locked(*event);
    }
    check_deadlines_locked(now);
    grant_wishes_locked(now);
    const std::uint64_t due =
        std::min({agent_->next_due_us().value_or(kNever), deadline_us_, wish_due_locked()});
    planned_us_ = due;
    cm_due_us_.store(due, std::memory_order_relaxed);  // relaxed: under the lock
}

void RdFlows::on_event_locked(const CmEvent& event) {
    if (event.type == CmEventType::kRequest) {
        on_request_locked(event);
        return;
    }
    Link* const link = find_locked(event.context);
    if (link == nullptr || link->handle != event.handle) {
        return;  // of a link that is gone
    }
    switch (event.type) {
        case CmEventType::kReply: on_reply_locked(*link, event); break;
        case CmEventType::kEstablished: opened_locked(*link); break;
        case CmEventType::kRejected: on_rejected_locked(*link, event); break;
        case CmEventType::kUnreachable:
            if (link->state != State::kDialing) {
                ask_instead_locked(*link, ETIMEDOUT);
            } else if (device_.now_us() < link->deadline_us) {
                dial_locked(*link);
            } else {
                fail_locked(*link, link->is_refused ? ECONNREFUSED : ETIMEDOUT);
            }
            break;
        case CmEventType::kDisconnected: end_locked(*link); break;
        case CmEventType::kRequest:
        case CmEventType::kSidrRequest:
        case CmEventType::kSidrReply: break;
    }
}

// ---- passive side ----

void RdFlows::refuse_locked(const CmEvent& event, std::uint8_t why) {
    const std::byte code{why};
    [[maybe_unused]] const Status refused = agent_->reject(
        event.handle, protocol::CmRejectReason::kConsumer, {&code, 1}, device_.now_us());
}

/// Whether a pair of our NIC and the one that the peer names would find each other.
bool RdFlows::can_meet(const CmEvent& event) const noexcept {
    if (nic_ == nullptr) {
        return false;
    }
    const auto own = nic_->port();
    const char* const why = own.is_ok()
                                ? why_apart(own.value(), read_greeting_port(event.private_data()))
                                : strerrordesc_np(own.status().error());
    if (why != nullptr) {
        RVT_INFO(kEpCtrl, "the NIC of %s is not reached by this host's: %s; packets will do",
                 to_sock_addr(event.peer).to_string().c_str(), why);
    }
    return why == nullptr;
}

void RdFlows::on_request_locked(const CmEvent& event) {
    const RdGreeting greeting = read_greeting(event.private_data());
    if (event.transport != QpType::kRc || !greeting.is_ours()) {
        RVT_INFO(kEpCtrl, "refuse a connection: the peer speaks another version");
        refuse_locked(event, static_cast<std::uint8_t>(RdRefused::kVersion));
        return;
    }
    if (greeting.names_nic() && !can_meet(event)) {
        refuse_locked(event, static_cast<std::uint8_t>(RdRefused::kNoNic));  // it asks again
        return;
    }
    Link* const known = at_locked(event.peer);
    const std::uint64_t until_us = device_.now_us() + connect_timeout_us_;
    if (known == nullptr) {
        accept_locked(event, false, Place::kOwn, until_us);
        return;
    }
    if (known->state == State::kDialing) {
        is_there_locked(*known);
    }
    const auto is_of_former_attempt = [&](const Link* link) {
        const bool is_answered =
            link != nullptr && (link->state == State::kAccepted || link->state == State::kOpen);
        return is_answered && greeting.is_late(link->flow->peer_, link->peer_dials);
    };
    if ((known->state == State::kDialing && is_lower(device_.address(), event.peer)) ||
        is_of_former_attempt(known) || is_of_former_attempt(successor_locked(*known))) {
        refuse_locked(event, static_cast<std::uint8_t>(RdRefused::kCrossing));
        return;
    }
    drop_successor_locked(*known);
    if (known->state == State::kOpen && known->flow->peer_.incarnation != greeting.incarnation) {
        accept_locked(event, false, Place::kNext, until_us);
        return;
    }
    const bool is_wanted = std::exchange(known->is_wanted, false);
    const std::uint64_t wanted_until_us = is_wanted ? known->deadline_us : until_us;
    known->state == State::kOpen ? end_locked(*known) : drop_locked(*known);
    accept_locked(event, is_wanted, Place::kOfAnother, wanted_until_us);
}

/// @param until_us  So long the flow is wanted, if it is.
void RdFlows::accept_locked(const CmEvent& event, bool is_wanted, Place place,
                            std::uint64_t until_us) {
    is_wanted |= is_wished_locked(event.peer);
    const bool over_nic = read_greeting(event.private_data()).names_nic();
    const auto added = add_locked(event.peer, place, over_nic);
    if (!added.is_ok() && over_nic) {
        refuse_locked(event, static_cast<std::uint8_t>(RdRefused::kNoNic));
        if (is_wanted) {
            dial_in_place_locked(event.peer, false, true, until_us);
        }
        return;
    }
    if (!added.is_ok()) {
        turn_away_locked(event.peer);
        [[maybe_unused]] const Status refused = agent_->reject(
            event.handle, protocol::CmRejectReason::kNoResources, {}, device_.now_us());
        if (is_wanted && !wish_locked(event.peer)) {
            user_->connect_failed(event.peer, added.status().error());
        }
        return;
    }
    Link& link = *added.value();
    link.is_wanted = is_wanted;
    link.deadline_us = until_us;
    link.state = State::kAccepted;
    link.handle = event.handle;
    note_greeting(link, event);
    const auto greeting = own_greeting_locked(link);
    Status status = connect_pair_locked(link, event);
    if (!status.is_ok() && over_nic) {
        refuse_locked(event, static_cast<std::uint8_t>(RdRefused::kNoNic));
        link.is_wanted ? dial_anew_locked(link, false) : retire_locked(link);
        return;
    }
    if (status.is_ok()) {
        status = agent_->accept(
            event.handle,
            {.own = own_pair(link), .context = link.flow->id(), .private_data = greeting},
            device_.now_us());
    }
    if (!status.is_ok()) {
        fail_locked(link, status.error());
    }
}

// ---- active side ----

/// Whether a router has said since the request that packets of the agreed size do not get through.
bool RdFlows::is_too_large_locked(const Link& link, std::uint32_t peer_bytes) const {
    return !link.flow->is_over_nic() &&
           std::min(peer_bytes, link.payload_bytes) > device_.payload_to(link.flow->address_);
}

void RdFlows::on_reply_locked(Link& link, const CmEvent& event) {
    const RdGreeting greeting = read_greeting(event.private_data());
    // A peer of another version may not have understood what was asked of it.
    const bool is_fit = greeting.is_ours() && greeting.names_nic() == link.flow->is_over_nic();
    if (is_fit && is_too_large_locked(link, greeting.payload_bytes)) {
        RVT_INFO(kEpCtrl, "the way to %s is narrower than the interface; smaller packets will do",
                 to_sock_addr(link.flow->address_).to_string().c_str());
        dial_anew_locked(link, false);
        return;
    }
    Status status = is_fit ? connect_pair_locked(link, event) : Status(EPROTO);
    if (!status.is_ok() && link.flow->is_over_nic()) {
        RVT_INFO(kEpCtrl, "the NIC does not carry a connection: %s; packets will do",
                 strerrordesc_np(status.error()));
        dial_anew_locked(link, false);
        return;
    }
    if (status.is_ok()) {
        status = agent_->establish(link.handle, {}, device_.now_us());
    }
    if (!status.is_ok()) {
        fail_locked(link, status.error());
        return;
    }
    note_greeting(link, event);
    opened_locked(link);
}

/// The peer itself has spoken, whatever its host has said, or has not: it was just starting. Of the
/// two that ask each other one has yielded, and waits for what the other one asks from now on.
void RdFlows::is_there_locked(Link& link) {
    link.is_refused = false;
    set_deadline_locked(link, std::max(link.deadline_us, device_.now_us() + connect_timeout_us_));
}

void RdFlows::on_rejected_locked(Link& link, const CmEvent& event) {
    using enum protocol::CmRejectReason;
    if (link.state != State::kDialing) {
        ask_instead_locked(link, ECONNREFUSED);
        return;
    }
    const auto code = static_cast<RdRefused>(
        event.private_data().empty() ? 0 : std::to_integer<int>(event.private_data()[0]));
    if (event.reason == kConsumer && code == RdRefused::kCrossing) {
        link.state = State::kYielded;
        is_there_locked(link);
    } else if (event.reason == kConsumer && code == RdRefused::kNoNic && link.flow->is_over_nic()) {
        dial_anew_locked(link, false);
    } else if ((event.reason == kStaleConnection || event.reason == kTimeout) &&
               device_.now_us() < link.deadline_us) {
        dial_locked(link);
    } else if (event.reason == kNoResources && device_.now_us() < link.deadline_us) {
        pause_locked(link);
    } else if (event.reason == kConsumer && code == RdRefused::kVersion) {
        RVT_WARN(kEpCtrl, "a peer's rvt is of another version; all hosts need the same one");
        fail_locked(link, EPROTO);
    } else {
        RVT_INFO(kEpCtrl, "a peer refuses the connection: %s", protocol::to_string(event.reason));
        fail_locked(link, event.reason == kConsumer ? EPROTO : ECONNREFUSED);
    }
}

void RdFlows::set_deadline_locked(Link& link, std::uint64_t due_us) {
    link.deadline_us = due_us;
    link.had_moment = false;
    deadline_us_ = std::min({deadline_us_, due_us, device_.now_us() + kDeadlineLookUs});
}

/// Gives up what has not come about in time. Links are looked at only while one waits for that.
void RdFlows::check_deadlines_locked(std::uint64_t now_us) {
    if (now_us < deadline_us_) {
        return;
    }
    deadline_us_ = kNever;
    for (auto& [id, link] : links_) {
        if (!has_deadline(link)) {
            continue;
        }
        if (now_us < link.deadline_us) {
            deadline_us_ = std::min({deadline_us_, link.deadline_us, now_us + kDeadlineLookUs});
        } else if (link.state == State::kOpen) {
            resolve_doubt_locked(link);
        } else {
            fail_locked(link, link.is_refused ? ECONNREFUSED : ETIMEDOUT);
        }
    }
}

// ---- both ----

void RdFlows::opened_locked(Link& link) {
    if (link.state != State::kOpen) {
        succeed_locked(link);
        link.state = State::kOpen;
        link.is_wanted = link.is_refused = false;
        tell(*link.flow, false);
    }
}

/// A connection that is not open comes to nothing.
void RdFlows::fail_locked(Link& link, int error) {
    if (std::exchange(link.is_wanted, false)) {
        user_->connect_failed(link.flow->address_, error);
    }
    drop_locked(link);
}

void RdFlows::drop_locked(Link& link) {
    hang_up_locked(link);
    retire_locked(link);
}

/// A flow carries nothing any more.
void RdFlows::end_locked(Link& link) {
    if (link.state != State::kOpen) {
        return;
    }
    hang_up_locked(link);
    link.state = State::kEnded;
    link.flow->has_left_ = link.flow->end_leaving();
    forget_address_locked(link);
    tell(*link.flow, true);
}

/// Tells the peer, if that is not how we know.
void RdFlows::hang_up_locked(Link& link) {
    [[maybe_unused]] const Status told = agent_->disconnect(link.handle, {}, device_.now_us());
    cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: a hint to who polls
    note_packets();
}

/// Nobody needs the link any more; the owner destroys it.
void RdFlows::retire_locked(Link& link) {
    forget_address_locked(link);
    link.state = State::kClosed;
    closed_.push_back(link.flow->id());
    has_closed_.store(true, std::memory_order_relaxed);  // relaxed: read again under the lock
    chores_.note();
}

void RdFlows::forget_address_locked(const Link& link) {
    const auto found = by_address_.find(link.flow->address_);
    if (found == by_address_.end() || found->second != link.flow->id()) {
        return;
    }
    if (const Link* const successor = successor_locked(link)) {
        found->second = successor->flow->id();
    } else {
        by_address_.erase(found);
    }
}

}  // namespace rvt::core
