// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the user asks for, what time brings, and how messages leave.
#include "core/cm_agent.h"

#include <algorithm>
#include <bit>

namespace rvt::core {
namespace {

using protocol::CmRejectReason;
using protocol::CmSubject;
using Bytes = std::span<const std::byte>;

/// Tells peers how long an acknowledgement takes here; as kernel rxe.
constexpr std::uint8_t kTargetAckDelay = 15;
/// A peer that has not said a word after all replies is told of the end this often.
constexpr std::uint8_t kFarewells = 3;
/// As often one is told again of a refusal who has been told to wait, and asks no more.
constexpr std::uint8_t kRefusals = 3;
/// Refused requests that are remembered. A peer whose REJ is lost asks anew beyond it.
constexpr std::uint32_t kMostRefused = 1024;

/// The code of a time-out that is not shorter, at most `most`.
std::uint8_t timeout_code(std::uint64_t us, std::uint8_t most) noexcept {
    std::uint8_t code = 0;
    while (code < most && protocol::cm_timeout_us(code) < us) {
        ++code;
    }
    return code;
}

template <std::size_t kBytes>
protocol::CmBytes<kBytes> padded(Bytes data) noexcept {
    protocol::CmBytes<kBytes> bytes{};
    std::copy_n(data.begin(), std::min(data.size(), kBytes), bytes.begin());
    return bytes;
}

/// What a consumer adds to a request; services of the RDMA IP CM begin it with who asks whom.
template <std::size_t kBytes, class Request>
protocol::CmBytes<kBytes> request_data(const CmConfig& config, const Request& request) noexcept {
    if (!protocol::is_ip_service(request.service_id)) {
        return padded<kBytes>(request.private_data);
    }
    protocol::CmBytes<kBytes> bytes{};
    protocol::encode_ip_cm({.source_port = request.source_port,
                            .source = config.local.gid,
                            .dest = request.dest.dest.gid},
                           std::span(bytes).template first<protocol::kIpCmHeaderBytes>());
    std::copy(request.private_data.begin(), request.private_data.end(),
              bytes.begin() + protocol::kIpCmHeaderBytes);
    return bytes;
}

bool is_valid(const CmPair& pair) noexcept {
    return pair.qpn > protocol::kGsiQpn && pair.qpn < kMulticastQpn &&
           pair.starting_psn <= kQpnMask && pair.rnr_retry <= kRnrRetryForEver;
}

template <class Request>
bool has_valid_timing(const Request& request) noexcept {
    return request.response_timeout_us != 0 &&
           request.response_timeout_us <= CmAgent::kMostTimeoutUs && request.max_cm_retries <= 15;
}

bool is_valid(const CmConnect& request) noexcept {
    const bool has_mtu = std::has_single_bit(request.path_mtu_bytes) &&
                         request.path_mtu_bytes >= 256 && request.path_mtu_bytes <= 4096;
    return is_valid(request.own) && has_valid_timing(request) && has_mtu &&
           (request.type == QpType::kRc || request.type == QpType::kUc) && request.retry_cnt <= 7 &&
           request.local_ack_timeout < 32 && request.dest.service_level < 16;
}

protocol::CmReq make_req(const CmConfig& config, const CmConnect& request,
                         std::uint32_t comm_id) noexcept {
    const std::uint8_t timeout = timeout_code(request.response_timeout_us, CmAgent::kMostTimeout);
    return {.local_comm_id = comm_id,
            .service_id = request.service_id,
            .ca_guid = config.ca_guid,
            .qpn = request.own.qpn,
            .responder_resources = request.own.responder_resources,
            .initiator_depth = request.own.initiator_depth,
            .remote_response_timeout = timeout,
            .transport = request.type == QpType::kRc ? protocol::CmTransport::kRc
                                                     : protocol::CmTransport::kUc,
            .has_flow_control = request.own.has_flow_control,
            .starting_psn = request.own.starting_psn,
            .local_response_timeout = timeout,
            .retry_count = request.retry_cnt,
            .path_mtu = protocol::mtu_code(request.path_mtu_bytes),
            .rnr_retry = request.own.rnr_retry,
            .max_cm_retries = request.max_cm_retries,
            .has_srq = request.own.has_srq,
            .primary = {.local_lid = protocol::kPermissiveLid,
                        .remote_lid = protocol::kPermissiveLid,
                        .local_gid = config.local.gid,
                        .remote_gid = request.dest.dest.gid,
                        .hop_limit = request.dest.hop_limit,
                        .service_level = request.dest.service_level,
                        .is_subnet_local = request.dest.hop_limit <= 1,
                        .local_ack_timeout = request.local_ack_timeout},
            .private_data = request_data<protocol::kReqPrivateBytes>(config, request)};
}

}  // namespace

CmAgent::CmAgent(const CmConfig& config, CmWire& wire)
    : config_(config),
      wire_(wire),
      secret_(config.secret),
      records_(config.max_connections, secret_) {}

// ---- active side ----

Result<CmHandle> CmAgent::connect(const CmConnect& request, std::uint64_t now_us) {
    now_us_ = now_us;
    if (!is_valid(request)) {
        return EINVAL;
    }
    if (request.private_data.size() > req_private_bytes(request.service_id)) {
        return EMSGSIZE;
    }
    CmRecord* record = records_.create(CmState::kReqSent);
    if (record == nullptr) {
        return ENOMEM;
    }
    const protocol::CmReq req = make_req(config_, request, record->local_id);
    record->is_active = true;
    record->peer = request.dest;
    record->context = request.context;
    record->service_id = request.service_id;
    record->local_qpn = request.own.qpn;
    record->transaction_id = secret_.next();
    record->max_retries = request.max_cm_retries;
    set_timing(*record, req.remote_response_timeout, req.primary.local_ack_timeout);
    send(*record, req);
    expect_answer(*record, record->max_retries);
    return CmRecords::handle_of(*record);
}

Status CmAgent::establish(CmHandle handle, Bytes private_data, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    if (record->state != CmState::kRepReceived) {
        return EINVAL;
    }
    if (private_data.size() > protocol::kRtuPrivateBytes) {
        return EMSGSIZE;
    }
    records_.set_state(*record, CmState::kEstablished);
    send(*record,
         protocol::CmRtu{.local_comm_id = record->local_id,
                         .remote_comm_id = record->remote_id,
                         .private_data = padded<protocol::kRtuPrivateBytes>(private_data)});
    return kOk;
}

// ---- passive side ----

Status CmAgent::listen(std::uint64_t service_id, std::uint64_t context) {
    return listeners_.emplace(service_id, context).second ? kOk : Status(EADDRINUSE);
}

Status CmAgent::listen_any(std::uint64_t context) {
    if (listener_for_any_.has_value()) {
        return EADDRINUSE;
    }
    listener_for_any_ = context;
    return kOk;
}

Status CmAgent::unlisten(std::uint64_t service_id) {
    return listeners_.erase(service_id) != 0 ? kOk : Status(ENOENT);
}

Status CmAgent::unlisten_any() {
    if (!listener_for_any_.has_value()) {
        return ENOENT;
    }
    listener_for_any_.reset();
    return kOk;
}

Status CmAgent::accept(CmHandle handle, const CmAccept& answer, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    if (record->state != CmState::kReqReceived || !is_valid(answer.own)) {
        return EINVAL;
    }
    if (answer.private_data.size() > protocol::kRepPrivateBytes) {
        return EMSGSIZE;
    }
    record->context = answer.context;
    record->local_qpn = answer.own.qpn;
    records_.set_state(*record, CmState::kRepSent);
    send(*record,
         protocol::CmRep{.local_comm_id = record->local_id,
                         .remote_comm_id = record->remote_id,
                         .qpn = answer.own.qpn,
                         .starting_psn = answer.own.starting_psn,
                         .responder_resources = answer.own.responder_resources,
                         .initiator_depth = answer.own.initiator_depth,
                         .target_ack_delay = kTargetAckDelay,
                         .failover = record->has_alternate ? protocol::CmFailover::kNotSupported
                                                           : protocol::CmFailover::kAccepted,
                         .has_flow_control = answer.own.has_flow_control,
                         .rnr_retry = answer.own.rnr_retry,
                         .has_srq = answer.own.has_srq,
                         .ca_guid = config_.ca_guid,
                         .private_data = padded<protocol::kRepPrivateBytes>(answer.private_data)});
    expect_answer(*record, record->max_retries);
    return kOk;
}

Status CmAgent::reject(CmHandle handle, CmRejectReason reason, Bytes private_data,
                       std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    if (record->state != CmState::kReqReceived && record->state != CmState::kRepReceived) {
        return EINVAL;
    }
    if (private_data.size() > protocol::kRejPrivateBytes) {
        return EMSGSIZE;
    }
    end_by_user(*record);
    refuse(*record, reason, private_data);
    return kOk;
}

void CmAgent::refuse(CmRecord& record, CmRejectReason reason, Bytes private_data) {
    const bool is_request = record.state == CmState::kReqReceived;
    const std::uint8_t repetitions = record.is_delayed ? kRefusals : 0;
    // A REJ to a request names no id of this side: the peer has not learned one.
    send(record, protocol::CmRej{.local_comm_id = is_request ? 0 : record.local_id,
                                 .remote_comm_id = record.remote_id,
                                 .subject = is_request ? CmSubject::kReq : CmSubject::kRep,
                                 .reason = reason,
                                 .private_data = padded<protocol::kRejPrivateBytes>(private_data)});
    if (is_request) {
        remember_refusal(record, repetitions);
        return;
    }
    enter_time_wait(record);
}

/// Until the peer, if it does not get to know, has sent its request again.
void CmAgent::remember_refusal(CmRecord& record, std::uint8_t repetitions) {
    if (records_.count_in(CmState::kRefused) == kMostRefused) {
        records_.destroy(record);
        return;
    }
    records_.close(record);
    records_.remove_remote(record, CmNumber::kQpn);
    records_.set_state(record, CmState::kRefused);
    record.retries_left = repetitions;
    wait_longer(record, repetitions == 0 ? record.timeout_us : 0);
}

Status CmAgent::delay(CmHandle handle, std::uint64_t delay_us, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    const bool is_request = record->state == CmState::kReqReceived;
    if (!is_request && record->state != CmState::kRepReceived) {
        return EINVAL;
    }
    send(*record, protocol::CmMra{.local_comm_id = record->local_id,
                                  .remote_comm_id = record->remote_id,
                                  .subject = is_request ? CmSubject::kReq : CmSubject::kRep,
                                  .service_timeout = timeout_code(delay_us, kMostDelay)});
    return kOk;
}

Status CmAgent::note_traffic(CmHandle handle, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    if (record->state == CmState::kRepSent) {
        establish_passive(*record, {});
    }
    return kOk;
}

// ---- the end ----

Status CmAgent::disconnect(CmHandle handle, Bytes private_data, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    if (record->state == CmState::kDreqSent) {
        return EALREADY;
    }
    if (private_data.size() > protocol::kDreqPrivateBytes) {
        return EMSGSIZE;
    }
    if (record->state == CmState::kRepSent || record->state == CmState::kEstablished) {
        begin_disconnect(*record, private_data, record->max_retries);
        return kOk;
    }
    end_by_user(*record);
    switch (record->state) {
        case CmState::kReqSent: abort_request(*record); break;
        case CmState::kReqReceived:
        case CmState::kRepReceived: refuse(*record, CmRejectReason::kConsumer, {}); break;
        case CmState::kSidrReceived:
            answer_resolution(*record, {.status = protocol::SidrStatus::kRejected});
            break;
        case CmState::kSidrSent:
        case CmState::kRepSent:
        case CmState::kEstablished:
        case CmState::kDreqSent:
        case CmState::kTimeWait:
        case CmState::kRefused: records_.destroy(*record); break;
    }
    return kOk;
}

void CmAgent::give_up_ends(const Address& peer, std::uint64_t now_us) {
    now_us_ = now_us;
    while (CmRecord* const record = records_.find_in(CmState::kDreqSent, peer)) {
        give_up(*record);
    }
}

/// Nothing that is queued for the handle is shown any more.
void CmAgent::end_by_user(CmRecord& record) {
    const CmHandle handle = CmRecords::handle_of(record);
    std::erase_if(events_, [handle](const CmEvent& event) { return event.handle == handle; });
    records_.close(record);
}

/// A peer that has not accepted yet learns that it need not; one that does it all the same is told
/// then, its reply being of no connection.
void CmAgent::abort_request(CmRecord& record) {
    protocol::CmRej rej{.local_comm_id = record.local_id,
                        .subject = CmSubject::kOther,
                        .reason = CmRejectReason::kTimeout,
                        .info_bytes = sizeof config_.ca_guid};
    // Kernel ib_cm finds the request by this and the id.
    for (std::size_t i = 0; i < sizeof config_.ca_guid; ++i) {
        rej.info[i] = static_cast<std::byte>(config_.ca_guid >> (56 - 8 * i));
    }
    send(record, rej);
    records_.destroy(record);
}

/// Also for what the peer has only been offered: a REJ is sent once, a DREQ until it is answered.
void CmAgent::begin_disconnect(CmRecord& record, Bytes private_data, std::uint8_t retries) {
    records_.set_state(record, CmState::kDreqSent);
    records_.remove_remote(record, CmNumber::kQpn);
    record.transaction_id = secret_.next();
    send(record,
         protocol::CmDreq{.local_comm_id = record.local_id,
                          .remote_comm_id = record.remote_id,
                          .remote_qpn = record.remote_qpn,
                          .private_data = padded<protocol::kDreqPrivateBytes>(private_data)});
    expect_answer(record, retries);
}

/// The peer's pair may be connected anew from here on; late messages of this connection still find
/// it.
void CmAgent::enter_time_wait(CmRecord& record) {
    records_.close(record);
    records_.remove_remote(record, CmNumber::kQpn);
    records_.set_state(record, CmState::kTimeWait);
    records_.arm(record, now_us_ + record.time_wait_us);
}

// ---- datagram services ----

Result<CmHandle> CmAgent::resolve(const CmResolve& request, std::uint64_t now_us) {
    now_us_ = now_us;
    if (!has_valid_timing(request)) {
        return EINVAL;
    }
    if (request.private_data.size() > sidr_req_private_bytes(request.service_id)) {
        return EMSGSIZE;
    }
    CmRecord* record = records_.create(CmState::kSidrSent);
    if (record == nullptr) {
        return ENOMEM;
    }
    record->is_active = true;
    record->peer = request.dest;
    record->context = request.context;
    record->service_id = request.service_id;
    record->transaction_id = secret_.next();
    set_timing(*record, timeout_code(request.response_timeout_us, kMostTimeout), 0);
    send(*record, protocol::CmSidrReq{.request_id = record->local_id,
                                      .service_id = request.service_id,
                                      .private_data = request_data<protocol::kSidrReqPrivateBytes>(
                                          config_, request)});
    expect_answer(*record, request.max_cm_retries);
    return CmRecords::handle_of(*record);
}

Status CmAgent::answer_sidr(CmHandle handle, const CmSidrAnswer& answer, std::uint64_t now_us) {
    now_us_ = now_us;
    CmRecord* record = records_.find(handle);
    if (record == nullptr) {
        return ENOENT;
    }
    const bool has_pair = answer.qpn > protocol::kGsiQpn && answer.qpn < kMulticastQpn;
    if (record->state != CmState::kSidrReceived ||
        (answer.status == protocol::SidrStatus::kOk && !has_pair)) {
        return EINVAL;
    }
    if (answer.private_data.size() > protocol::kSidrRepPrivateBytes) {
        return EMSGSIZE;
    }
    end_by_user(*record);
    answer_resolution(*record, answer);
    return kOk;
}

void CmAgent::answer_resolution(CmRecord& record, const CmSidrAnswer& answer) {
    send(record, protocol::CmSidrRep{
                     .request_id = record.remote_id,
                     .status = answer.status,
                     .qpn = answer.qpn,
                     .service_id = record.service_id,
                     .qkey = answer.qkey,
                     .private_data = padded<protocol::kSidrRepPrivateBytes>(answer.private_data)});
    records_.destroy(record);
}

// ---- time ----

void CmAgent::set_timing(CmRecord& record, std::uint8_t response_timeout,
                         std::uint8_t local_ack_timeout) noexcept {
    const std::uint8_t response = std::clamp(response_timeout, kLeastTimeout, kMostTimeout);
    const std::uint8_t ack = std::clamp(local_ack_timeout, response, kMostTimeout);
    record.timeout_us = static_cast<std::uint32_t>(protocol::cm_timeout_us(response));
    record.time_wait_us = static_cast<std::uint32_t>(protocol::cm_timeout_us(ack));
}

void CmAgent::expect_answer(CmRecord& record, std::uint8_t retries) {
    record.retries_left = retries;
    wait_longer(record, 0);
}

/// Up to a quarter more than the time-out, so that what was lost together is not sent again
/// together.
void CmAgent::wait_longer(CmRecord& record, std::uint64_t extra_us) {
    const std::uint64_t jitter_us = secret_.next() % (record.timeout_us / 4 + 1);
    records_.arm(record, now_us_ + extra_us + record.timeout_us + jitter_us);
}

void CmAgent::run_timers(std::uint64_t now_us) {
    now_us_ = now_us;
    while (CmRecord* record = records_.take_due(now_us)) {
        time_out(*record);
    }
}

void CmAgent::time_out(CmRecord& record) {
    const bool is_refused = record.state == CmState::kRefused;
    if (record.state == CmState::kTimeWait || (is_refused && record.retries_left == 0)) {
        records_.destroy(record);
        return;
    }
    if (record.retries_left == 0) {
        give_up(record);
        return;
    }
    if (record.state == CmState::kSidrSent) {
        record.timeout_us =
            std::max(record.timeout_us, std::min(2 * record.timeout_us, kMostBackoffUs));
    }
    --record.retries_left;
    ++stats_.resent;
    send_again(record);
    wait_longer(record, 0);
}

void CmAgent::give_up(CmRecord& record) {
    switch (record.state) {
        case CmState::kReqSent:
            report_end(record, CmEventType::kUnreachable);
            abort_request(record);
            break;
        case CmState::kSidrSent:
            report_end(record, CmEventType::kUnreachable);
            records_.destroy(record);
            break;
        case CmState::kRepSent:
            report_end(record, CmEventType::kUnreachable);
            begin_disconnect(record, {}, std::min(record.max_retries, kFarewells));
            break;
        case CmState::kDreqSent:
            if (record.is_open) {
                report_end(record, CmEventType::kDisconnected).end = CmEnd::kNoAnswer;
            }
            enter_time_wait(record);
            break;
        case CmState::kReqReceived:
        case CmState::kRepReceived:
        case CmState::kEstablished:
        case CmState::kTimeWait:
        case CmState::kRefused:
        case CmState::kSidrReceived: break;  // no timer runs, or it is handled above
    }
}

std::optional<std::uint64_t> CmAgent::next_due_us() const noexcept {
    return records_.next_due_us();
}

// ---- messages and events ----

void CmAgent::send(CmRecord& record, const protocol::CmMessage& message) {
    record.is_delayed = std::holds_alternative<protocol::CmMra>(message);
    protocol::encode_cm({.transaction_id = record.transaction_id, .message = message}, record.mad);
    send_again(record);
}

void CmAgent::send_once(const AhAttr& to, std::uint64_t transaction_id,
                        const protocol::CmMessage& message) {
    std::array<std::byte, protocol::kMadBytes> mad;
    protocol::encode_cm({.transaction_id = transaction_id, .message = message}, mad);
    wire_.send_mad(to, mad);
}

CmEvent& CmAgent::report(const CmRecord& record, CmEventType type) {
    return events_.emplace_back(CmEvent{.type = type,
                                        .handle = CmRecords::handle_of(record),
                                        .context = record.context,
                                        .peer = record.peer.dest,
                                        .service_id = record.service_id});
}

/// The last event of the handle.
CmEvent& CmAgent::report_end(CmRecord& record, CmEventType type) {
    records_.close(record);
    return report(record, type);
}

std::optional<CmEvent> CmAgent::poll_event() {
    if (events_.empty()) {
        return std::nullopt;
    }
    const CmEvent event = events_.front();
    events_.pop_front();
    return event;
}

}  // namespace rvt::core
