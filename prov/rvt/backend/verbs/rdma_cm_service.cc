// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Questions and answers, by the ids of rdma_cm.
#include "backend/verbs/rdma_cm_service.h"

#include <cerrno>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "core/addresses.h"
#include "util/log.h"

namespace rvt::verbs {
namespace {

constexpr int kListenBacklog = 128;
constexpr int kResolveMs = 2000;

Status status_of(int result) noexcept {
    return result == 0 ? kOk : Status(errno != 0 ? errno : EIO);
}

void* context_of(std::uint64_t number) noexcept {
    return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): only compared
}

}  // namespace

// ---- life ----

RdmaCmService::RdmaCmService(const RdmaCmServiceAttr& attr) noexcept
    : nic_(*attr.nic), address_(attr.address), timeout_us_(std::uint64_t{attr.timeout_ms} * 1000) {}

Result<std::unique_ptr<RdmaCmService>> RdmaCmService::open(const RdmaCmServiceAttr& attr) {
    std::unique_ptr<RdmaCmService> service(new RdmaCmService(attr));
    const Status started = service->start();
    return started.is_ok() ? Result<std::unique_ptr<RdmaCmService>>(std::move(service))
                           : Result<std::unique_ptr<RdmaCmService>>(started);
}

RdmaCmService::~RdmaCmService() {
    const util::Guard guard(lock_);
    questions_.clear();
    listening_.reset();
}

RdmaCmService::CmId RdmaCmService::make_id(std::uint64_t number) noexcept {
    rdma_cm_id* id = nullptr;
    const int made = lib().rdma_create_id(events_.get(), &id, context_of(number), RDMA_PS_UDP);
    return {made == 0 ? id : nullptr, lib().rdma_destroy_id};
}

bool RdmaCmService::begins_at_nic(const rdma_cm_id& id) const noexcept {
    return id.verbs != nullptr && is_device_of(nic_.address(), *id.verbs->device);
}

Status RdmaCmService::start() {
    events_ = Events(lib().rdma_create_event_channel(), lib().rdma_destroy_event_channel);
    if (events_ == nullptr) {
        return status_of(-1);
    }
    events_fd_ = LibraryFd(events_->fd);
    const int flags = fcntl(events_->fd, F_GETFL);
    if (flags < 0 || fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return errno;
    }
    const util::Guard guard(lock_);
    listening_ = make_id(0);
    sockaddr_storage own{};
    address_.to(&own);
    if (listening_ == nullptr ||
        lib().rdma_bind_addr(listening_.get(), reinterpret_cast<sockaddr*>(&own)) != 0) {
        return status_of(-1);
    }
    if (!begins_at_nic(*listening_)) {
        return EADDRNOTAVAIL;
    }
    address_.port = ntohs(lib().rdma_get_src_port(listening_.get()));
    return kOk;
}

// ---- the owner's wishes ----

Status RdmaCmService::open_service(std::uint16_t service, const core::UdPair& pair,
                                   core::SidrUser& user) {
    const util::Guard guard(lock_);
    if (service != address_.port || user_ != nullptr) {
        return EADDRINUSE;
    }
    const Status listens = status_of(lib().rdma_listen(listening_.get(), kListenBacklog));
    if (listens.is_ok()) {
        user_ = &user;
        pair_ = pair;
    }
    return listens;
}

void RdmaCmService::close_service(std::uint16_t /*service*/) noexcept {
    const util::Guard guard(lock_);
    user_ = nullptr;
    questions_.clear();
    listening_.reset();
}

Status RdmaCmService::ask(const Address& peer, std::uint16_t /*own*/) {
    const util::Guard guard(lock_);
    const std::uint64_t number = next_number_++;
    // The number that we listen at is taken, so that a question comes from another one.
    util::SockAddr from = address_;
    from.port = 0;
    sockaddr_storage source{};
    sockaddr_storage dest{};
    from.to(&source);
    core::to_sock_addr(peer).to(&dest);
    Question question{
        .id = make_id(number), .peer = peer, .deadline_us = device().now_us() + timeout_us_};
    if (question.id == nullptr ||
        lib().rdma_resolve_addr(question.id.get(), reinterpret_cast<sockaddr*>(&source),
                                reinterpret_cast<sockaddr*>(&dest), kResolveMs) != 0) {
        return status_of(-1);
    }
    questions_[number] = std::move(question);
    return kOk;
}

