// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing of ports, and who polls them.
#include "msg_station.h"

#include <memory>
#include <mutex>
#include <string>

#include "backend/roce/packet_device.h"
#include "backend/shm/presence.h"
#include "backend/shm/segments.h"
#include "core/addresses.h"
#include "core/cm_rc_port.h"
#include "core/registry.h"
#include "msg_shared_port.h"
#include "ofi/msg_options.h"
#include "ofi/msg_port.h"
#include "port_watch.h"
#include "roce_tuning.h"
#include "util/control_thread.h"
#include "util/log.h"
#include "util/params.h"
#include "util/udp_port.h"
#include "wire_watch.h"

namespace rvt {
namespace {

constexpr std::uint32_t kMaxPairs = ofi::kMsgMaxPairs;
// So long after the last arrival there is more to come. Asking to be told of it costs a sender over
// shared memory a system call, and over a wire nobody.
constexpr std::uint32_t kWireIdleUs = 50;
constexpr std::uint32_t kHostIdleUs = 1000;
constexpr std::uint32_t kOwnKeys = 64;           // pairs bring the keys of their domains
constexpr std::uint32_t kSharedKeys = 1u << 13;  // of datagram endpoints, one each

/// An address of this host alone is reached through shared memory, another one by its network.
bool has_wire(const util::SockAddr& address) noexcept {
    return util::param_is_set(util::ParamId::kRoce) && !address.is_loopback();
}

class MsgStation final : public ofi::MsgPort, private WatchedWire {
  public:
    MsgStation() = default;
    ~MsgStation() override;
    MsgStation(const MsgStation&) = delete;
    MsgStation& operator=(const MsgStation&) = delete;

    /// @param roce_port  For peers that rdma_cm knows, at this UDP port; 0: the address' own.
    util::Status open(const util::SockAddr& address, std::uint16_t roce_port);
    /// Through shared memory, at a port that a station has for the wire.
    util::Status open_beside(util::UdpPort port);

    core::RcPort& rc() noexcept override { return *rc_; }
    util::SockAddr address() const noexcept override {
        return core::to_sock_addr(device_->address());
    }
    core::RcCall call_to(const util::SockAddr& address) const noexcept override {
        return {.dest = core::to_address(address),
                .service = address.port,
                .source = device_->address().port};
    }
    util::SockAddr name_of(const Address& peer, std::uint16_t /*service*/) const noexcept override {
        return core::to_sock_addr(peer);
    }
    const char* way() const noexcept override {
        return host_ != nullptr ? "through shared memory" : "by RoCEv2 over UDP";
    }
    util::Result<std::shared_ptr<ofi::MsgPort>> host_side() override;
    bool is_on_host(const util::SockAddr& peer) const override {
        return wire_ != nullptr && shm::is_served(peer);
    }
    int wake_fd() const noexcept override { return device_->ops().wake_fd(*device_); }
    util::Status arm() noexcept override;

  private:
    unsigned poll_device() noexcept override;
    util::Status open_wire(const util::SockAddr& address, bool is_shared);
    util::Status open_host(const util::SockAddr& address, util::UdpPort* port);
    util::Status start(core::RcData data);
    util::Status start_watch();
    void settle() noexcept;

    std::uint64_t owner_polls() const noexcept override {
        // relaxed: a count of its own.
        return polls_.load(std::memory_order_relaxed);
    }
    bool poll_for_owner() noexcept override {
        rc_->poll();
        settle();
        return true;
    }
    std::uint64_t wire_traffic_us() const noexcept override { return rc_->traffic_us(); }
    bool let_go() noexcept override {
        device_->flush();
        return true;
    }
    bool send_held() noexcept override {
        device_->send_held();
        return true;
    }
    std::uint64_t wire_due_us() noexcept override { return rc_->next_due_us(); }
    std::uint64_t wire_now_us() noexcept override { return device_->now_us(); }
    int wire_fd() noexcept override { return wake_fd(); }

