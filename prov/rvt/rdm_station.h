// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The presence of an RDM endpoint, on this host and on the wire: which of the two leads to a peer
// is decided when it is connected. The policy that core::RdEngine is instantiated with.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/roce/packet_device.h"
#include "backend/shm/station.h"
#include "core/rd_flows.h"
#include "port_watch.h"
#include "rdm_path.h"
#include "util/control_thread.h"
#include "util/cpu.h"
#include "util/sleepers.h"
#include "wire_watch.h"

namespace rvt {

/// What an engine has to offer to both ways.
class RdmUser : public shm::ConnectionUser, public core::RdFlowUser {
  protected:
    ~RdmUser() = default;
};

struct RdmStationAttr {
    RdmUser* user = nullptr;
    util::Sleepers* sleepers = nullptr;  // as in shm::StationAttr
    core::RdKeys keys;
    bool has_auto_progress = false;
    bool wants_rma_events = false;
};

/// Threads: as shm::Station.
class RdmStation : public shm::Station, private core::RdFlowsUser, private WatchedWire {
  public:
    RdmStation() = default;
    ~RdmStation() { close(); }
    RdmStation(const RdmStation&) = delete;
    RdmStation& operator=(const RdmStation&) = delete;

    /// Starts to answer peers of this host and, if the address is one of a network's, of others.
    /// Returns: as shm::Station::open().
    util::Status open(const RdmStationAttr& attr);
    /// Ends all connections; the user is not called any more when this returns.
    void close() noexcept;

    /// See RdEndpoint::watch_wire().
    std::array<core::Device*, 2> watch_wire();

    void connect(const util::SockAddr& address);
    void close_link(std::uint64_t link, const char* why) noexcept;

    /// See RdFlows::withdraw().
    bool withdraw(std::uint32_t key) noexcept { return flows_ != nullptr && flows_->withdraw(key); }

    /// Once in each progress call. Returns: how much came by the wire.
    RVT_ALWAYS_INLINE unsigned note_poll() noexcept {
        shm::Station::note_poll();
        // relaxed: a hint; see WireWatch.
        if (is_wire_hot_.load(std::memory_order_relaxed)) [[unlikely]] {
            return poll_wire();
        }
        return 0;
    }

    /// As shm::Station::arm(). Returns: EAGAIN when something has come by the wire; ENOMEM, ENOSPC:
    /// wake_fd() would not tell of it.
    util::Status arm(bool has_peers, bool wants_room) noexcept;
    void disarm() noexcept;
    int wake_fd() const noexcept {
        return wake_set_.is_open() ? wake_set_.get() : shm::Station::wake_fd();
    }

  private:
    /// Precondition: nic_ is what is to carry flows, if anything is.
    util::Status open_wire(const RdmStationAttr& attr);
    void close_watch() noexcept;
    void close_wire() noexcept;
    util::Status make_wake_set();
    util::Status make_wire_set();
    util::Status add_wire_to_wake_set() noexcept;
    [[nodiscard]] bool leave_wire_to_watch() noexcept;
    util::Status start_watch(const RdmStationAttr& attr);
    RVT_ALWAYS_INLINE unsigned poll_wire() noexcept {
        if (flows_->take_just_come()) {
            return 0;
        }
        // relaxed: set by this thread, if it is the control thread.
        const unsigned moved = flows_->poll(control_polls_.load(std::memory_order_relaxed));
        if (flows_->take_quiet()) [[unlikely]] {
            [[maybe_unused]] const bool is_left = leave_wire_to_watch();
        }
        return moved;
    }

    void flow_opened(core::RdFlow& flow) noexcept override;
    void connect_failed(const Address& peer, int error) noexcept override;
    void flow_ended(core::RdFlow& flow) noexcept override;
    void flow_left(core::RdFlow& flow) noexcept override;
    void deliver_end(const core::RdFlow& flow, shm::ConnectionEvent::Kind kind);
    void work_waits() noexcept override;

    std::uint64_t owner_polls() const noexcept override { return user_->poll_count(); }
    bool poll_for_owner() noexcept override;
    std::uint64_t wire_traffic_us() const noexcept override { return flows_->traffic_us(); }
    bool let_go() noexcept override;
    bool send_held() noexcept override { return flows_->send_held(); }
    std::uint64_t wire_due_us() noexcept override { return flows_->next_due_us(); }
    std::uint64_t wire_now_us() noexcept override { return flows_->device().now_us(); }
    void wire_is_ready() noexcept override { flows_->note_packets(); }
    bool is_left_to_nic() const noexcept override {
        return !has_auto_progress_ && flows_->is_left_to_nic();
    }
    void trim_wire() noexcept override { flows_->trim(); }
    int wire_fd() noexcept override {
        return wire_set_.is_open() ? wire_set_.get() : device_->wake_fd();
    }

    std::atomic<bool> is_wire_hot_{false};
    std::atomic<bool> control_polls_{false};  // in the owner's stead
    std::atomic<bool> work_waits_{false};     // for the owner, or who comes in its stead
    RdmUser* user_ = nullptr;
    bool has_auto_progress_ = false;
    std::unique_ptr<roce::PacketDevice> device_;
    std::shared_ptr<core::Device> nic_;  // of the address, if it carries flows
    std::unique_ptr<core::RdFlows> flows_;
    util::UniqueFd timer_;     // runs out when something is due while the owner sleeps
    util::UniqueFd wire_set_;  // of the device and the NIC, where there is one
    util::UniqueFd wake_set_;  // readable when shared memory, the wire or the timer has something
    bool wakes_by_wire_ = false;  // it has the wire
    std::shared_ptr<util::ControlThread> thread_;
    std::unique_ptr<WireWatch> watch_;
    std::unique_ptr<PortWatch> port_watch_;  // where somebody is told of what it finds
};

/// The policy that instantiates core::RdEngine for RDM endpoints.
struct RdmHost {
    using Path = RdmPath;
    using Station = RdmStation;
    using Event = shm::ConnectionEvent;
    using User = RdmUser;
    using Region = shm::MappedRegion;
    using RegionSource = shm::RegionSource;
};

}  // namespace rvt
