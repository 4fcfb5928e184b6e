// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing both ways, and the choice between them.
#include "rdm_station.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "core/addresses.h"
#include "core/registry.h"
#include "nic_station.h"
#include "ofi/nic_memory.h"
#include "roce_tuning.h"
#include "util/local_addresses.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt {
namespace {

// One endpoint's device: a pair and a region for each peer.
constexpr std::uint32_t kMaxPeers = 1u << 16;

util::Status add_to_set(const util::UniqueFd& set, int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? util::kOk : util::Status(errno);
}

util::Status open_set(util::UniqueFd& set, std::initializer_list<int> fds) {
    set.reset(epoll_create1(EPOLL_CLOEXEC));
    if (!set.is_open()) {
        return errno;
    }
    util::Status added = util::kOk;
    for (const int fd : fds) {
        added = added.is_ok() ? add_to_set(set, fd) : added;
    }
    return added;
}

/// To know that of the own address takes no descriptor.
util::Result<bool> is_on_host(const util::SockAddr& address, util::SockAddr own) {
    own.port = address.port;
    return address == own ? util::Result<bool>(true) : util::is_local_address(address);
}

}  // namespace

// ---- life ----

util::Status RdmStation::open(const RdmStationAttr& attr) {
    const util::Status opened = shm::Station::open({.user = attr.user,
                                                    .sleepers = attr.sleepers,
                                                    .keys = attr.keys,
                                                    .has_auto_progress = attr.has_auto_progress,
                                                    .wants_rma_events = attr.wants_rma_events,
                                                    .control_may_enter = true});
    if (!opened.is_ok()) {
        return opened;
    }
    user_ = attr.user;
    const bool is_wanted = util::param_is_set(util::ParamId::kRoce);
    if (!is_wanted || address().is_loopback() || address().is_any()) {
        return util::kOk;
    }
    nic_ = open_flow_nic(address());
    util::Status wired = open_wire(attr);
    if (!wired.is_ok() && nic_ != nullptr) {
        // Of the sets that a NIC's descriptor is in, the kernel allows some 50 endpoints of a
        // process (EINVAL of epoll_ctl(2)); or there is too little of something else.
        RVT_WARN(kEpCtrl, "NIC %s carries no flows of %s: %s; packets will do",
                 nic_->name().c_str(), address().to_string().c_str(),
                 strerrordesc_np(wired.error()));
        close_wire();
        wired = open_wire(attr);
    }
    if (!wired.is_ok()) {
        RVT_WARN(kEpCtrl,
                 "cannot open the wire of %s: %s; with FI_RVT_ROCE=0 endpoints reach this host "
                 "alone",
                 address().to_string().c_str(), strerrordesc_np(wired.error()));
        close();
        return wired;
    }
    return util::kOk;
}

