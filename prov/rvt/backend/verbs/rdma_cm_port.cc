// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What rdma_cm reports, and what follows for the pairs.
#include "backend/verbs/rdma_cm_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>

#include "backend/verbs/translate.h"
#include "core/addresses.h"
#include "util/log.h"

namespace rvt::verbs {
namespace {

// Of both ends' pairs: a request has them for the other, too. rxe of the kernel takes 7, which
// other callers ask for, for any number, so that a silent host would never be noticed.
constexpr std::uint8_t kRetries = 6;
constexpr std::uint8_t kMinRnrTimer = 12;  // 0.64 ms; rdma_cm's own is the longest there is, 0.66 s
// Of requests that nobody has answered: the most that the kernel takes where it is not told
// otherwise. Who listens may refuse some of them.
constexpr int kListenBacklog = 1024;
constexpr int kResolveMs = 2000;
// Of rdma_cm's messages over InfiniBand and RoCE: IBTA vol. 1, 12.6.5 and annex A11. A port of
// iWARP has more.
constexpr std::size_t kRequestBytes = 56;
constexpr std::size_t kReplyBytes = 196;
constexpr std::size_t kRejectBytes = 148;
constexpr int kConsumerReject = 28;             // IBTA vol. 1, table 98
constexpr std::uint64_t kFlushUs = 1'000'000;   // how long a NIC that is gone may take to flush
constexpr std::uint64_t kHangUpUs = 1'000'000;  // how long the answer to a DREQ is waited for

constexpr Access kPairAccess =
    Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kRemoteAtomic;
constexpr int kPairIbvAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

Status status_of(int result) noexcept {
    return result == 0 ? kOk : Status(errno != 0 ? errno : EIO);
}

/// rdma_cm's events carry errors with either sign.
int error_of(int status, int otherwise) noexcept {
    return status != 0 ? std::abs(status) : otherwise;
}

Address peer_of(rdma_cm_id* id) noexcept {
    const auto peer = util::SockAddr::from(rdma_get_peer_addr(id), sizeof(sockaddr_in6));
    return peer.is_ok() ? core::to_address(peer.value()) : Address{};
}

void* context_of(std::uint64_t number) noexcept {
    return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): only compared
}

}  // namespace

// ---- life ----

RdmaCmPort::RdmaCmPort(const RdmaCmPortAttr& attr)
    : RcPort(attr.nic->device(), is_hot_for_nobody_),
      nic_(*attr.nic),
      address_(attr.address),
      connect_timeout_us_(std::uint64_t{attr.connect_timeout_ms} * 1000) {}

Result<std::unique_ptr<RdmaCmPort>> RdmaCmPort::open(const RdmaCmPortAttr& attr) {
    std::unique_ptr<RdmaCmPort> port(new RdmaCmPort(attr));
    const Status started = port->start(attr.listens);
    return started.is_ok() ? Result<std::unique_ptr<RdmaCmPort>>(std::move(port))
                           : Result<std::unique_ptr<RdmaCmPort>>(started);
}

RdmaCmPort::~RdmaCmPort() {
    const util::Guard guard(lock_);
    requests_.clear();
    listening_.reset();
}

CmId RdmaCmPort::make_id(std::uint64_t number) noexcept {
    rdma_cm_id* id = nullptr;
    const int made = lib().rdma_create_id(events_.get(), &id, context_of(number), RDMA_PS_TCP);
    return {made == 0 ? id : nullptr, lib().rdma_destroy_id};
}

Status RdmaCmPort::start(bool listens) {
    events_ = Events(lib().rdma_create_event_channel(), lib().rdma_destroy_event_channel);
    if (events_ == nullptr) {
        return status_of(-1);
    }
    events_fd_ = LibraryFd(events_->fd);
    const int flags = fcntl(events_->fd, F_GETFL);
    if (flags < 0 || fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return errno;
    }
    if (!listens) {
        return kOk;
    }
    const util::Guard guard(lock_);
    listening_ = make_id(0);
    sockaddr_storage own{};
    address_.to(&own);
    if (listening_ == nullptr ||
        lib().rdma_bind_addr(listening_.get(), reinterpret_cast<sockaddr*>(&own)) != 0) {
        return status_of(-1);
    }
    address_.port = ntohs(lib().rdma_get_src_port(listening_.get()));
    return kOk;
}

