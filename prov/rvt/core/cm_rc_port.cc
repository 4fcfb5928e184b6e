// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the communication manager reports, and what follows for the pairs.
#include "core/cm_rc_port.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "core/missed_pair.h"
#include "util/log.h"

namespace rvt::core {
namespace {

// A request is sent again after so long; when all of them are lost another one is made, until the
// time for the connection is over.
constexpr std::uint32_t kResponseUs = 60'000;
constexpr std::uint8_t kCmRetries = 15;
// So long an application may take to answer a request before the peer gives up.
constexpr std::uint64_t kAnswerUs = CmAgent::kMostDelayUs;

// A peer that does not answer at all is given up after eight time-outs of 8.6 seconds: its process
// may be stopped. One without a receive is asked again for ever.
constexpr std::uint8_t kAckTimeout = 21;
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kTimeWait = 12;  // of an ended connection: 17 ms
/// Other devices take that for their pair's time-out.
constexpr std::uint8_t kPlainTimeout = 18;  // 1 s
constexpr std::uint8_t kPlainRetries = 6;   // rxe of the kernel takes 7 for any number
constexpr std::uint8_t kRnrTimer = 12;      // 0.64 ms
constexpr std::uint8_t kReads = 16;         // and atomics, under way in each direction

constexpr std::uint32_t kLeastMtu = 256;

// How many requests may wait their listeners say, which refuse further ones at once; the manager
// would only drop them, those to other listeners among them.
constexpr std::uint32_t kMostWaiting = CmConfig{}.max_connections;

// A port tells by its GUID that it is one of rvt, and what it has beyond IBTA: a locally
// administered one, 02 "rvt", then a byte of capabilities and three of chance.
constexpr std::uint64_t kRvtGuid = 0x0272767400000000;
constexpr std::uint64_t kRvtGuidMask = 0xffffffff00000000;
constexpr std::uint64_t kHasExtendedAtomics = 0x01000000;
constexpr std::uint64_t kKeepsEarly = 0x02000000;
constexpr std::uint64_t kGuidChance = 0x00ffffff;
constexpr std::uint64_t kSoonUs = 20'000;  // what is due by then is not left to others

constexpr Access kPairAccess =
    Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic;

std::uint64_t random_number() {
    std::random_device source;
    return (std::uint64_t{source()} << 32) | source();
}

constexpr std::size_t length_bytes(RcData data) noexcept {
    return data == RcData::kCounted ? 1 : 0;
}

/// Whether the port with this GUID is one of rvt and has that.
bool has(std::uint64_t guid, std::uint64_t capability) noexcept {
    return (guid & kRvtGuidMask) == kRvtGuid && (guid & capability) != 0;
}

std::uint64_t service_id(std::uint16_t number) noexcept {
    return protocol::ip_service_id(protocol::PortSpace::kTcp, number);
}

}  // namespace

std::uint16_t rc_caller(const CmEvent& request) noexcept {
    return request.ip.has_value() ? request.ip->source_port : request.peer.port;
}

// ---- private data ----

std::size_t CmRcPort::private_bytes() const noexcept {
    return req_private_bytes(service_id(0)) - length_bytes(data_);
}

bool CmRcPort::fits(std::span<const std::byte> data, std::size_t room) const noexcept {
    return data.size() <= room - length_bytes(data_);
}

/// As it travels. Precondition: it fits in a message.
std::vector<std::byte> CmRcPort::framed(std::span<const std::byte> data) const {
    const std::size_t before = length_bytes(data_);
    std::vector<std::byte> bytes(before + data.size(), static_cast<std::byte>(data.size()));
    std::ranges::copy(data, std::span(bytes).subspan(before).begin());
    return bytes;
}

/// What a peer's application has added to a message.
std::span<const std::byte> CmRcPort::data_of(const CmEvent& event) const noexcept {
    const std::span<const std::byte> all = event.private_data();
    if (data_ == RcData::kPlain || all.empty()) {
        return all;
    }
    const std::span<const std::byte> rest = all.subspan(1);
    return rest.first(std::min(rest.size(), std::to_integer<std::size_t>(all[0])));
}

// ---- life ----

CmRcPort::CmRcPort(const CmRcPortAttr& attr)
    : RcPort(*attr.device, *attr.is_hot),
      device_(*attr.device),
      data_(attr.data),
      connect_timeout_us_(std::uint64_t{attr.connect_timeout_ms} * 1000),
      farewell_(attr.farewell_ms),
      idle_us_(attr.idle_us),
      is_hot_(*attr.is_hot),
      agent_({.local = device_.address(),
              .ca_guid =
                  kRvtGuid | kHasExtendedAtomics | kKeepsEarly | (random_number() & kGuidChance),
              .secret = {random_number(), random_number()},
              .max_half_open = kMostWaiting},
             *this),
      datagrams_(agent_, device_.address().port, connect_timeout_us_),
      random_(random_number() | 1) {
    device_.set_mad_sink(this);
}

CmRcPort::~CmRcPort() {
    // A forked child has a port that leads nowhere.
    if (device_.grade() == Grade::kPacket && generation_ == util::fork_generation()) {
        say_farewell();
    }
    device_.set_mad_sink(nullptr);
    const util::Guard guard(lock_);
    for (const auto& [peer, channel] : channels_) {
        device_.ops().close_channel(device_, *channel);
    }
}

Result<std::unique_ptr<RcConnection>> CmRcPort::make(Pd& pd, const QpInit& init, RcUser& user) {
    const auto made = create_qp(pd, init);
    if (!made.is_ok()) {
        return made.status();
    }
    Qp& qp = *made.value();
    const Status status =
        qp.modify({.state = QpState::kInit, .access = kPairAccess},
                  QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess);
    if (!status.is_ok()) {
        [[maybe_unused]] const Status destroyed = destroy_qp(&qp);
        return status;
    }
    const util::Guard guard(lock_);
    auto connection = std::make_unique<CmRcConnection>(next_id_++, qp, user);
    connections_[connection->id_] = connection.get();
    return std::unique_ptr<RcConnection>(std::move(connection));
}

void CmRcPort::destroy(std::unique_ptr<RcConnection> connection) noexcept {
    device_.flush();  // what has arrived, the peer should learn
    {
        const util::Guard guard(lock_);
        hang_up_locked(own(*connection));
        connections_.erase(own(*connection).id_);
    }
    [[maybe_unused]] const Status destroyed = destroy_qp(&connection->qp());
}

// ---- the owner's wishes ----

Status CmRcPort::connect(RcConnection& which, const RcCall& call,
                         std::span<const std::byte> private_data) {
    CmRcConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() != State::kIdle) {
        return EINVAL;
    }
    if (private_data.size() > private_bytes()) {
        return EMSGSIZE;
    }
    connection.set_peer(call.dest, call.service);
    connection.own_service_ = call.source;
    connection.psn_ = random_locked();
    connection.mtu_bytes_ = mtu_within(device_.payload_to(call.dest));
    connection.greeting_ = framed(private_data);
    connection.deadline_us_ = device_.now_us() + connect_timeout_us_;
    connection.set_state(State::kDialing);
    const Status status = dial_locked(connection);
    if (!status.is_ok()) {
        connection.set_state(State::kIdle);
    }
    return status;
}

