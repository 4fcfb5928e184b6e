// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The functions of that rdma_cm.
#include "backend/verbs/mock_cm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::verbs {
namespace {

MockCm* cm = nullptr;

/// Whether the test wants this call to fail.
bool fails(std::string_view call) {
    cm->calls.push_back(call);
    errno = cm->error;
    return cm->failing == call;
}
int done(std::string_view call) {
    return fails(call) ? -1 : 0;
}
int done_with(std::string_view call, const void* data, std::size_t bytes) {
    const auto* const first = static_cast<const char*>(data);
    cm->private_data.assign(first, first + bytes);
    return done(call);
}

rdma_cm_id* make_id(void* context, rdma_port_space space) {
    auto* const id = new rdma_cm_id{};
    id->context = context;
    id->ps = space;
    id->verbs = cm->nic;
    cm->ids.push_back(id);
    return id;
}

rdma_event_channel* create_event_channel() {
    if (fails("create_event_channel")) {
        return nullptr;
    }
    ++cm->channels;
    return new rdma_event_channel{.fd = eventfd(0, EFD_CLOEXEC)};
}
void destroy_event_channel(rdma_event_channel* channel) {
    close(channel->fd);
    delete channel;
    --cm->channels;
}
int create_id(rdma_event_channel*, rdma_cm_id** id, void* context, rdma_port_space space) {
    if (fails("create_id")) {
        return -1;
    }
    *id = make_id(context, space);
    return 0;
}
int destroy_id(rdma_cm_id* id) {
    cm->waits_for_ever |=
        std::ranges::find(cm->unacknowledged, id, &rdma_cm_event::id) != cm->unacknowledged.end();
    std::erase_if(cm->events, [id](const MockCm::Event& event) { return event.id == id; });
    std::erase(cm->ids, id);
    delete id;
    return 0;
}
int bind_addr(rdma_cm_id* id, sockaddr* address) {
    std::memcpy(&id->route.addr.src_sin, address, sizeof id->route.addr.src_sin);
    id->route.addr.addr.ibaddr = cm->ib;
    id->port_num = 1;
    return done("bind_addr");
}
std::uint16_t get_src_port(rdma_cm_id* id) {
    const std::uint16_t asked = id->route.addr.src_sin.sin_port;
    return asked != 0 ? asked : htons(kAnyNumber);
}
int resolve_addr(rdma_cm_id* id, sockaddr*, sockaddr* dest, int) {
    std::memcpy(&id->route.addr.dst_sin, dest, sizeof id->route.addr.dst_sin);
    return done("resolve_addr");
}
int resolve_route(rdma_cm_id*, int) {
    return done("resolve_route");
}
int init_qp_attr(rdma_cm_id*, ibv_qp_attr* attr, int* mask) {
    *mask = IBV_QP_STATE;
    if (attr->qp_state == IBV_QPS_RTS) {
        attr->retry_cnt = static_cast<std::uint8_t>(cm->retries);
        *mask |= IBV_QP_RETRY_CNT;
    }
    return done("init_qp_attr");
}
int listen_at(rdma_cm_id*, int) {
    return done("listen");
}
int connect(rdma_cm_id*, rdma_conn_param* param) {
    return done_with("connect", param->private_data, param->private_data_len);
}
int establish(rdma_cm_id*) {
    return done("establish");
}
int accept(rdma_cm_id*, rdma_conn_param* param) {
    cm->accepted = *param;
    return done_with("accept", param->private_data, param->private_data_len);
}
int reject(rdma_cm_id*, const void* data, std::uint8_t bytes) {
    return done_with("reject", data, bytes);
}
int disconnect(rdma_cm_id*) {
    return done("disconnect");
}
int notify(rdma_cm_id*, ibv_event_type) {
    return done("notify");
}
int get_event(rdma_event_channel*, rdma_cm_event** event) {
    if (cm->events.empty()) {
        errno = EAGAIN;
        return -1;
    }
    auto* const next = new MockCm::Event(std::move(cm->events.front()));
    cm->events.pop_front();
    if (!next->bytes.empty()) {
        next->param.conn.private_data = next->bytes.data();
    }
    cm->unacknowledged.push_back(next);
    *event = next;
    return 0;
}
int ack_event(rdma_cm_event* event) {
    std::erase(cm->unacknowledged, event);
    delete static_cast<MockCm::Event*>(event);
    if (const auto meanwhile = std::exchange(cm->at_acknowledgement, nullptr)) {
        meanwhile();
    }
    return 0;
}

}  // namespace

MockCm::MockCm(Library& functions) {
    cm = this;
    functions.rdma_create_event_channel = create_event_channel;
    functions.rdma_destroy_event_channel = destroy_event_channel;
    functions.rdma_create_id = create_id;
    functions.rdma_destroy_id = destroy_id;
    functions.rdma_bind_addr = bind_addr;
    functions.rdma_get_src_port = get_src_port;
    functions.rdma_resolve_addr = resolve_addr;
    functions.rdma_resolve_route = resolve_route;
    functions.rdma_init_qp_attr = init_qp_attr;
    functions.rdma_listen = listen_at;
    functions.rdma_connect = connect;
    functions.rdma_establish = establish;
    functions.rdma_accept = accept;
    functions.rdma_reject = reject;
    functions.rdma_disconnect = disconnect;
    functions.rdma_notify = notify;
    functions.rdma_get_cm_event = get_event;
    functions.rdma_ack_cm_event = ack_event;
}

MockCm::~MockCm() {
    cm = nullptr;
}

bool MockCm::is_asked(std::string_view call) const {
    return std::ranges::find(calls, call) != calls.end();
}

void MockCm::report(rdma_cm_id& id, const Report& what) {
    Event& event = events.emplace_back();
    event.id = &id;
    event.event = what.type;
    event.status = what.status;
    if (id.ps == RDMA_PS_UDP) {
        event.param.ud.qp_num = what.qpn;
        event.param.ud.qkey = what.qkey;
        return;
    }
    event.bytes.assign(what.private_data.begin(), what.private_data.end());
    event.param.conn.private_data_len = static_cast<std::uint8_t>(event.bytes.size());
    event.param.conn.responder_resources = responder_resources;
    event.param.conn.initiator_depth = initiator_depth;
}

rdma_cm_id* MockCm::request(rdma_port_space space, const util::SockAddr& from,
                            std::span<const char> private_data) {
    rdma_cm_id* const id = make_id(nullptr, space);
    sockaddr_storage peer{};
    from.to(&peer);
    std::memcpy(&id->route.addr.dst_storage, &peer, sizeof peer);
    report(*id, {.type = RDMA_CM_EVENT_CONNECT_REQUEST, .private_data = private_data});
    return id;
}

}  // namespace rvt::verbs