std::size_t RdmaCmPort::private_bytes() const noexcept {
    return kRequestBytes;
}

Result<std::unique_ptr<core::RcConnection>> RdmaCmPort::make(core::Pd& pd, const core::QpInit& init,
                                                             core::RcUser& user) {
    const auto made = core::create_qp(pd, init);
    if (!made.is_ok()) {
        return made.status();
    }
    core::Qp& qp = *made.value();
    // Receives can be posted from now on.
    const Status status =
        qp.modify({.state = QpState::kInit, .access = kPairAccess},
                  QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess);
    if (!status.is_ok()) {
        [[maybe_unused]] const Status destroyed = core::destroy_qp(&qp);
        return status;
    }
    const util::Guard guard(lock_);
    if (is_gone_) {
        [[maybe_unused]] const Status destroyed = core::destroy_qp(&qp);
        return ENODEV;
    }
    auto connection = std::make_unique<RdmaCmConnection>(next_number_++, qp, user);
    connections_[connection->number_] = connection.get();
    return std::unique_ptr<core::RcConnection>(std::move(connection));
}

void RdmaCmPort::destroy(std::unique_ptr<core::RcConnection> which) noexcept {
    RdmaCmConnection& connection = own(*which);
    CmId id{nullptr, nullptr};
    {
        const util::Guard guard(lock_);
        connections_.erase(connection.number_);
        id = std::move(connection.id_);
    }
    if (id != nullptr) {
        lib().rdma_disconnect(id.get());  // where there is a connection
        id.reset();
    }
    [[maybe_unused]] const Status destroyed = core::destroy_qp(&connection.qp());
}

// ---- pairs ----

rdma_conn_param RdmaCmPort::param_for(const core::Qp& qp,
                                      std::span<const std::byte> private_data) const noexcept {
    rdma_conn_param param{};
    param.private_data = private_data.empty() ? nullptr : private_data.data();
    param.private_data_len = static_cast<std::uint8_t>(private_data.size());
    param.responder_resources = nic_.limits().max_reads_in;
    param.initiator_depth = nic_.limits().max_reads_out;
    param.retry_count = kRetries;
    param.rnr_retry_count = kRnrRetryForEver;
    param.srq = qp.srq() != nullptr ? 1 : 0;
    param.qp_num = qp.qpn();
    return param;
}

/// @param peer  What the event says of READs and atomics, as this end is to take it:
///              rdma_get_cm_event(3).
Status RdmaCmPort::move_pair(const RdmaCmConnection& connection, ibv_qp_state to,
                             const rdma_conn_param& peer) const noexcept {
    ibv_qp_attr attr{};
    int mask = 0;
    attr.qp_state = to;
    if (lib().rdma_init_qp_attr(connection.id_.get(), &attr, &mask) != 0) {
        return status_of(-1);
    }
    switch (to) {
        case IBV_QPS_INIT: attr.qp_access_flags = kPairIbvAccess; break;
        case IBV_QPS_RTR:
            attr.max_dest_rd_atomic =
                std::min(nic_.limits().max_reads_in, peer.responder_resources);
            attr.min_rnr_timer = kMinRnrTimer;
            mask |= IBV_QP_MIN_RNR_TIMER;
            break;
        case IBV_QPS_RTS:
            attr.max_rd_atomic = std::min(nic_.limits().max_reads_out, peer.initiator_depth);
            attr.retry_cnt = std::min(attr.retry_cnt, kRetries);
            break;
        default: break;
    }
    const Status moved =
        from_ibv(lib().ibv_modify_qp(static_cast<ibv_qp*>(connection.qp().priv()), &attr, mask));
    if (moved.is_ok()) {
        connection.qp().note_state(from_ibv(to));
    }
    return moved;
}

/// To RTS. With iWARP it is rdma_cm that moves it.
Status RdmaCmPort::start_pair(const RdmaCmConnection& connection,
                              const rdma_conn_param& peer) const noexcept {
    if (nic_.quirks().cm_moves_pairs) {
        return kOk;
    }
    const Status ready = move_pair(connection, IBV_QPS_RTR, peer);
    return ready.is_ok() ? move_pair(connection, IBV_QPS_RTS, peer) : ready;
}

// ---- the owner's wishes ----