util::Status RdmStation::open_wire(const RdmStationAttr& attr) {
    util::Result<util::UdpPort> port = share_port();
    if (!port.is_ok()) {
        return port.status();
    }
    util::UdpPort shared = port.take();
    const std::string name = "rdm-" + address().to_string();
    auto device = roce::PacketDevice::open(
        core::Registry::instance(),
        {.name = name.c_str(),
         .port = &shared,
         .payload_bytes = static_cast<std::uint32_t>(util::param_number(util::ParamId::kRoceMtu)),
         .limits = {.max_qp = kMaxPeers, .max_mr = kMaxPeers},
         .faults = packet_faults(),
         .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    device_ = device.take();
    auto flows = core::RdFlows::open(
        {.device = &device_->device(),
         .nic = nic_.get(),
         .taker = attr.user,
         .user = this,
         .own = {.incarnation = incarnation(),
                 .has_user_keys = attr.keys.has_user_keys,
                 .wants_rma_events = attr.wants_rma_events},
         .registrations = nic_ != nullptr ? ofi::registrations_of_params() : core::RegCacheAttr{},
         .connect_timeout_ms =
             static_cast<std::uint32_t>(util::param_number(util::ParamId::kConnectTimeoutMs)),
         .refused_timeout_ms =
             static_cast<std::uint32_t>(util::param_number(util::ParamId::kRefusedTimeoutMs)),
         .max_flows = static_cast<std::uint32_t>(util::param_number(util::ParamId::kRoceFlows)),
         .is_hot = &is_wire_hot_});
    if (!flows.is_ok()) {
        return flows.status();
    }
    flows_ = flows.take();
    util::Status waking = make_wire_set();
    waking = waking.is_ok() ? make_wake_set() : waking;
    return waking.is_ok() ? start_watch(attr) : waking;
}

util::Status RdmStation::make_wire_set() {
    return flows_->nic_wake_fd() < 0
               ? util::kOk
               : open_set(wire_set_, {device_->wake_fd(), flows_->nic_wake_fd()});
}

util::Status RdmStation::make_wake_set() {
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!timer_.is_open()) {
        return errno;
    }
    const util::Status opened = open_set(wake_set_, {shm::Station::wake_fd(), timer_.get()});
    // Of the sets that a NIC's descriptor is in the kernel may refuse one: that is to be known now.
    return opened.is_ok() && wire_set_.is_open() ? add_wire_to_wake_set() : opened;
}

util::Status RdmStation::start_watch(const RdmStationAttr& attr) {
    auto thread = util::ControlThread::acquire();
    if (!thread.is_ok()) {
        return thread.status();
    }
    thread_ = thread.take();
    has_auto_progress_ = attr.has_auto_progress;
    WatchedWire& wire = *this;
    watch_ = std::make_unique<WireWatch>(*thread_, wire, is_wire_hot_);
    util::Status started = util::kOk;
    thread_->run([&] {
        started = watch_->watch_holds(flows_->device());
        started = started.is_ok() ? watch_->start() : started;
    });
    return started;
}

/// Flows end with the next poll of an endpoint whose interface has gone, where without a watch they
/// end when a packet is refused.
std::array<core::Device*, 2> RdmStation::watch_wire() {
    if (device_ == nullptr) {
        return {};
    }
    port_watch_ = std::make_unique<PortWatch>(*device_, [] {});
    thread_->run([this] { port_watch_->start(*thread_); });
    return {&device_->device(), nic_.get()};
}

/// The control thread lets go of the wire first: on its word it uses what is closed behind it, the
/// page and the descriptor that wakes the owner among it. Then of the user, who may poll the wire
/// until then, and only then is the wire closed.
void RdmStation::close() noexcept {
    close_watch();
    shm::Station::close();
    close_wire();
}

void RdmStation::close_watch() noexcept {
    if (watch_ != nullptr) {
        thread_->run([this] {
            port_watch_.reset();
            watch_.reset();
        });
    }
    static_cast<void>(port_watch_.release());  // of a process that is gone
    // Of a process that is gone. Else the control thread still looks whether there is one: nothing
    // is written here.
    if (watch_ != nullptr) {
        static_cast<void>(watch_.release());
    }
}

void RdmStation::close_wire() noexcept {
    close_watch();
    thread_.reset();
    flows_.reset();
    if (device_ != nullptr) {
        [[maybe_unused]] const Status closed = device_->close();
        device_.reset();
    }
    nic_.reset();
    wake_set_.reset();
    wakes_by_wire_ = false;
    wire_set_.reset();
    timer_.reset();
}

// ---- connections ----

void RdmStation::connect(const util::SockAddr& address) {
    const auto is_local = is_on_host(address, this->address());
    if (is_local.is_ok() && is_local.value()) {
        shm::Station::connect(address);
    } else if (flows_ != nullptr && address.family == this->address().family) {
        flows_->connect(core::to_address(address));  // also where it is not known: they lead there
    } else if (!is_local.is_ok()) {
        connect_failed(core::to_address(address), is_local.error());
    } else {
        RVT_WARN(kEpCtrl, "%s cannot reach %s: it has an address of this host only",
                 this->address().to_string().c_str(), address.to_string().c_str());
        connect_failed(core::to_address(address), EHOSTUNREACH);
    }
}

void RdmStation::close_link(std::uint64_t link, const char* why) noexcept {
    if ((link & RdmPath::kRemoteLink) == 0) {
        shm::Station::close_link(link, why);
        return;
    }
    RVT_WARN(kEpCtrl, "close connection: %s", why);  // the path does it
}

void RdmStation::flow_opened(core::RdFlow& flow) noexcept {
    auto event = std::make_unique<shm::ConnectionEvent>();
    event->kind = shm::ConnectionEvent::Kind::kConnected;
    event->address = core::to_sock_addr(flow.address());
    event->flow = &flow;
    RVT_INFO(kEpCtrl, "connected to %s by %s", event->address.to_string().c_str(),
             flow.is_over_nic() ? "a NIC" : "RoCEv2 over UDP");
    user_->deliver(std::move(event));
}

void RdmStation::connect_failed(const Address& peer, int error) noexcept {
    auto event = std::make_unique<shm::ConnectionEvent>();
    event->kind = shm::ConnectionEvent::Kind::kFailed;
    event->address = core::to_sock_addr(peer);
    event->error = error;
    RVT_WARN(kEpCtrl, "cannot connect %s to %s: %s", address().to_string().c_str(),
             event->address.to_string().c_str(), strerrordesc_np(error));
    user_->deliver(std::move(event));
}

void RdmStation::flow_ended(core::RdFlow& flow) noexcept {
    deliver_end(flow, shm::ConnectionEvent::Kind::kPeerGone);
}

void RdmStation::flow_left(core::RdFlow& flow) noexcept {
    RVT_INFO(kEpCtrl, "the idle connection to %s is closed: its room is needed",
             core::to_sock_addr(flow.address()).to_string().c_str());
    deliver_end(flow, shm::ConnectionEvent::Kind::kLeft);
}

void RdmStation::deliver_end(const core::RdFlow& flow, shm::ConnectionEvent::Kind kind) {
    auto event = std::make_unique<shm::ConnectionEvent>();
    event->kind = kind;
    event->address = core::to_sock_addr(flow.address());
    event->link = RdmPath::link_of(flow);
    event->error = ECONNRESET;
    user_->deliver(std::move(event));
}

// ---- traffic ----

/// Returns: false when something has come meanwhile.
bool RdmStation::leave_wire_to_watch() noexcept {
    // relaxed: as in poll_wire(). Who asks the NIC need not be told.
    if (is_wire_hot_.load(std::memory_order_relaxed)) {
        flows_->clear_nic_wake_fd();
    } else if (!flows_->arm_nic().is_ok()) [[unlikely]] {
        flows_->note_traffic();
        return false;
    }
    if (watch_ != nullptr) [[likely]] {  // else this closes
        watch_->leave_to_watch();
    }
    return true;
}

void RdmStation::work_waits() noexcept {
    // relaxed: who asks comes back while the owner does not.
    work_waits_.store(true, std::memory_order_relaxed);
    wake_owner();
}

/// With automatic progress the control thread does all that the owner does. Without it, it answers
/// peers' packets, and does the rest when something has come that only the owner can do: a peer's
/// one-sided operation may be among it.
bool RdmStation::poll_for_owner() noexcept {
    control_polls_.store(true, std::memory_order_relaxed);  // relaxed: read by this thread
    bool is_done = has_auto_progress_ && user_->control_progress();
    const bool could = is_done || flows_->poll_for_owner();
    // relaxed: as in work_waits().
    if (!is_done && work_waits_.exchange(false, std::memory_order_relaxed)) {
        is_done = user_->control_progress();
        work_waits_.store(!is_done, std::memory_order_relaxed);  // relaxed: as in work_waits()
        wake_owner();  // if it sleeps: that is over, and there may be completions
    }
    if (could && !has_auto_progress_) {
        user_->control_send();  // what was posted before its peer was connected
    }
    control_polls_.store(false, std::memory_order_relaxed);  // relaxed: as above
    if (is_done) {
        return true;
    }
    if (flows_->take_quiet() && !flows_->arm_nic().is_ok()) {
        flows_->note_traffic();
    }
    return could;
}

bool RdmStation::let_go() noexcept {
    flows_->let_go_for_owner();
    return flows_->arm_nic().is_ok();
}

/// From the first who sleeps on, the wake set has the socket: who never does is spared the kernel's
/// way through the set at each packet (see ControlThread::Handler::watch_once()). Once it is there
/// it stays, as who sleeps on a descriptor does not say when it wakes up.
util::Status RdmStation::add_wire_to_wake_set() noexcept {
    const util::Status added = wakes_by_wire_ ? util::kOk : add_to_set(wake_set_, wire_fd());
    wakes_by_wire_ = wakes_by_wire_ || added.is_ok();
    return added;
}

util::Status RdmStation::arm(bool has_peers, bool wants_room) noexcept {
    shm::Station::arm(has_peers, wants_room);
    if (flows_ == nullptr) {
        return util::kOk;
    }
    if (const util::Status added = add_wire_to_wake_set(); !added.is_ok()) [[unlikely]] {
        return added;
    }
    core::Device& device = flows_->device();
    work_waits_.store(false, std::memory_order_relaxed);  // relaxed: as in work_waits()
    const unsigned moved = flows_->poll();
    // relaxed: as in poll_wire(). It stays hot for who comes back.
    const bool is_hot = is_wire_hot_.load(std::memory_order_relaxed);
    if (is_hot ? !flows_->arm_nic().is_ok() : !leave_wire_to_watch()) {
        return EAGAIN;
    }
    if (moved != 0 || device.ops().arm(device).error() == EAGAIN) {
        return EAGAIN;
    }
    device.flush();
    const std::uint64_t due = flows_->owner_due_us();
    const std::uint64_t now = device.now_us();
    itimerspec when{};
    if (due != core::RdFlows::kNever) {
        const std::uint64_t left = due > now ? due - now : 1;
        when.it_value.tv_sec = static_cast<time_t>(left / 1'000'000);
        when.it_value.tv_nsec = static_cast<long>(left % 1'000'000 * 1000);
    }
    return timerfd_settime(timer_.get(), 0, &when, nullptr) == 0 ? util::kOk : util::Status(errno);
}

void RdmStation::disarm() noexcept {
    shm::Station::disarm();
    if (flows_ != nullptr) {
        flows_->note_packets();  // what has woken us may have been one
    }
}

}  // namespace rvt