    core::Device* device_ = nullptr;  // of one of these
    std::unique_ptr<roce::PacketDevice> wire_;
    std::unique_ptr<shm::SegmentDevice> host_;
    std::unique_ptr<core::CmRcPort> rc_;
    std::shared_ptr<util::ControlThread> thread_;
    std::unique_ptr<WireWatch> watch_;
    std::unique_ptr<PortWatch> port_watch_;  // of a wire
    std::atomic<std::uint64_t> polls_{0};
    std::mutex host_side_lock_;
    std::weak_ptr<MsgStation> host_side_;  // as long as somebody uses it
};

util::Status MsgStation::open(const util::SockAddr& address, std::uint16_t roce_port) {
    util::SockAddr at = address;
    at.port = roce_port != 0 ? roce_port : address.port;
    const util::Status opened =
        has_wire(at) ? open_wire(at, roce_port != 0) : open_host(at, nullptr);
    if (!opened.is_ok()) {
        return opened;
    }
    return start(roce_port != 0 ? core::RcData::kPlain : core::RcData::kCounted);
}

util::Status MsgStation::open_beside(util::UdpPort port) {
    const util::Status opened = open_host({}, &port);
    return opened.is_ok() ? start(core::RcData::kCounted) : opened;
}

util::Result<std::shared_ptr<ofi::MsgPort>> MsgStation::host_side() {
    if (wire_ == nullptr) {
        return std::shared_ptr<ofi::MsgPort>();
    }
    const std::lock_guard guard(host_side_lock_);
    if (auto known = host_side_.lock()) {
        return std::shared_ptr<ofi::MsgPort>(std::move(known));
    }
    auto port = wire_->share_port();
    if (!port.is_ok()) {
        return port.status();
    }
    auto made = std::make_shared<MsgStation>();
    const util::Status opened = made->open_beside(port.take());
    if (!opened.is_ok()) {
        return opened;
    }
    host_side_ = made;
    return std::shared_ptr<ofi::MsgPort>(std::move(made));
}

util::Status MsgStation::start(core::RcData data) {
    rc_ = std::make_unique<core::CmRcPort>(core::CmRcPortAttr{
        .device = device_,
        .data = data,
        .connect_timeout_ms =
            static_cast<std::uint32_t>(util::param_number(util::ParamId::kConnectTimeoutMs)),
        .idle_us = host_ != nullptr ? kHostIdleUs : kWireIdleUs,
        .is_hot = &is_hot});
    polls_always = host_ != nullptr;
    settle();
    return start_watch();
}

util::Status MsgStation::open_host(const util::SockAddr& address, util::UdpPort* port) {
    // The port is known only when it is open.
    static std::atomic<unsigned> opened_ports{0};
    // relaxed: a number of its own.
    const std::string name =
        "msg-host-" + std::to_string(opened_ports.fetch_add(1, std::memory_order_relaxed));
    auto device = shm::SegmentDevice::open(core::Registry::instance(),
                                           {.name = name.c_str(),
                                            .address = address,
                                            .port = port,
                                            .limits = {.max_qp = kMaxPairs, .max_mr = kOwnKeys},
                                            .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    host_ = device.take();
    device_ = &host_->device();
    return util::kOk;
}

/// @param is_shared  By endpoints that have no other port, those of datagrams among them.
util::Status MsgStation::open_wire(const util::SockAddr& address, bool is_shared) {
    util::Result<util::UdpPort> bound =
        util::bind_udp_port(address, is_shared ? util::PortUse::kFixed : util::PortUse::kAlone);
    if (!bound.is_ok()) {
        return bound.status();
    }
    util::UdpPort port = bound.take();
    const std::string name = "msg-" + port.address.to_string();
    auto device = roce::PacketDevice::open(
        core::Registry::instance(),
        {.name = name.c_str(),
         .port = &port,
         .payload_bytes = static_cast<std::uint32_t>(util::param_number(util::ParamId::kRoceMtu)),
         .joins_groups = is_shared,
         .limits = {.max_qp = kMaxPairs, .max_mr = is_shared ? kSharedKeys : kOwnKeys},
         .faults = packet_faults(),
         .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    wire_ = device.take();
    device_ = &wire_->device();
    // The watch, and those who share it, wait for groups by the same descriptor.
    return is_shared ? wire_->arm() : util::kOk;
}

util::Status MsgStation::start_watch() {
    auto thread = util::ControlThread::acquire();
    if (!thread.is_ok()) {
        return thread.status();
    }
    thread_ = thread.take();
    WatchedWire& wire = *this;
    watch_ = std::make_unique<WireWatch>(*thread_, wire, is_hot);
    util::Status started = util::kOk;
    thread_->run([&] {
        started = wire_ != nullptr ? watch_->watch_holds(*device_) : util::kOk;
        started = started.is_ok() ? watch_->start() : started;
        if (started.is_ok() && wire_ != nullptr) {
            // What follows for connections the next poll does, the owner's or the watch's.
            port_watch_ = std::make_unique<PortWatch>(*wire_, [this] { watch_->on_ready(0); });
            port_watch_->start(*thread_);
        }
    });
    return started;
}

/// The control thread lets go first.
MsgStation::~MsgStation() {
    if (watch_ != nullptr) {
        thread_->run([this] {
            port_watch_.reset();
            watch_.reset();
        });
        // Of a process that is gone, if they are still there.
        static_cast<void>(port_watch_.release());
        static_cast<void>(watch_.release());
    }
    thread_.reset();
    rc_.reset();
    if (wire_ != nullptr) {
        [[maybe_unused]] const Status closed = wire_->close();
    }
    if (host_ != nullptr) {
        [[maybe_unused]] const Status closed = host_->close();
    }
}

/// Shared memory says nothing of what arrives unless it is asked to.
void MsgStation::settle() noexcept {
    // relaxed: a hint; set again below if there is something.
    if (host_ != nullptr && !is_hot.load(std::memory_order_relaxed) &&
        device_->ops().arm(*device_).error() == EAGAIN) {
        is_hot.store(true, std::memory_order_relaxed);  // relaxed: a hint
    }
}

unsigned MsgStation::poll_device() noexcept {
    // relaxed: set by this thread, or by the watch.
    const bool was_hot = is_hot.load(std::memory_order_relaxed);
    const unsigned moved = rc_->poll();
    if (!was_hot) {
        if (moved != 0) {
            rc_->expect_traffic();
        }
        return moved;
    }
    // relaxed: that it changes is what counts.
    polls_.fetch_add(1, std::memory_order_relaxed);
    // relaxed: cleared by the poll; set again by this thread, or by the watch.
    if (!is_hot.load(std::memory_order_relaxed)) {
        settle();
        watch_->leave_to_watch();
    }
    return moved;
}

util::Status MsgStation::arm() noexcept {
    const unsigned moved = rc_->poll();
    // relaxed: as in poll_device(). Who sleeps on a descriptor does not say when it wakes up.
    if (!is_hot.load(std::memory_order_relaxed)) {
        watch_->leave_to_watch();
    }
    if (moved != 0 || device_->ops().arm(*device_).error() == EAGAIN) {
        return EAGAIN;
    }
    device_->flush();
    return util::kOk;
}

util::Result<std::shared_ptr<ofi::MsgPort>> make_station(const util::SockAddr& address,
                                                         std::uint16_t roce_port) {
    auto made = std::make_shared<MsgStation>();
    const util::Status opened = made->open(address, roce_port);
    if (!opened.is_ok()) {
        return opened;
    }
    return std::shared_ptr<ofi::MsgPort>(std::move(made));
}

std::uint16_t roce_port() noexcept {
    return static_cast<std::uint16_t>(util::param_number(util::ParamId::kRocePort));
}

util::Result<std::shared_ptr<ofi::MsgPort>> open_station(const util::SockAddr& address) {
    return shares_device(address)
               ? open_shared_port(address, PortSpace::kConnections, roce_port(), make_station)
               : make_station(address, 0);
}

}  // namespace

bool shares_device(const util::SockAddr& address) noexcept {
    return roce_port() != 0 && has_wire(address);
}

util::Result<std::shared_ptr<ofi::MsgPort>> open_datagram_number(const util::SockAddr& address) {
    return open_shared_port(address, PortSpace::kDatagrams, roce_port(), make_station);
}

void use_msg_stations() noexcept {
    ofi::set_msg_ports(open_station);
}

}  // namespace rvt