Status RdmaCmPort::connect(core::RcConnection& which, const core::RcCall& call,
                           std::span<const std::byte> private_data) {
    RdmaCmConnection& connection = own(which);
    if (private_data.size() > kRequestBytes) {
        return EMSGSIZE;
    }
    const util::Guard guard(lock_);
    if (connection.state() != State::kIdle) {
        return EINVAL;
    }
    util::SockAddr from = address_;
    from.port = call.source;
    util::SockAddr to = core::to_sock_addr(call.dest);
    to.port = call.service;
    sockaddr_storage source{};
    sockaddr_storage dest{};
    from.to(&source);
    to.to(&dest);
    connection.id_ = make_id(connection.number_);
    if (connection.id_ == nullptr ||
        lib().rdma_resolve_addr(connection.id_.get(), reinterpret_cast<sockaddr*>(&source),
                                reinterpret_cast<sockaddr*>(&dest), kResolveMs) != 0) {
        const Status why = status_of(-1);
        connection.id_.reset();
        return why.error() == EINVAL ? Status(EADDRNOTAVAIL) : why;
    }
    connection.set_peer(call.dest, call.service);
    connection.greeting_.assign(private_data.begin(), private_data.end());
    connection.deadline_us_ = device().now_us() + connect_timeout_us_;
    connection.set_state(State::kDialing);
    return kOk;
}

Status RdmaCmPort::accept(core::RcConnection& which, const core::CmEvent& request,
                          std::span<const std::byte> private_data) {
    RdmaCmConnection& connection = own(which);
    if (private_data.size() > kReplyBytes) {
        return EMSGSIZE;
    }
    const util::Guard guard(lock_);
    if (connection.state() != State::kIdle) {
        return EINVAL;
    }
    const auto found = requests_.find(static_cast<std::uint64_t>(request.handle));
    if (found == requests_.end()) {
        connection.set_state(State::kEnded);
        [[maybe_unused]] const Status flushed = flush_locked(connection);
        return ECONNABORTED;
    }
    // The number goes with the id: news of it may have been read already, and the lock come later.
    connections_.erase(connection.number_);
    connection.number_ = found->first;
    connections_[connection.number_] = &connection;
    Request taken = std::move(found->second);
    requests_.erase(found);
    connection.id_ = std::move(taken.id);
    connection.set_peer(request.peer, request.peer.port);
    const Status answered = answer_locked(connection, taken.param, private_data);
    if (!answered.is_ok()) {
        lib().rdma_reject(connection.id_.get(), nullptr, 0);
        connection.set_state(State::kEnded);
        [[maybe_unused]] const Status flushed = flush_locked(connection);
    }
    // With an id whose peer has given up, rdma_cm finds nothing to accept.
    return answered.error() == EINVAL ? Status(ECONNABORTED) : answered;
}

/// @param peer  As move_pair().
Status RdmaCmPort::answer_locked(RdmaCmConnection& connection, const rdma_conn_param& peer,
                                 std::span<const std::byte> private_data) {
    connection.set_state(State::kAccepted);
    Status status = move_pair(connection, IBV_QPS_INIT, peer);
    status = status.is_ok() ? start_pair(connection, peer) : status;
    if (!status.is_ok()) {
        return status;
    }
    rdma_conn_param param = param_for(connection.qp(), private_data);
    param.responder_resources = std::min(param.responder_resources, peer.responder_resources);
    param.initiator_depth = std::min(param.initiator_depth, peer.initiator_depth);
    return status_of(lib().rdma_accept(connection.id_.get(), &param));
}

Status RdmaCmPort::reject(core::CmHandle request, std::span<const std::byte> private_data) {
    if (private_data.size() > kRejectBytes) {
        return EMSGSIZE;
    }
    const util::Guard guard(lock_);
    const auto found = requests_.find(static_cast<std::uint64_t>(request));
    if (found == requests_.end()) {
        return ECONNABORTED;
    }
    const int told = lib().rdma_reject(found->second.id.get(), private_data.data(),
                                       static_cast<std::uint8_t>(private_data.size()));
    const Status status = told == 0 ? kOk : Status(ECONNABORTED);
    requests_.erase(found);
    return status;
}