std::uint32_t CmRcPort::random_locked() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<std::uint32_t>(random_ >> 40);
}

Status CmRcPort::dial_locked(CmRcConnection& connection) {
    const auto handle =
        agent_.connect({.service_id = service_id(connection.peer_service()),
                        .dest = {.dest = connection.peer()},
                        .own = {.qpn = connection.qp().qpn(),
                                .starting_psn = connection.psn_,
                                .responder_resources = kReads,
                                .initiator_depth = kReads},
                        .path_mtu_bytes = connection.mtu_bytes_,
                        .retry_cnt = data_ == RcData::kPlain ? kPlainRetries : kRetries,
                        .local_ack_timeout = data_ == RcData::kPlain ? kPlainTimeout : kTimeWait,
                        .response_timeout_us = kResponseUs,
                        .max_cm_retries = kCmRetries,
                        .source_port = connection.own_service_,
                        .context = connection.id_,
                        .private_data = connection.greeting_},
                       device_.now_us());
    connection.handle_ = handle.is_ok() ? handle.value() : CmHandle::kNone;
    look_soon();
    return handle.status();
}

Status CmRcPort::accept(RcConnection& which, const CmEvent& request,
                        std::span<const std::byte> private_data) {
    CmRcConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() != State::kIdle) {
        return EINVAL;
    }
    if (!fits(private_data, protocol::kRepPrivateBytes)) {
        return EMSGSIZE;
    }
    connection.set_peer(request.peer, rc_caller(request));
    connection.psn_ = random_locked();
    connection.mtu_bytes_ = request.path_mtu_bytes;
    connection.handle_ = request.handle;
    const Status answered = answer_locked(connection, request, private_data);
    if (!answered.is_ok()) {
        give_up_request_locked(connection, answered);
    }
    look_soon();
    // Those two would blame what the caller has handed in.
    const bool blames_caller = answered.error() == EINVAL || answered.error() == EMSGSIZE;
    return blames_caller ? Status(ECONNABORTED) : answered;
}