// ---- events ----

RdmaCmService::News RdmaCmService::news_of(const rdma_cm_event& event) noexcept {
    return {.type = event.event,
            .status = event.status,
            .number = reinterpret_cast<std::uintptr_t>(event.id->context),
            .request = event.event == RDMA_CM_EVENT_CONNECT_REQUEST ? event.id : nullptr,
            .pair = {.qpn = event.param.ud.qp_num, .qkey = event.param.ud.qkey}};
}

/// An id can be destroyed only when its events have been acknowledged, which may be waited for
/// under the lock: so that comes first.
void RdmaCmService::take_events() noexcept {
    rdma_cm_event* event = nullptr;
    while (lib().rdma_get_cm_event(events_.get(), &event) == 0) {
        const News news = news_of(*event);
        lib().rdma_ack_cm_event(event);
        const util::Guard guard(lock_);
        on_news_locked(news);
    }
}

/// Tells a peer the pair. Nothing follows, so that the id is not needed any more.
void RdmaCmService::answer_locked(rdma_cm_id* request) {
    const CmId id(request, lib().rdma_destroy_id);
    if (user_ == nullptr) {
        lib().rdma_reject(id.get(), nullptr, 0);
        return;
    }
    rdma_conn_param param{};
    param.qp_num = pair_.qpn;  // with the Q_Key of the port space
    if (lib().rdma_accept(id.get(), &param) != 0) {
        RVT_INFO(kEpCtrl, "cannot answer a question for datagrams at %s: %s",
                 address_.to_string().c_str(), strerrordesc_np(errno));
    }
}

void RdmaCmService::on_news_locked(const News& news) {
    if (news.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        answer_locked(news.request);
        return;
    }
    const auto found = questions_.find(news.number);
    if (found == questions_.end()) {
        return;
    }
    switch (news.type) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
            if (const Status went = go_on_locked(found->second, news); !went.is_ok()) {
                finish_locked(news.number, went);
            }
            break;
        case RDMA_CM_EVENT_ESTABLISHED: finish_locked(news.number, news.pair); break;
        // The status is that of service ID resolution, or an error of the way there.
        case RDMA_CM_EVENT_UNREACHABLE:
            finish_locked(news.number, news.status > 0 ? ECONNREFUSED : ETIMEDOUT);
            break;
        case RDMA_CM_EVENT_REJECTED: finish_locked(news.number, ECONNREFUSED); break;
        default: finish_locked(news.number, ETIMEDOUT); break;
    }
}

Status RdmaCmService::go_on_locked(const Question& question, const News& news) {
    if (news.type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
        rdma_conn_param param{};
        return status_of(lib().rdma_connect(question.id.get(), &param));
    }
    if (!begins_at_nic(*question.id)) {
        RVT_WARN(kEpCtrl, "cannot send datagrams to %s: the way there does not begin at NIC %s",
                 core::to_sock_addr(question.peer).to_string().c_str(),
                 nic_.address().device.c_str());
        return ETIMEDOUT;
    }
    return status_of(lib().rdma_resolve_route(question.id.get(), kResolveMs));
}

void RdmaCmService::finish_locked(std::uint64_t number, const Result<core::UdPair>& pair) {
    auto question = questions_.extract(number);
    if (user_ != nullptr) {
        user_->resolved(question.mapped().peer, pair);
    }
}

void RdmaCmService::check_deadlines() noexcept {
    const util::Guard guard(lock_);
    const std::uint64_t now = device().now_us();
    std::vector<std::uint64_t> over;
    for (const auto& [number, question] : questions_) {
        if (now >= question.deadline_us) {
            over.push_back(number);
        }
    }
    for (const std::uint64_t number : over) {
        finish_locked(number, ETIMEDOUT);
    }
    if (user_ != nullptr && device().is_going()) {
        user_->device_gone();
    }
}

}  // namespace rvt::verbs
