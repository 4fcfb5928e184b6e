// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints in the domain of a NIC that exists only here, as does rdma_cm, whose
// connections are made by telling what it would report.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>

#include "backend/verbs/mock_cm.h"
#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "backend/verbs/rdma_cm_port.h"
#include "common/check.h"
#include "core/addresses.h"
#include "ofi/compat.h"
#include "ofi/fabric.h"
#include "ofi/info.h"
#include "ofi/msg_nic.h"

namespace rvt::test {

inline constexpr util::SockAddr kOwn{.family = AF_INET, .ip = {10, 1, 2, 3}};
inline constexpr util::SockAddr kPeer{.family = AF_INET, .port = 7, .ip = {10, 1, 2, 9}};
/// What is reported of a connection that comes about.
inline constexpr std::array kWayThere{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
                                      RDMA_CM_EVENT_CONNECT_RESPONSE};
inline constexpr const char* kIdentity = "5054:00ff:fe12:3456";
inline constexpr const char* kStableName = "5054:00ff:fe12:3456/1";
inline constexpr std::size_t kReceives = 3;
inline constexpr std::size_t kSends = 2;

// ---- the NIC ----

class TestPort final : public ofi::MsgPort {
  public:
    explicit TestPort(std::unique_ptr<verbs::RdmaCmPort> cm) noexcept : cm_(std::move(cm)) {}
    verbs::RdmaCmPort& cm() noexcept { return *cm_; }

    core::RcPort& rc() noexcept override { return *cm_; }
    util::SockAddr address() const noexcept override { return cm_->address(); }
    core::RcCall call_to(const util::SockAddr& address) const noexcept override {
        return {.dest = core::to_address(address), .service = address.port};
    }
    util::SockAddr name_of(const Address& peer, std::uint16_t) const noexcept override {
        return core::to_sock_addr(peer);
    }
    const char* way() const noexcept override { return "by nothing"; }
    int wake_fd() const noexcept override { return cm_->event_fd(); }
    util::Status arm() noexcept override { return util::kOk; }

  private:
    unsigned poll_device() noexcept override { return 0; }
    const std::unique_ptr<verbs::RdmaCmPort> cm_;
};

/// All that a process has of it.
struct World {
    /// @param prepare  Before the NIC is opened.
    explicit World(void (*prepare)(verbs::MockNic& mock) = nullptr);
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    ~World() = default;

    verbs::MockNic mock;
    verbs::Library functions = *verbs::library();
    verbs::MockCm cm{functions};
    core::Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    std::shared_ptr<TestPort> port;  // the latest
    std::string asked_name;          // of the NIC that was opened last
    util::SockAddr asked_source;     // the same
};
inline World* world = nullptr;

class TestNic final : public ofi::MsgNic {
  public:
    const std::string& name() const noexcept override { return name_; }
    const std::string& identity() const noexcept override { return identity_; }
    core::Device& device() noexcept override { return world->nic->device(); }
    util::Result<std::shared_ptr<ofi::MsgPort>> open_port(const util::SockAddr& address,
                                                          ofi::MsgPortRole role) override {
        auto cm = verbs::RdmaCmPort::open({.nic = world->nic.get(),
                                           .address = address,
                                           .listens = role == ofi::MsgPortRole::kListens});
        if (!cm.is_ok()) {
            return cm.status();
        }
        world->port = std::make_shared<TestPort>(cm.take());
        return std::shared_ptr<ofi::MsgPort>(world->port);
    }
    util::Result<std::unique_ptr<core::UdSharing>> open_datagrams(const util::SockAddr&) override {
        return EOPNOTSUPP;
    }