Status CmRcPort::answer_locked(CmRcConnection& connection, const CmEvent& request,
                               std::span<const std::byte> private_data) {
    // Whether the peer still waits is asked first.
    const std::uint64_t now = device_.now_us();
    if (!agent_.delay(request.handle, kAnswerUs, now).is_ok()) {
        return ECONNABORTED;
    }
    const Status started = start_pair(connection, request);
    if (!started.is_ok()) {
        return started;
    }
    connection.set_state(State::kAccepted);
    return agent_.accept(
        request.handle,
        {.own = {.qpn = connection.qp().qpn(),
                 .starting_psn = connection.psn_,
                 .responder_resources = std::min(kReads, request.remote.initiator_depth),
                 .initiator_depth = std::min(kReads, request.remote.responder_resources)},
         .context = connection.id_,
         .private_data = framed(private_data)},
        now);
}

/// The pair cannot be used again. A peer that still waits is told why.
void CmRcPort::give_up_request_locked(CmRcConnection& connection, Status why) {
    using enum protocol::CmRejectReason;
    [[maybe_unused]] const Status refused =
        agent_.reject(connection.handle_, why.error() == EMSGSIZE ? kInvalidMtu : kNoResources, {},
                      device_.now_us());
    connection.handle_ = CmHandle::kNone;
    connection.set_state(State::kEnded);
    [[maybe_unused]] const Status flushed =
        connection.qp().modify({.state = QpState::kErr}, QpMask::kState);
}

Status CmRcPort::reject(CmHandle request, std::span<const std::byte> private_data) {
    if (!fits(private_data, protocol::kRejPrivateBytes)) {
        return EMSGSIZE;
    }
    const util::Guard guard(lock_);
    const Status status = agent_.reject(request, protocol::CmRejectReason::kConsumer,
                                        framed(private_data), device_.now_us());
    look_soon();
    return status.is_ok() ? status : Status(ECONNABORTED);
}

Status CmRcPort::disconnect(RcConnection& which) {
    CmRcConnection& connection = own(which);
    device_.flush();  // what has arrived, the peer should learn
    const util::Guard guard(lock_);
    if (connection.state() != State::kOpen && connection.state() != State::kAccepted) {
        return ENOTCONN;
    }
    hang_up_locked(connection);
    connection.set_state(State::kClosing);
    return connection.qp().modify({.state = QpState::kErr}, QpMask::kState);
}

void CmRcPort::note_failure(RcConnection& which) noexcept {
    CmRcConnection& connection = own(which);
    const util::Guard guard(lock_);
    end_failed_locked(connection);
}

void CmRcPort::note_traffic(RcConnection& which) noexcept {
    CmRcConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() == State::kAccepted) {
        [[maybe_unused]] const Status known =
            agent_.note_traffic(connection.handle_, device_.now_us());
        look_soon();
    }
}

Status CmRcPort::listen(std::uint16_t service, RcListener& listener) {
    const util::Guard guard(lock_);
    const Status status = agent_.listen(service_id(service), service);
    if (status.is_ok()) {
        listeners_[service] = &listener;
    }
    return status;
}

void CmRcPort::unlisten(std::uint16_t service) noexcept {
    const util::Guard guard(lock_);
    listeners_.erase(service);
    [[maybe_unused]] const Status ended = agent_.unlisten(service_id(service));
}

// ---- datagram services ----

Status CmRcPort::open_service(std::uint16_t service, const UdPair& pair, SidrUser& user) {
    const util::Guard guard(lock_);
    return datagrams_.open(service, pair, user);
}

void CmRcPort::close_service(std::uint16_t service) noexcept {
    const util::Guard guard(lock_);
    datagrams_.close(service, device_.now_us());
}

Status CmRcPort::ask(const Address& peer, std::uint16_t own) {
    const util::Guard guard(lock_);
    const Status asked = datagrams_.ask(peer, own, device_.now_us());
    look_soon();
    return asked;
}

// ---- the communication manager ----

/// Peers at the port of the specification send from any, and are reached at that one.
Address CmRcPort::answering(const Address& source) const noexcept {
    return {.gid = source.gid, .port = source.port != 0 ? source.port : device_.address().port};
}