Status RdmaCmPort::disconnect(core::RcConnection& which) {
    RdmaCmConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() != State::kOpen && connection.state() != State::kAccepted) {
        return ENOTCONN;
    }
    connection.set_state(State::kClosing);
    connection.deadline_us_ = device().now_us() + kHangUpUs;
    lib().rdma_disconnect(connection.id_.get());
    return flush_locked(connection);
}

void RdmaCmPort::note_failure(core::RcConnection& which) noexcept {
    RdmaCmConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() == State::kOpen || connection.state() == State::kAccepted) {
        end_failed_locked(connection);
    }
}

void RdmaCmPort::note_traffic(core::RcConnection& which) noexcept {
    RdmaCmConnection& connection = own(which);
    const util::Guard guard(lock_);
    if (connection.state() == State::kAccepted) {
        lib().rdma_notify(connection.id_.get(), IBV_EVENT_COMM_EST);
    }
}

Status RdmaCmPort::listen(std::uint16_t /*service*/, core::RcListener& listener) {
    const util::Guard guard(lock_);
    if (listening_ == nullptr || listener_ != nullptr) {
        return EADDRINUSE;
    }
    const Status listens = status_of(lib().rdma_listen(listening_.get(), kListenBacklog));
    listener_ = listens.is_ok() ? &listener : nullptr;
    return listens;
}

/// Requests that have been reported stay to be answered.
void RdmaCmPort::unlisten(std::uint16_t /*service*/) noexcept {
    CmId listening{nullptr, nullptr};
    const util::Guard guard(lock_);
    if (listener_ != nullptr) {
        listener_ = nullptr;
        listening = std::move(listening_);
    }
}

// ---- events ----

RdmaCmPort::News RdmaCmPort::news_of(const rdma_cm_event& event) noexcept {
    News news{.type = event.event,
              .status = event.status,
              .number = reinterpret_cast<std::uintptr_t>(event.id->context),
              .request = event.event == RDMA_CM_EVENT_CONNECT_REQUEST ? event.id : nullptr,
              .param = event.param.conn};
    news.bytes = std::min<std::size_t>(event.param.conn.private_data_len, news.data.size());
    if (event.param.conn.private_data == nullptr) {
        news.bytes = 0;
    }
    if (news.bytes != 0) {
        std::memcpy(news.data.data(), event.param.conn.private_data, news.bytes);
    }
    news.param.private_data = nullptr;
    return news;
}

/// An id can be destroyed only when its events have been acknowledged, which may be waited for
/// under the lock: so that comes first.
void RdmaCmPort::take_events() noexcept {
    rdma_cm_event* event = nullptr;
    while (lib().rdma_get_cm_event(events_.get(), &event) == 0) {
        const News news = news_of(*event);
        lib().rdma_ack_cm_event(event);
        const util::Guard guard(lock_);
        on_news_locked(news);
    }
}

void RdmaCmPort::on_request_locked(const News& news) {
    CmId id(news.request, lib().rdma_destroy_id);
    if (listener_ == nullptr) {
        lib().rdma_reject(id.get(), nullptr, 0);
        return;
    }
    const std::uint64_t number = next_number_++;
    id->context = context_of(number);
    const core::CmEvent event{.type = core::CmEventType::kRequest,
                              .handle = static_cast<core::CmHandle>(number),
                              .peer = peer_of(id.get())};
    requests_[number] = {.id = std::move(id), .param = news.param};
    if (!listener_->requested(event, news.private_data())) {
        const auto refused = requests_.extract(number);
        lib().rdma_reject(refused.mapped().id.get(), nullptr, 0);
    }
}

