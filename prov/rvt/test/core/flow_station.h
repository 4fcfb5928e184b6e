// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an engine of the RD service is instantiated with in tests of messages over NICs: endpoints
// of one process, who find each other over the wire of backend/fake, and no shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/fake/wire.h"
#include "common/check.h"
#include "core/addresses.h"
#include "core/rd_flows.h"
#include "core/registry.h"
#include "rdm_station.h"

namespace rvt::test {

class FlowStation;

/// What those that are opened from now on have.
struct FlowNet {
    fake::Wire wire;
    std::shared_ptr<core::Device> nic;
    core::RegCacheAttr registrations;
    std::uint32_t max_flows = 16;
    std::vector<RdmUser*> users;  // the endpoints that were opened, as control threads see them
    std::vector<FlowStation*> stations;  // of the endpoints that are open
};

/// RdmStation's place.
class FlowStation final : private core::RdFlowsUser {
  public:
    static inline FlowNet* net = nullptr;

    FlowStation() = default;
    ~FlowStation() { close(); }
    FlowStation(const FlowStation&) = delete;
    FlowStation& operator=(const FlowStation&) = delete;

    util::Status bind(const util::SockAddr& address) {
        address_ = address;
        return util::kOk;
    }
    [[nodiscard]] bool is_bound() const noexcept { return address_.port != 0; }
    [[nodiscard]] util::SockAddr address() const noexcept { return address_; }
    [[nodiscard]] std::uint64_t incarnation() const noexcept { return address_.port; }

    util::Status open(const RdmStationAttr& attr) {
        user_ = attr.user;
        net_ = net;
        net_->users.push_back(user_);
        net_->stations.push_back(this);
        nic_ = net->nic;
        RVT_OK(net_->wire.attach(
            registry_, port_,
            {.name = "station", .grade = Grade::kPacket, .address = core::to_address(address_)}));
        flows_ = core::RdFlows::open({.device = port_.device,
                                      .nic = nic_.get(),
                                      .taker = attr.user,
                                      .user = this,
                                      .own = {.incarnation = incarnation(),
                                              .has_user_keys = attr.keys.has_user_keys,
                                              .wants_rma_events = attr.wants_rma_events},
                                      .registrations = net->registrations,
                                      .linger_silence_ms = 1,
                                      .max_flows = net->max_flows,
                                      .is_hot = &is_hot_})
                     .take();
        return util::kOk;
    }
    void close() noexcept {
        if (flows_ == nullptr) {
            return;
        }
        open_.clear();
        flows_.reset();
        nic_.reset();
        std::erase(net_->stations, this);
        net_->wire.detach(port_);
        RVT_OK(registry_.remove_device(port_.device));
    }

    std::array<core::Device*, 2> watch_wire() { return {port_.device, nic_.get()}; }
    void connect(const util::SockAddr& address) { flows_->connect(core::to_address(address)); }
    bool withdraw(std::uint32_t key) noexcept { return flows_->withdraw(key); }
    unsigned note_poll() noexcept {
        ++polls_;
        const unsigned moved = flows_->poll();
        if (flows_->take_quiet()) {
            flows_->note_packets();  // as who watches the socket does when something has come
        }
        return moved;
    }
    [[nodiscard]] std::uint64_t poll_count() const noexcept { return polls_; }
    /// Whether it has asked for the end of a flow, or agreed to one.
    [[nodiscard]] bool is_any_leaving() const {
        return std::ranges::any_of(open_, [](core::RdFlow* flow) { return flow->is_leaving(); });
    }
    /// Whether nothing is under way with the peer that came first.
    [[nodiscard]] bool is_idle_with_first() const {
        return user_->is_idle(open_.front()->user_peer());
    }

    // Nobody sleeps, and there is no shared memory.
    static void close_link(std::uint64_t, const char*) noexcept {}
    static void request_region(std::uint64_t, std::uint32_t) noexcept {}
    static void wake_peer(std::uint64_t) noexcept {}
    static void wake_owner() noexcept {}
    static void note_long_work() noexcept {}
    [[nodiscard]] std::uint64_t polling() const noexcept { return polls_; }
    void restore(std::uint64_t polls) noexcept { polls_ = polls; }
    static bool is_in_use(std::uint32_t) noexcept { return false; }
    static void mark_use(std::uint64_t, std::uint32_t) noexcept {}
    static void unmark_use() noexcept {}
    static void refuse_copies() noexcept {}
    static util::Status arm(bool /*has_peers*/, bool /*wants_room*/) noexcept { return util::kOk; }
    static void arm_for_control(bool /*has_peers*/) noexcept {}
    static void disarm_for_control() noexcept {}
    static void disarm() noexcept {}
    static void give_back_wake() noexcept {}
    static bool goes_on_watching() noexcept { return false; }
    static void wake_sleepers() noexcept {}
    static int wake_fd() noexcept { return -1; }

  private:
    using Event = shm::ConnectionEvent;

    void flow_opened(core::RdFlow& flow) noexcept override {
        auto event = event_of(Event::Kind::kConnected, flow.address());
        event->flow = &flow;
        open_.push_back(&flow);
        user_->deliver(std::move(event));
    }
    void connect_failed(const Address& peer, int error) noexcept override {
        auto event = event_of(Event::Kind::kFailed, peer);
        event->error = error;
        user_->deliver(std::move(event));
    }
    void flow_ended(core::RdFlow& flow) noexcept override { end(flow, Event::Kind::kPeerGone); }
    void flow_left(core::RdFlow& flow) noexcept override { end(flow, Event::Kind::kLeft); }
    void work_waits() noexcept override {}
    void end(core::RdFlow& flow, Event::Kind kind) {
        std::erase(open_, &flow);
        auto event = event_of(kind, flow.address());
        event->link = RdmPath::link_of(flow);
        user_->deliver(std::move(event));
    }
    static std::unique_ptr<Event> event_of(Event::Kind kind, const Address& peer) {
        auto event = std::make_unique<Event>();
        event->kind = kind;
        event->address = core::to_sock_addr(peer);
        return event;
    }

    util::SockAddr address_;
    RdmUser* user_ = nullptr;
    FlowNet* net_ = nullptr;
    std::shared_ptr<core::Device> nic_;
    core::Registry registry_;
    fake::Port port_;
    std::uint64_t polls_ = 0;
    std::atomic<bool> is_hot_{false};
    std::unique_ptr<core::RdFlows> flows_;
    std::vector<core::RdFlow*> open_;
};

struct FlowStationHost {
    using Path = RdmPath;
    using Station = FlowStation;
    using Event = shm::ConnectionEvent;
    using User = RdmUser;
    using Region = shm::MappedRegion;
    using RegionSource = shm::RegionSource;
};

}  // namespace rvt::test