void CmRcPort::take_mad(const Address& source,
                        std::span<const std::byte, protocol::kMadBytes> mad) noexcept {
    const Address from = answering(source);
    if (const auto qpn = read_missed(mad)) {
        if (*qpn != protocol::kGsiQpn) {  // that one is always there
            peer_refused(from, *qpn);
        }
        return;
    }
    const util::Guard guard(lock_);
    agent_.take_mad(from, mad, device_.now_us());
    look_soon();
}

/// Called by the agent, under the lock.
void CmRcPort::send_mad(const AhAttr& to, CmMadBytes mad) noexcept RVT_NO_ANALYSIS {
    const auto bytes = mad.first<protocol::kMadBytes>();
    if (device_.grade() == Grade::kPacket) {
        core::send_mad(device_, to.dest, bytes);
        return;
    }
    if (waiting_.size() == kMaxWaitingMads) {
        return;
    }
    WaitingMad& waits = waiting_.emplace_back();
    waits.to = to.dest;
    std::copy(bytes.begin(), bytes.end(), waits.mad.begin());
    send_waiting_locked();
}

// ---- channels, segment grade ----

/// nullptr: there is no way.
Channel* CmRcPort::channel_locked(const Address& peer) {
    const auto found = std::ranges::find(channels_, peer, &std::pair<Address, Channel*>::first);
    if (found != channels_.end()) {
        return found->second;
    }
    const auto opened = device_.ops().open_channel(device_, peer);
    if (!opened.is_ok()) {
        return nullptr;
    }
    channels_.emplace_back(peer, opened.value());
    return opened.value();
}

/// Sends what finds room. Messages to one peer keep their order.
void CmRcPort::send_waiting_locked() {
    std::vector<Address> full;
    std::erase_if(waiting_, [&](const WaitingMad& waits) RVT_NO_ANALYSIS {
        if (std::ranges::find(full, waits.to) != full.end()) {
            return false;
        }
        Channel* const channel = channel_locked(waits.to);
        const bool is_full =
            channel != nullptr && core::send_mad(device_, *channel, waits.mad).error() == EAGAIN;
        if (is_full) {
            full.push_back(waits.to);
        }
        return !is_full;
    });
    has_waiting_.store(!waiting_.empty(), std::memory_order_relaxed);  // relaxed: under the lock
}

void CmRcPort::channel_failed(Channel& channel) noexcept {
    const util::Guard guard(lock_);
    const auto found =
        std::ranges::find(channels_, &channel, &std::pair<Address, Channel*>::second);
    if (found == channels_.end()) {
        return;
    }
    const Address peer = found->first;
    channels_.erase(found);
    device_.ops().close_channel(device_, channel);
    std::erase_if(waiting_, [&](const WaitingMad& waits) { return waits.to == peer; });
    lost_.push_back(peer);
    look_soon();
}

void CmRcPort::look_soon() noexcept {
    cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: a hint to who polls
    expect_traffic();
}

/// Runs timers and takes events, if there may be some.
void CmRcPort::look_at_cm(std::uint64_t now) noexcept {
    // relaxed: set by this thread, or by one that only wants it to be seen soon.
    const std::uint64_t due = cm_due_us_.load(std::memory_order_relaxed);
    if (now < due) [[likely]] {
        return;
    }
    const util::Guard guard(lock_);
    run_cm_locked();
}

void CmRcPort::run_cm_locked() {
    const std::uint64_t now = device_.now_us();
    lose_peers_locked();
    look_at_port_locked();
    cm_due_us_.store(kNever, std::memory_order_relaxed);  // relaxed: under the lock
    agent_.run_timers(now);
    while (const auto event = agent_.poll_event()) {
        on_event_locked(*event);
    }
    check_deadlines_locked(now);
    datagrams_.run_timers(now);
    std::uint64_t due = std::min(agent_.next_due_us().value_or(kNever), datagrams_.next_due_us());
    for (const auto& [id, connection] : connections_) {
        due = std::min(due, settled_us(*connection));
    }
    // relaxed: under the lock. What was asked for meanwhile, by a failure just handled, stays.
    if (cm_due_us_.load(std::memory_order_relaxed) != 0) {
        cm_due_us_.store(due, std::memory_order_relaxed);  // relaxed: as above
    }
}

CmRcConnection* CmRcPort::find_locked(const CmEvent& event) {
    const auto found = connections_.find(event.context);
    return found == connections_.end() || found->second->handle_ != event.handle ? nullptr
                                                                                 : found->second;
}

