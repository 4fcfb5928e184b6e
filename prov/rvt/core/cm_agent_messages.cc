// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What arrives at queue pair 1. Every message may be a duplicate, late, forged or of a peer that
// has restarted; one that does not fit is answered where its sender would else wait, and counted.
#include "core/cm_agent.h"

#include <algorithm>

namespace rvt::core {
namespace {

using protocol::CmRejectReason;
using protocol::CmSubject;

/// Requests are not taken in while this many events for each that may be open wait to be read.
constexpr std::size_t kEventsPerRequest = 4;

/// Of the default partition, full member or limited.
constexpr bool is_default_pkey(std::uint16_t pkey) noexcept {
    return (pkey & 0x7fff) == 0x7fff;
}

void add_data(CmEvent& event, std::span<const std::byte> data) noexcept {
    event.private_bytes = static_cast<std::uint8_t>(data.size());
    std::copy(data.begin(), data.end(), event.private_storage.begin());
}

/// The private data of a request. Precondition: the header of an IP service can be read.
void add_request_data(CmEvent& event, std::span<const std::byte> data) noexcept {
    if (protocol::is_ip_service(event.service_id)) {
        event.ip = protocol::decode_ip_cm(data.first<protocol::kIpCmHeaderBytes>()).value();
        data = data.subspan(protocol::kIpCmHeaderBytes);
    }
    add_data(event, data);
}

bool has_readable_data(std::uint64_t service_id, std::span<const std::byte> data) noexcept {
    return !protocol::is_ip_service(service_id) ||
           protocol::decode_ip_cm(data.first<protocol::kIpCmHeaderBytes>()).is_ok();
}

/// What a REQ or a REP says of its sender's pair.
template <class Message>
CmPair pair_of(const Message& message) noexcept {
    return {.qpn = message.qpn,
            .starting_psn = message.starting_psn,
            .responder_resources = message.responder_resources,
            .initiator_depth = message.initiator_depth,
            .rnr_retry = message.rnr_retry,
            .has_srq = message.has_srq,
            .has_flow_control = message.has_flow_control};
}

protocol::CmRej refusal_of(const protocol::CmReq& req, CmRejectReason reason) noexcept {
    return {.remote_comm_id = req.local_comm_id, .subject = CmSubject::kReq, .reason = reason};
}
protocol::CmRej refusal_of(const protocol::CmRep& rep, CmRejectReason reason) noexcept {
    return {.local_comm_id = rep.remote_comm_id,
            .remote_comm_id = rep.local_comm_id,
            .subject = CmSubject::kRep,
            .reason = reason};
}

}  // namespace

void CmAgent::take_mad(const Address& from, std::span<const std::byte> mad, std::uint64_t now_us) {
    now_us_ = now_us;
    const Result<protocol::CmMad> decoded = protocol::decode_cm(mad);
    if (!decoded.is_ok()) {
        ++stats_.malformed;
        return;
    }
    const std::uint64_t transaction_id = decoded.value().transaction_id;
    std::visit([&](const auto& message) { take(from, transaction_id, message); },
               decoded.value().message);
}

/// The record of which both ends' ids are those that a peer names.
CmRecord* CmAgent::find_exact(const Address& from, std::uint32_t local_id,
                              std::uint32_t remote_id) {
    CmRecord* record = records_.find_local(local_id, from);
    return record != nullptr && record->remote_id == remote_id ? record : nullptr;
}

// ---- REQ ----

void CmAgent::take(const Address& from, std::uint64_t transaction_id, const protocol::CmReq& req) {
    CmRecord* known = records_.find_remote(CmNumber::kCommId, req.local_comm_id, from);
    if (known != nullptr) {
        repeat_answer(*known, transaction_id, req);
        return;
    }
    // Packets of the connection would go to that address: a third party's, perhaps.
    if (req.primary.local_gid != from.gid) {
        ++stats_.malformed;
        return;
    }
    const auto objection = objection_to(req);
    if (objection.has_value()) {
        protocol::CmRej rej = refusal_of(req, *objection);
        if (*objection == CmRejectReason::kPrimaryGid) {
            rej.info_bytes = static_cast<std::uint8_t>(config_.local.gid.size());
            std::transform(config_.local.gid.begin(), config_.local.gid.end(), rej.info.begin(),
                           [](std::uint8_t byte) { return std::byte{byte}; });
        }
        send_once({.dest = from}, transaction_id, rej);
        return;
    }
    if (is_of_answered_pair(from, req)) {
        ++stats_.duplicates;
        return;
    }
    if (end_predecessor(from, req.qpn)) {
        send_once({.dest = from}, transaction_id,
                  refusal_of(req, CmRejectReason::kStaleConnection));
        return;
    }
    const auto context = listener_of(req.service_id);
    if (!context.has_value()) {
        send_once({.dest = from}, transaction_id,
                  refusal_of(req, CmRejectReason::kInvalidServiceId));
        return;
    }
    begin_request(from, transaction_id, req, *context);
}

std::optional<CmRejectReason> CmAgent::objection_to(const protocol::CmReq& req) const {
    if (req.transport != protocol::CmTransport::kRc &&
        req.transport != protocol::CmTransport::kUc) {
        return CmRejectReason::kInvalidTransport;
    }
    if (req.primary.remote_gid != config_.local.gid) {
        return CmRejectReason::kPrimaryGid;
    }
    const bool is_usable =
        is_default_pkey(req.pkey) && has_readable_data(req.service_id, req.private_data);
    return is_usable ? std::nullopt : std::optional(CmRejectReason::kUnsupportedRequest);
}

void CmAgent::begin_request(const Address& from, std::uint64_t transaction_id,
                            const protocol::CmReq& req, std::uint64_t context) {
    CmRecord* record = has_room_for_request() ? records_.create(CmState::kReqReceived) : nullptr;
    if (record == nullptr) {
        ++stats_.half_open_refused;
        return;
    }
    record->has_alternate = req.alternate != protocol::CmPath{};
    record->peer = {.dest = from};
    record->context = context;
    record->service_id = req.service_id;
    record->remote_id = req.local_comm_id;
    record->remote_qpn = req.qpn;
    record->remote_psn = req.starting_psn;
    record->remote_guid = req.ca_guid;
    record->transaction_id = transaction_id;
    record->max_retries = req.max_cm_retries;
    set_timing(*record, req.local_response_timeout, req.primary.local_ack_timeout);
    records_.add_remote(*record, CmNumber::kCommId);
    records_.add_remote(*record, CmNumber::kQpn);

    CmEvent& event = report(*record, CmEventType::kRequest);
    event.remote = pair_of(req);
    event.ca_guid = req.ca_guid;
    event.transport = req.transport == protocol::CmTransport::kRc ? QpType::kRc : QpType::kUc;
    event.path_mtu_bytes = protocol::mtu_bytes(req.path_mtu);
    event.retry_cnt = req.retry_count;
    event.local_ack_timeout = req.primary.local_ack_timeout;
    event.service_level = req.primary.service_level;
    event.hop_limit = req.primary.hop_limit;
    event.traffic_class = req.primary.traffic_class;
    event.flow_label = req.primary.flow_label;
    add_request_data(event, req.private_data);
}

bool CmAgent::has_room_for_request() const noexcept {
    return records_.half_open_count() < config_.max_half_open &&
           events_.size() < kEventsPerRequest * config_.max_half_open;
}

std::optional<std::uint64_t> CmAgent::listener_of(std::uint64_t service_id) const {
    const auto at = listeners_.find(service_id);
    return at != listeners_.end() ? at->second : listener_for_any_;
}

/// A request that the peer has sent before, or one with an id that it should not have used again.
void CmAgent::repeat_answer(CmRecord& record, std::uint64_t transaction_id,
                            const protocol::CmReq& req) {
    ++stats_.duplicates;
    const bool is_same = !record.is_active && record.remote_qpn == req.qpn &&
                         record.remote_psn == req.starting_psn &&
                         record.service_id == req.service_id;
    if (!is_same) {
        send_once({.dest = record.peer.dest}, transaction_id,
                  refusal_of(req, CmRejectReason::kDuplicateCommId));
        return;
    }
    const bool is_over = record.state == CmState::kDreqSent || record.state == CmState::kTimeWait;
    if (is_over) {
        send_once(record.peer, transaction_id, refusal_of(req, CmRejectReason::kStaleConnection));
        return;
    }
    if (record.state == CmState::kRepSent || record.state == CmState::kRefused ||
        record.is_delayed) {
        send_again(record);
    }
}

/// A peer that gets no answer asks again, for the same pair with another id. When one of those has
/// been answered, another is an attempt before it that comes late. Should it be one behind it, the
/// peer refuses the answer, which is repeated until then, and the attempt is taken when it is
/// repeated. Who has restarted names another packet number, or is another device.
bool CmAgent::is_of_answered_pair(const Address& from, const protocol::CmReq& req) {
    const CmRecord* known = records_.find_remote(CmNumber::kQpn, req.qpn, from);
    return known != nullptr && !known->is_active && known->remote_psn == req.starting_psn &&
           known->remote_guid == req.ca_guid && known->service_id == req.service_id &&
           (known->state == CmState::kRepSent || known->state == CmState::kEstablished);
}

/// The peer shows a pair that it has used before: what was connected to it, or about to be, is
/// over. Who was connected is sent away once (12.9.8.3.1), so that it waits for this side's end of
/// it; an attempt only gives way to the next.
/// Returns: whether that was connected.
bool CmAgent::end_predecessor(const Address& from, std::uint32_t remote_qpn) {
    CmRecord* old = records_.find_remote(CmNumber::kQpn, remote_qpn, from);
    if (old == nullptr) {
        return false;
    }
    if (old->state != CmState::kEstablished) {
        report_end(*old, CmEventType::kRejected).reason = CmRejectReason::kStaleConnection;
        enter_time_wait(*old);
        return false;
    }
    ++stats_.stale;
    report_end(*old, CmEventType::kDisconnected).end = CmEnd::kRestarted;
    begin_disconnect(*old, {}, old->max_retries);
    return true;
}

// ---- answers to a REQ ----

void CmAgent::take(const Address& from, std::uint64_t transaction_id, const protocol::CmRep& rep) {
    CmRecord* record = records_.find_local(rep.remote_comm_id, from);
    const bool is_wanted = record != nullptr && record->is_active &&
                           record->state != CmState::kTimeWait &&
                           record->state != CmState::kSidrSent;
    if (!is_wanted) {
        // Without a word the peer would wait for its RTU until its last time-out.
        ++stats_.unmatched;
        send_once({.dest = from}, transaction_id, refusal_of(rep, CmRejectReason::kInvalidCommId));
        return;
    }
    if (record->state != CmState::kReqSent) {
        repeat_answer(*record, transaction_id, rep);
        return;
    }
    records_.disarm(*record);
    const bool was_connected = end_predecessor(from, rep.qpn);
    record->remote_id = rep.local_comm_id;
    record->remote_qpn = rep.qpn;
    records_.add_remote(*record, CmNumber::kCommId);
    if (was_connected) {
        send_once(record->peer, transaction_id, refusal_of(rep, CmRejectReason::kStaleConnection));
        report_end(*record, CmEventType::kRejected).reason = CmRejectReason::kStaleConnection;
        enter_time_wait(*record);
        return;
    }
    records_.add_remote(*record, CmNumber::kQpn);
    records_.set_state(*record, CmState::kRepReceived);
    CmEvent& event = report(*record, CmEventType::kReply);
    event.remote = pair_of(rep);
    event.ca_guid = rep.ca_guid;
    event.target_ack_delay = rep.target_ack_delay;
    add_data(event, rep.private_data);
}

void CmAgent::repeat_answer(CmRecord& record, std::uint64_t transaction_id,
                            const protocol::CmRep& rep) {
    ++stats_.duplicates;
    if (record.remote_id != rep.local_comm_id) {
        send_once(record.peer, transaction_id,
                  refusal_of(rep, CmRejectReason::kInvalidCommInstance));
        return;
    }
    if (record.state == CmState::kEstablished || record.is_delayed) {
        send_again(record);
    }
}

void CmAgent::take(const Address& from, std::uint64_t /*transaction_id*/,
                   const protocol::CmMra& mra) {
    CmRecord* record = mra.subject == CmSubject::kReq
                           ? records_.find_local(mra.remote_comm_id, from)
                           : find_exact(from, mra.remote_comm_id, mra.local_comm_id);
    const CmState awaited = mra.subject == CmSubject::kReq ? CmState::kReqSent : CmState::kRepSent;
    if (record == nullptr || record->state != awaited) {
        ++stats_.unmatched;
        return;
    }
    wait_longer(*record, protocol::cm_timeout_us(std::min(mra.service_timeout, kMostDelay)));
}

CmRecord* CmAgent::find_rejected(const Address& from, const protocol::CmRej& rej) {
    if (rej.remote_comm_id == 0) {
        // The peer gives up before it has learned this side's id.
        CmRecord* record = records_.find_remote(CmNumber::kCommId, rej.local_comm_id, from);
        const bool is_offered =
            record != nullptr && !record->is_active &&
            (record->state == CmState::kReqReceived || record->state == CmState::kRepSent);
        return is_offered ? record : nullptr;
    }
    // Who refuses a request need not have an id.
    CmRecord* record = records_.find_local(rej.remote_comm_id, from);
    const bool is_meant = record != nullptr && (record->state == CmState::kReqSent ||
                                                record->remote_id == rej.local_comm_id);
    return is_meant ? record : nullptr;
}

void CmAgent::take(const Address& from, std::uint64_t /*transaction_id*/,
                   const protocol::CmRej& rej) {
    CmRecord* record = find_rejected(from, rej);
    const CmState state = record != nullptr ? record->state : CmState::kTimeWait;
    switch (state) {
        case CmState::kReqSent:
        case CmState::kReqReceived:
        case CmState::kRepSent:
        case CmState::kRepReceived: {
            CmEvent& event = report_end(*record, CmEventType::kRejected);
            event.reason = rej.reason;
            add_data(event, rej.private_data);
            break;
        }
        case CmState::kEstablished:
        case CmState::kDreqSent:
            report_disconnected(*record,
                                state == CmState::kEstablished ? CmEnd::kPeer : CmEnd::kOwn,
                                rej.private_data);
            break;
        case CmState::kTimeWait:
        case CmState::kRefused:
        case CmState::kSidrSent:
        case CmState::kSidrReceived: ++stats_.unmatched; return;
    }
    if (state == CmState::kReqSent) {
        records_.destroy(*record);
        return;
    }
    enter_time_wait(*record);
}

void CmAgent::take(const Address& from, std::uint64_t transaction_id, const protocol::CmRtu& rtu) {
    CmRecord* record = find_exact(from, rtu.remote_comm_id, rtu.local_comm_id);
    if (record == nullptr || record->state == CmState::kTimeWait) {
        // The peer believes that it is connected.
        ++stats_.unmatched;
        send_once({.dest = from}, transaction_id,
                  protocol::CmRej{.local_comm_id = rtu.remote_comm_id,
                                  .remote_comm_id = rtu.local_comm_id,
                                  .subject = CmSubject::kOther,
                                  .reason = CmRejectReason::kInvalidCommId});
        return;
    }
    if (record->state != CmState::kRepSent) {
        ++stats_.duplicates;
        return;
    }
    establish_passive(*record, rtu.private_data);
}

void CmAgent::establish_passive(CmRecord& record, std::span<const std::byte> private_data) {
    records_.disarm(record);
    records_.set_state(record, CmState::kEstablished);
    add_data(report(record, CmEventType::kEstablished), private_data);
}

// ---- the end ----

void CmAgent::take(const Address& from, std::uint64_t transaction_id,
                   const protocol::CmDreq& dreq) {
    CmRecord* record = find_disconnected(from, dreq);
    if (record == nullptr) {
        ++stats_.unmatched;
        send_once({.dest = from}, transaction_id,
                  protocol::CmDrep{.local_comm_id = dreq.remote_comm_id,
                                   .remote_comm_id = dreq.local_comm_id});
        return;
    }
    if (record->local_qpn != dreq.remote_qpn) {
        ++stats_.unmatched;
        return;
    }
    record->transaction_id = transaction_id;
    record->remote_id = dreq.local_comm_id;
    send(*record,
         protocol::CmDrep{.local_comm_id = record->local_id, .remote_comm_id = record->remote_id});
    switch (record->state) {
        case CmState::kTimeWait: ++stats_.duplicates; return;
        case CmState::kReqSent:
        case CmState::kRepReceived:
            // What had been accepted has been taken back.
            add_data(report_end(*record, CmEventType::kRejected), dreq.private_data);
            break;
        case CmState::kRepSent:
            // Only who has taken the reply disconnects: its RTU is lost or late.
            establish_passive(*record, {});
            [[fallthrough]];
        case CmState::kEstablished:
        case CmState::kDreqSent:
        case CmState::kReqReceived:
        case CmState::kRefused:
        case CmState::kSidrSent:
        case CmState::kSidrReceived:
            report_disconnected(*record, CmEnd::kPeer, dreq.private_data);
            break;
    }
    enter_time_wait(*record);
}

/// The connection that a DREQ ends. It may have overtaken the REP, which tells the peer's id.
CmRecord* CmAgent::find_disconnected(const Address& from, const protocol::CmDreq& dreq) {
    CmRecord* record = records_.find_local(dreq.remote_comm_id, from);
    if (record == nullptr || record->state == CmState::kReqReceived ||
        record->state == CmState::kRefused || record->state == CmState::kSidrSent ||
        record->state == CmState::kSidrReceived) {
        return nullptr;
    }
    const bool is_exact =
        record->state == CmState::kReqSent || record->remote_id == dreq.local_comm_id;
    return is_exact ? record : nullptr;
}

void CmAgent::take(const Address& from, std::uint64_t /*transaction_id*/,
                   const protocol::CmDrep& drep) {
    CmRecord* record = find_exact(from, drep.remote_comm_id, drep.local_comm_id);
    if (record == nullptr || record->state != CmState::kDreqSent) {
        ++(record != nullptr ? stats_.duplicates : stats_.unmatched);
        return;
    }
    report_disconnected(*record, CmEnd::kOwn, drep.private_data);
    enter_time_wait(*record);
}

/// Unless the user has been told already that it is over.
void CmAgent::report_disconnected(CmRecord& record, CmEnd end,
                                  std::span<const std::byte> private_data) {
    if (!record.is_open) {
        return;
    }
    CmEvent& event = report_end(record, CmEventType::kDisconnected);
    event.end = end;
    add_data(event, private_data);
}

// ---- datagram services ----

void CmAgent::take(const Address& from, std::uint64_t transaction_id,
                   const protocol::CmSidrReq& req) {
    if (records_.find_remote(CmNumber::kSidrId, req.request_id, from) != nullptr) {
        ++stats_.duplicates;
        return;
    }
    const auto context = listener_of(req.service_id);
    const bool is_usable =
        is_default_pkey(req.pkey) && has_readable_data(req.service_id, req.private_data);
    if (!context.has_value() || !is_usable) {
        const auto status = context.has_value() ? protocol::SidrStatus::kRejected
                                                : protocol::SidrStatus::kInvalidServiceId;
        send_once(
            {.dest = from}, transaction_id,
            protocol::CmSidrRep{
                .request_id = req.request_id, .status = status, .service_id = req.service_id});
        return;
    }
    CmRecord* record = has_room_for_request() ? records_.create(CmState::kSidrReceived) : nullptr;
    if (record == nullptr) {
        ++stats_.half_open_refused;
        return;
    }
    record->peer = {.dest = from};
    record->context = *context;
    record->service_id = req.service_id;
    record->remote_id = req.request_id;
    record->transaction_id = transaction_id;
    records_.add_remote(*record, CmNumber::kSidrId);
    add_request_data(report(*record, CmEventType::kSidrRequest), req.private_data);
}

void CmAgent::take(const Address& from, std::uint64_t /*transaction_id*/,
                   const protocol::CmSidrRep& rep) {
    CmRecord* record = records_.find_local(rep.request_id, from);
    if (record == nullptr || record->state != CmState::kSidrSent) {
        ++stats_.unmatched;
        return;
    }
    CmEvent& event = report_end(*record, CmEventType::kSidrReply);
    event.remote.qpn = rep.qpn;
    event.sidr_status = rep.status;
    event.qkey = rep.qkey;
    add_data(event, rep.private_data);
    records_.destroy(*record);
}

}  // namespace rvt::core