  private:
    const std::string name_ = "mock0";
    const std::string identity_ = kIdentity;
};

inline std::vector<ofi::MsgNicOffer> list() {
    return {{.name = "mock0",
             .stable_name = kStableName,
             .identity = kIdentity,
             .address = kOwn,
             .inject_bytes = 64,
             .max_pairs = world->nic->device().limits().own_max_qp,
             .max_regions = world->nic->device().limits().own_max_mr,
             .max_queue = 64,
             .max_sge = 4,
             .max_read_sge = world->nic->device().limits().max_read_sge,
             .max_srq_sge = world->nic->device().limits().max_srq_sge,
             .max_bytes = 1u << 30,
             .has_atomics = world->nic->limits().has_atomics,
             .has_srq = true,
             .has_cq_data = world->nic->device().limits().has_immediate,
             .is_iwarp = world->nic->limits().is_iwarp}};
}
inline util::Result<std::shared_ptr<ofi::MsgNic>> open(const std::string& name,
                                                       const util::SockAddr& source) {
    world->asked_name = name;
    world->asked_source = source;
    return std::shared_ptr<ofi::MsgNic>(std::make_shared<TestNic>());
}

inline World::World(void (*prepare)(verbs::MockNic& mock)) {
    world = this;
    mock.takes_receives = true;
    if (prepare != nullptr) {
        prepare(mock);
    }
    verbs::use_library(&functions);
    nic = verbs::Nic::open(registry, {.device = "mock0", .port = 1, .address = kOwn}).take();
    cm.nic = nic->context();
    ofi::set_msg_nics({.list = list, .open = open});
}

/// Of the latest id.
inline void report(const verbs::MockCm::Report& what) {
    world->cm.report(*world->cm.ids.back(), what);
    world->port->cm().take_events();
}
inline void report(rdma_cm_event_type type) {
    report({.type = type});
}

/// Takes what happens to the NIC, as the control thread does otherwise.
inline std::jthread take_events() {
    return std::jthread([](const std::stop_token& end) {
        while (!end.stop_requested()) {
            world->nic->take_events();
        }
    });
}

// ---- the application ----

class Endpoints {
  public:
    explicit Endpoints(bool has_shared_receives = false, std::uint64_t caps = 0) {
        fi_info* const hints = fi_allocinfo();
        hints->ep_attr->type = FI_EP_MSG;
        hints->ep_attr->rx_ctx_cnt = has_shared_receives ? FI_SHARED_CONTEXT : 1;
        hints->caps = caps;
        hints->domain_attr->mr_mode =
            FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_HMEM;
        hints->domain_attr->name = strdup("mock0");
        RVT_EQ(ofi::getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info), 0);
        fi_freeinfo(hints);
        RVT_EQ(ofi::fabric_open(info->fabric_attr, &fabric, nullptr), 0);
        fi_eq_attr events{};
        events.wait_obj = FI_WAIT_UNSPEC;
        RVT_EQ(fi_eq_open(fabric, &events, &eq, nullptr), 0);
        RVT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
        RVT_EQ(fi_mr_reg(domain, memory.data(), memory.size(), FI_SEND | FI_RECV, 0, 0, 0, &mr, {}),
               0);
        fi_cq_attr completions{};
        completions.format = FI_CQ_FORMAT_CONTEXT;
        completions.wait_obj = FI_WAIT_FD;
        RVT_EQ(fi_cq_open(domain, &completions, &cq, nullptr), 0);
        if (has_shared_receives) {
            RVT_EQ(fi_srx_context(domain, nullptr, &srx, nullptr), 0);
        }
    }
    ~Endpoints() {
        const std::jthread events = srx != nullptr ? take_events() : std::jthread();
        for (fid_ep* const ep : opened) {
            RVT_EQ(fi_close(&ep->fid), 0);
        }
        for (fid* const object : {srx != nullptr ? &srx->fid : nullptr, &cq->fid, &mr->fid,
                                  &domain->fid, &eq->fid, &fabric->fid}) {
            RVT_EQ(object != nullptr ? fi_close(object) : 0, 0);
        }
        fi_freeinfo(info);
    }
    Endpoints(const Endpoints&) = delete;
    Endpoints& operator=(const Endpoints&) = delete;

    /// Further ones share all but their connection.
    /// @param request  That of a peer, which it is to accept.
    fid_ep* open(fi_info* request = nullptr) {
        fid_ep* ep = nullptr;
        RVT_EQ(fi_endpoint(domain, request != nullptr ? request : info, &ep, nullptr), 0);
        opened.push_back(ep);
        RVT_EQ(fi_ep_bind(ep, &eq->fid, 0), 0);
        RVT_EQ(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
        if (srx != nullptr) {
            RVT_EQ(fi_ep_bind(ep, &srx->fid, 0), 0);
        }
        return ep;
    }
    /// Asks a peer, of whom nothing is heard yet.
    static int call(fid_ep* ep) {
        sockaddr_storage to{};
        kPeer.to(&to);
        return fi_connect(ep, &to, nullptr, 0);
    }
    void connect(fid_ep* ep) {
        RVT_EQ(call(ep), 0);
        for (const rdma_cm_event_type type : kWayThere) {
            report(type);
        }
        RVT_EQ(event(ep), -FI_CONNECTED);
    }
    fid_ep* connected() {
        fid_ep* const ep = open();
        connect(ep);
        return ep;
    }
    ssize_t receive(fid_ep* on) {
        return fi_recv(on, memory.data(), 64, fi_mr_desc(mr), 0, &memory);
    }
    ssize_t send(fid_ep* ep) { return fi_send(ep, memory.data(), 512, fi_mr_desc(mr), 0, &memory); }
    /// What nobody answers.
    void post(fid_ep* ep) {
        for (std::size_t i = 0; i < kReceives; ++i) {
            RVT_EQ(receive(ep), 0);
        }
        for (std::size_t i = 0; i < kSends; ++i) {
            RVT_EQ(send(ep), 0);
        }
    }
    /// Errors that have come, each of which must be FI_ECANCELED.
    std::size_t canceled() {
        std::size_t count = 0;
        fi_cq_entry entry{};
        while (fi_cq_read(cq, &entry, 1) == -FI_EAVAIL) {
            fi_cq_err_entry error{};
            RVT_EQ(fi_cq_readerr(cq, &error, 0), 1);
            RVT_EQ(error.err, FI_ECANCELED);
            RVT_ASSERT(error.op_context == &memory);
            ++count;
        }
        return count;
    }
    /// Of the queue, at which nothing is due.
    pollfd asleep() {
        pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
        RVT_EQ(fi_control(&cq->fid, FI_GETWAIT, &readable.fd), 0);
        fid* queue = &cq->fid;
        RVT_EQ(fi_trywait(fabric, &queue, 1), 0);
        RVT_EQ(poll(&readable, 1, 0), 0);
        return readable;
    }
    /// The next event: the code of an error, or minus an event's number; 0: none.
    int event(const fid_ep* of) {
        std::uint32_t event = 0;
        fi_eq_cm_entry entry{};
        const ssize_t got = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
        if (got == -FI_EAVAIL) {
            fi_eq_err_entry error{};
            RVT_EQ(fi_eq_readerr(eq, &error, 0), sizeof error);
            RVT_ASSERT(error.fid == &of->fid);
            return error.err;
        }
        return got > 0 ? -static_cast<int>(event) : 0;
    }

    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_eq* eq = nullptr;
    fid_domain* domain = nullptr;
    fid_mr* mr = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* srx = nullptr;
    std::vector<fid_ep*> opened;
    std::vector<char> memory = std::vector<char>(4096);
};

}  // namespace rvt::test