void RdmaCmPort::on_news_locked(const News& news) {
    if (news.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        on_request_locked(news);
        return;
    }
    if (news.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
        return;  // check_deadlines() looks who is concerned
    }
    const auto found = connections_.find(news.number);
    if (found == connections_.end()) {
        // Of a request: whatever it is, the peer does not wait for the answer any more.
        requests_.erase(news.number);
        return;
    }
    RdmaCmConnection& connection = *found->second;
    switch (news.type) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: on_resolved_locked(connection); break;
        case RDMA_CM_EVENT_ROUTE_RESOLVED: on_route_locked(connection); break;
        case RDMA_CM_EVENT_CONNECT_RESPONSE: on_reply_locked(connection, news); break;
        case RDMA_CM_EVENT_ESTABLISHED: opened_locked(connection, news.private_data()); break;
        case RDMA_CM_EVENT_ADDR_ERROR:
        case RDMA_CM_EVENT_ROUTE_ERROR:
            fail_locked(connection, error_of(news.status, EHOSTUNREACH), {});
            break;
        case RDMA_CM_EVENT_UNREACHABLE: fail_locked(connection, ETIMEDOUT, {}); break;
        case RDMA_CM_EVENT_CONNECT_ERROR:
            fail_locked(connection, error_of(news.status, ECONNABORTED), {});
            break;
        case RDMA_CM_EVENT_REJECTED: {
            const bool is_users = news.status == kConsumerReject || nic_.quirks().cm_moves_pairs;
            fail_locked(connection, ECONNREFUSED,
                        is_users ? news.private_data() : std::span<const std::byte>());
            break;
        }
        case RDMA_CM_EVENT_DISCONNECTED:
        case RDMA_CM_EVENT_ADDR_CHANGE:
            if (connection.state() == State::kDialing) {
                fail_locked(connection, ECONNABORTED, {});
            } else {
                end_locked(connection);
            }
            break;
        default: break;
    }
}

void RdmaCmPort::on_resolved_locked(RdmaCmConnection& connection) {
    if (connection.state() != State::kDialing) {
        return;  // given up meanwhile
    }
    const ibv_context* const leads = connection.id_->verbs;
    if (leads == nullptr || !is_device_of(nic_.address(), *leads->device)) {
        RVT_WARN(kEpCtrl, "cannot connect from %s: the way there does not begin at NIC %s",
                 address_.to_string().c_str(), nic_.address().device.c_str());
        fail_locked(connection, EHOSTUNREACH, {});
        return;
    }
    if (lib().rdma_resolve_route(connection.id_.get(), kResolveMs) != 0) {
        fail_locked(connection, status_of(-1).error(), {});
    }
}

void RdmaCmPort::on_route_locked(RdmaCmConnection& connection) {
    if (connection.state() != State::kDialing) {
        return;  // given up meanwhile
    }
    Status status = move_pair(connection, IBV_QPS_INIT, {});
    if (status.is_ok()) {
        rdma_conn_param param = param_for(connection.qp(), connection.greeting_);
        status = status_of(lib().rdma_connect(connection.id_.get(), &param));
    }
    if (!status.is_ok()) {
        fail_locked(connection, status.error(), {});
    }
}

void RdmaCmPort::on_reply_locked(RdmaCmConnection& connection, const News& news) {
    if (connection.state() != State::kDialing) {
        lib().rdma_reject(connection.id_.get(), nullptr, 0);  // given up meanwhile
        return;
    }
    Status status = start_pair(connection, news.param);
    if (status.is_ok()) {
        status = status_of(lib().rdma_establish(connection.id_.get()));
    }
    if (!status.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot use a connection that the peer has accepted: %s",
                 strerrordesc_np(status.error()));
        // For rdma_disconnect() it is too early: the peer would wait until its time is over.
        lib().rdma_reject(connection.id_.get(), nullptr, 0);
        fail_locked(connection, status.error(), {});
        return;
    }
    opened_locked(connection, news.private_data());
}

void RdmaCmPort::opened_locked(RdmaCmConnection& connection,
                               std::span<const std::byte> private_data) {
    if (connection.state() != State::kDialing && connection.state() != State::kAccepted) {
        return;  // ended while it was being made
    }
    if (nic_.quirks().cm_moves_pairs) {
        connection.qp().note_state(QpState::kRts);
    }
    const bool has_asked = connection.state() == State::kDialing;
    connection.greeting_ = {};
    connection.set_state(State::kOpen);
    connection.user_.connected(connection, has_asked ? private_data : std::span<const std::byte>());
}

void RdmaCmPort::fail_locked(RdmaCmConnection& connection, int error,
                             std::span<const std::byte> private_data) {
    const State before = connection.state();
    if (before == State::kEnded || before == State::kIdle) {
        return;
    }
    connection.set_state(State::kEnded);
    [[maybe_unused]] const Status flushed = flush_locked(connection);
    if (before == State::kDialing || before == State::kAccepted) {
        connection.user_.connect_failed(error, private_data);
    } else {
        connection.user_.disconnected();
    }
}