void CmRcPort::on_request_locked(const CmEvent& event) {
    const auto found = listeners_.find(static_cast<std::uint16_t>(event.context));
    // A number may also be that of a datagram service, which has no connections.
    const bool is_known = found != listeners_.end() && event.service_id == service_id(found->first);
    const bool is_taken = is_known && event.transport == QpType::kRc &&
                          event.path_mtu_bytes <= device_.payload_to(event.peer);
    if (!is_taken) {
        using enum protocol::CmRejectReason;
        const auto reason = !is_known                        ? kInvalidServiceId
                            : event.transport != QpType::kRc ? kInvalidTransport
                                                             : kInvalidMtu;
        [[maybe_unused]] const Status refused =
            agent_.reject(event.handle, reason, {}, device_.now_us());
        return;
    }
    // The application may take its time.
    [[maybe_unused]] const Status told = agent_.delay(event.handle, kAnswerUs, device_.now_us());
    if (!found->second->requested(event, data_of(event))) {
        [[maybe_unused]] const Status refused = agent_.reject(
            event.handle, protocol::CmRejectReason::kNoResources, {}, device_.now_us());
    }
}

void CmRcPort::on_event_locked(const CmEvent& event) {
    if (datagrams_.take(event, device_.now_us())) {
        return;
    }
    if (event.type == CmEventType::kRequest) {
        on_request_locked(event);
        return;
    }
    CmRcConnection* const connection = find_locked(event);
    if (connection == nullptr) {
        return;  // of one that is gone
    }
    switch (event.type) {
        case CmEventType::kReply: on_reply_locked(*connection, event); break;
        case CmEventType::kEstablished: opened_locked(*connection, {}); break;
        case CmEventType::kRejected: on_rejected_locked(*connection, event); break;
        case CmEventType::kUnreachable:
            if (connection->state() != State::kDialing ||
                device_.now_us() >= connection->deadline_us_ || !dial_locked(*connection).is_ok()) {
                fail_locked(*connection, ETIMEDOUT, {});
            }
            break;
        case CmEventType::kDisconnected: end_locked(*connection); break;
        case CmEventType::kRequest:
        case CmEventType::kSidrRequest:
        case CmEventType::kSidrReply: break;
    }
}

/// Takes the pair to RTS, with what the peer has said of its own.
Status CmRcPort::start_pair(CmRcConnection& connection, const CmEvent& peer) {
    if (connection.mtu_bytes_ > device_.payload_bytes()) {
        return EMSGSIZE;  // the port has changed since that was agreed on
    }
    Qp& qp = connection.qp();
    const CmPair& remote = peer.remote;
    const QpAttr attr{.state = QpState::kRtr,
                      .ah = {.dest = connection.peer()},
                      .dest_qpn = remote.qpn,
                      .rq_psn = connection.psn_,
                      .path_mtu_bytes = connection.mtu_bytes_,
                      .max_dest_rd_atomic = kReads,
                      .min_rnr_timer = kRnrTimer,
                      .extended_atomics = has(peer.ca_guid, kHasExtendedAtomics),
                      .keeps_early = has(peer.ca_guid, kKeepsEarly)};
    const Status status =
        qp.modify(attr, QpMask::kState | QpMask::kAv | QpMask::kPathMtu | QpMask::kDestQpn |
                            QpMask::kRqPsn | QpMask::kMaxDestRdAtomic | QpMask::kMinRnrTimer |
                            QpMask::kExtendedAtomics | QpMask::kKeepsEarly);
    if (!status.is_ok()) {
        return status;
    }
    return qp.modify({.state = QpState::kRts,
                      .sq_psn = remote.starting_psn,
                      .max_rd_atomic = std::min(kReads, remote.responder_resources),
                      .timeout = kAckTimeout,
                      .retry_cnt = kRetries,
                      .rnr_retry = kRnrRetryForEver},
                     QpMask::kState | QpMask::kTimeout | QpMask::kRetryCnt | QpMask::kRnrRetry |
                         QpMask::kSqPsn | QpMask::kMaxRdAtomic);
}

void CmRcPort::on_reply_locked(CmRcConnection& connection, const CmEvent& event) {
    Status status = start_pair(connection, event);
    if (status.is_ok()) {
        status = agent_.establish(connection.handle_, {}, device_.now_us());
        if (status.error() == ENOENT) {
            // The peer has ended what it had accepted before we came to look.
            opened_locked(connection, data_of(event));
            end_locked(connection);
            return;
        }
    }
    if (!status.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot use a connection that the peer has accepted: %s",
                 strerrordesc_np(status.error()));
        hang_up_locked(connection);
        fail_locked(connection, status.error(), {});
        return;
    }
    opened_locked(connection, data_of(event));
}