void RdmaCmPort::end_locked(RdmaCmConnection& connection) {
    if (connection.state() == State::kEnded || connection.state() == State::kIdle) {
        return;
    }
    connection.set_state(State::kEnded);
    lib().rdma_disconnect(connection.id_.get());
    [[maybe_unused]] const Status flushed = flush_locked(connection);
    connection.user_.disconnected();
}

/// Of one that works. What has failed may be a request of a peer whose word that it is ready is
/// still on its way: the user is told that the connection is there before it is told that it is
/// not.
void RdmaCmPort::end_failed_locked(RdmaCmConnection& connection) {
    opened_locked(connection, {});
    end_locked(connection);
}

// ---- the end of the device ----

/// What is posted comes back with errors. A device that does not do even that is gone.
Status RdmaCmPort::flush_locked(RdmaCmConnection& connection) noexcept {
    const Status flushed = connection.qp().modify({.state = QpState::kErr}, QpMask::kState);
    if (!flushed.is_ok()) {
        lose(connection);
    }
    return flushed;
}

/// The user is to end it; one that sleeps until something completes is told. What has completed
/// has to be read before the pair is reset, which is the user's to do: RESET would discard it.
void RdmaCmPort::lose(RdmaCmConnection& connection) noexcept {
    connection.set_lost();
    core::VerbsCq& queue = *connection.qp().init().send_cq;
    if (queue.channel() != nullptr) {
        queue.channel()->notify(queue);
    }
}

void RdmaCmPort::end_with_device_locked(RdmaCmConnection& connection) {
    connection.deadline_us_ = device().now_us() + kFlushUs;
    switch (connection.state()) {
        case State::kIdle: {
            connection.set_state(State::kEnded);
            [[maybe_unused]] const Status flushed = flush_locked(connection);
            connection.user_.device_failed(ENODEV);
            break;
        }
        case State::kDialing:
        case State::kAccepted: fail_locked(connection, ENODEV, {}); break;
        case State::kOpen:
        case State::kClosing:
            connection.user_.device_failed(ENODEV);
            end_locked(connection);
            break;
        case State::kEnded:
            connection.user_.device_failed(ENODEV);
            if (connection.is_lost()) {
                lose(connection);  // once more: the receives of a shared queue were left
            }
            break;
    }
}

void RdmaCmPort::end_all_locked() {
    if (std::exchange(is_gone_, true)) {
        return;
    }
    requests_.clear();
    if (listener_ != nullptr) {
        listener_->device_failed(ENODEV);
    }
    for (const auto& [number, connection] : connections_) {
        end_with_device_locked(*connection);
    }
}

/// A device that has ended a pair need not flush it. What it flushes into a queue that has failed
/// nobody sees.
void RdmaCmPort::end_if_failed_locked(RdmaCmConnection& connection) {
    const State state = connection.state();
    const bool is_up = state == State::kOpen || state == State::kAccepted;
    const bool has_queue = !connection.qp().init().send_cq->has_failed();
    if (is_up && (!has_queue || connection.qp().state() == QpState::kErr)) {
        connection.has_failed_ = true;
        connection.deadline_us_ = device().now_us() + (has_queue ? kFlushUs : 0);
        end_failed_locked(connection);
    } else if (state == State::kEnded && !has_queue && !connection.is_lost()) {
        lose(connection);
    }
}

std::uint64_t RdmaCmPort::check_deadlines() noexcept {
    const util::Guard guard(lock_);
    if (device().is_going()) {
        end_all_locked();
    }
    const std::uint64_t now = device().now_us();
    std::uint64_t due = kNever;
    for (const auto& [number, connection] : connections_) {
        end_if_failed_locked(*connection);
        const State state = connection->state();
        const bool is_ending = is_gone_ || connection->has_failed_;
        const bool is_waited_for = is_ending ? !connection->is_lost()
                                             : state == State::kDialing || state == State::kClosing;
        if (!is_waited_for) {
            continue;
        }
        if (now < connection->deadline_us_) {
            due = std::min(due, connection->deadline_us_);
        } else if (is_ending) {
            lose(*connection);
        } else if (state == State::kClosing) {
            end_locked(*connection);
        } else {
            fail_locked(*connection, ETIMEDOUT, {});
        }
    }
    return due;
}

}  // namespace rvt::verbs