void CmRcPort::on_rejected_locked(CmRcConnection& connection, const CmEvent& event) {
    using enum protocol::CmRejectReason;
    const bool may_ask_again =
        connection.state() == State::kDialing && device_.now_us() < connection.deadline_us_;
    if (event.reason == kInvalidMtu && connection.mtu_bytes_ > kLeastMtu) {
        connection.mtu_bytes_ /= 2;
    } else if (event.reason != kStaleConnection && event.reason != kTimeout) {
        RVT_INFO(kEpCtrl, "a peer refuses the connection: %s", protocol::to_string(event.reason));
        fail_locked(connection, ECONNREFUSED,
                    event.reason == kConsumer ? data_of(event) : std::span<const std::byte>());
        return;
    }
    if (!may_ask_again || !dial_locked(connection).is_ok()) {
        fail_locked(connection, ECONNREFUSED, {});
    }
}

void CmRcPort::opened_locked(CmRcConnection& connection, std::span<const std::byte> private_data) {
    if (connection.state() != State::kDialing && connection.state() != State::kAccepted) {
        return;  // ended while it was being made
    }
    connection.is_doubted_ = false;
    connection.greeting_ = {};
    connection.set_state(State::kOpen);
    connection.user_.connected(connection, private_data);
}

void CmRcPort::fail_locked(CmRcConnection& connection, int error,
                           std::span<const std::byte> private_data) {
    const State before = connection.state();
    connection.is_doubted_ = false;
    connection.handle_ = CmHandle::kNone;
    connection.set_state(State::kEnded);
    [[maybe_unused]] const Status flushed =
        connection.qp().modify({.state = QpState::kErr}, QpMask::kState);
    if (before == State::kDialing || before == State::kAccepted) {
        connection.user_.connect_failed(error, private_data);
    } else if (before != State::kEnded) {
        connection.user_.disconnected();
    }
}

void CmRcPort::end_locked(CmRcConnection& connection) {
    if (connection.state() == State::kEnded) {
        return;
    }
    hang_up_locked(connection);
    connection.is_doubted_ = false;
    connection.set_state(State::kEnded);
    [[maybe_unused]] const Status flushed =
        connection.qp().modify({.state = QpState::kErr}, QpMask::kState);
    connection.user_.disconnected();
}

/// Tells the peer, if that is not how we know.
void CmRcPort::hang_up_locked(CmRcConnection& connection) {
    [[maybe_unused]] const Status told =
        agent_.disconnect(connection.handle_, {}, device_.now_us());
    look_soon();
}

// ---- traffic ----

unsigned CmRcPort::poll() noexcept {
    std::uint64_t now = 0;
    const unsigned moved = device_.progress(now);
    if (moved != 0) {
        last_traffic_us_.store(now, std::memory_order_relaxed);  // relaxed: a hint
    }
    // relaxed: what begins to wait right now is sent with the next poll.
    if (has_waiting_.load(std::memory_order_relaxed)) [[unlikely]] {
        const util::Guard guard(lock_);
        send_waiting_locked();
    }
    look_at_cm(now);
    // Behind it: who has made a connection, and then a request that fails, is heard of in this
    // order. relaxed: end_failed() looks again; what fails right now is seen by the next poll.
    if (has_failed_.load(std::memory_order_relaxed)) [[unlikely]] {
        end_failed();
    }
    if (moved == 0 && is_quiet(now)) {
        is_hot_.store(false, std::memory_order_relaxed);  // relaxed: a hint to who polls
    }
    return moved;
}

bool CmRcPort::is_quiet(std::uint64_t now) noexcept {
    // relaxed: a hint.
    if (now - last_traffic_us_.load(std::memory_order_relaxed) <= idle_us_) {
        return false;
    }
    const std::uint64_t due = next_due_us();
    return due == kNever || due > now + kSoonUs;
}

std::uint64_t CmRcPort::next_due_us() noexcept {
    // relaxed: as below.
    if (has_failed_.load(std::memory_order_relaxed)) [[unlikely]] {
        return 0;
    }
    // relaxed: what is due by then was known to this thread, or another looks after it.
    return std::min(device_.next_due_us(), cm_due_us_.load(std::memory_order_relaxed));
}

}  // namespace rvt::core
