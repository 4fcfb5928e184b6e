// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices of DGRAM endpoints, and when the control thread acts for them.
#include "dgram_host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/epoll.h>

#include "backend/roce/group_port.h"
#include "backend/roce/packet_device.h"
#include "backend/shm/packet_port.h"
#include "backend/shm/segments.h"
#include "core/addresses.h"
#include "core/device.h"
#include "core/registry.h"
#include "msg_station.h"
#include "ofi/ep_dgram.h"
#include "port_watch.h"
#include "roce_tuning.h"
#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt {
namespace {

using std::chrono::milliseconds;

// After so long without a poll the application is taken to be busy elsewhere.
constexpr milliseconds kPatience{1};
constexpr milliseconds kMostPause{4};
constexpr milliseconds kTurn{1};  // before other handlers of the thread have theirs
// Asking to be told of arrivals costs a sender over shared memory a system call.
constexpr std::uint64_t kHostIdleUs = 1000;
constexpr DeviceLimits kLimits = {.max_qp = 1, .max_mr = 4};

std::uint32_t wanted_bytes() noexcept {
    return static_cast<std::uint32_t>(util::param_number(util::ParamId::kRoceMtu));
}

/// While the wire is quiet it waits for a packet and tells the endpoint. If the endpoint is to make
/// progress by itself, and the application does not poll, it does.
class DgramWatch final : public util::ControlThread::Handler {
  public:
    using Clock = util::ControlThread::Clock;

    /// @param wire  Of which poll() looks at shared memory alone while the watch is at it; nullptr:
    ///              it is none.
    DgramWatch(util::ControlThread& thread, const core::UdHostAttr& attr,
               roce::PacketDevice* wire) noexcept
        : Handler(thread),
          user_(*attr.user),
          wire_(wire),
          has_auto_progress_(attr.has_auto_progress) {}

    /// @param group_fd  Of packets to groups, where those do not make `fd` readable; -1.
    /// @param host_fd   Of what comes by a host wire; -1: there is none.
    Status start(int fd, int group_fd, int host_fd) {
        Status started = watch_once(fd, EPOLLIN);
        started = started.is_ok() ? watch_other(group_fd, &DgramWatch::on_wire) : started;
        return started.is_ok() ? watch_other(host_fd, &DgramWatch::on_host_wire) : started;
    }
    /// Threads: any.
    void resume() noexcept {
        if (wire_ != nullptr) {
            wire_->leave_wire();  // before it is watched: who sees something takes it back
        }
        const bool is_armed =
            rearm().is_ok() &&
            std::ranges::all_of(others_, [](const auto& other) { return other->rearm().is_ok(); });
        if (!is_armed) [[unlikely]] {
            have_wire_polled();  // and tried again when it has come to rest
        }
    }

    void on_ready(std::uint32_t /*events*/) override { on_wire(); }

    /// Once the endpoint is cold again, the next packet begins anew.
    void on_timer() override {
        if (!user_.is_hot()) {
            return;
        }
        const std::uint64_t count = user_.poll_count();
        const bool owner_polls = std::exchange(last_count_, count) != count;
        if (owner_polls) {
            pause_ = std::min(2 * pause_, kMostPause);
            set_timer(Clock::now() + pause_);
            return;
        }
        take_over();
    }

  private:
    using Arrival = void (DgramWatch::*)();

    struct Other final : Handler {
        Other(DgramWatch& watch, Arrival arrival) noexcept
            : Handler(watch.thread()), owner(watch), on_arrival(arrival) {}
        using Handler::rearm;
        using Handler::watch_once;
        void on_ready(std::uint32_t /*events*/) override { (owner.*on_arrival)(); }

        DgramWatch& owner;
        const Arrival on_arrival;
    };

    Status watch_other(int fd, Arrival arrival) {
        if (fd < 0) {
            return kOk;
        }
        others_.push_back(std::make_unique<Other>(*this, arrival));
        return others_.back()->watch_once(fd, EPOLLIN);
    }

    void have_wire_polled() noexcept {
        if (wire_ != nullptr) {
            wire_->take_wire();
        }
        user_.mark_hot();
    }

    void on_wire() {
        have_wire_polled();
        watch_owner();
    }
    /// The wire is left to the watch: to look at it again and again would be a system call each.
    void on_host_wire() {
        wire_->glance_at_wire();
        user_.mark_hot();
        watch_owner();
    }

    void watch_owner() {
        if (has_auto_progress_) {
            last_count_ = user_.poll_count();
            pause_ = kPatience;
            set_timer(Clock::now() + pause_);
        }
    }

    void take_over() {
        // Progress may take long, and does not concern a fork.
        const util::ForkRelease release;
        const Clock::time_point end = Clock::now() + kTurn;
        while (user_.is_hot() && user_.poll_count() == last_count_ && Clock::now() < end) {
            if (!user_.control_progress()) {
                break;  // the application is in a call
            }
        }
        if (user_.is_hot()) {
            set_timer(Clock::now() +
                      (user_.poll_count() == last_count_ ? milliseconds{0} : pause_));
        }
    }

    core::UdUser& user_;
    roce::PacketDevice* const wire_;
    const bool has_auto_progress_;
    std::vector<std::unique_ptr<Other>> others_;
    std::uint64_t last_count_ = 0;
    milliseconds pause_{kPatience};
};

/// A device that a station has opened, and answers for.
class SharedDevice final : public core::UdSharing {
  public:
    static Result<std::unique_ptr<core::UdSharing>> open(const util::SockAddr& bind);

    core::Device& device() noexcept override { return port_->rc().device(); }
    [[nodiscard]] util::SockAddr address() const noexcept override { return port_->address(); }
    core::UdServices& services() noexcept override { return *port_->rc().datagrams(); }
    void poll() noexcept override { port_->poll(); }
    Status arm() noexcept override { return port_->arm(); }
    [[nodiscard]] int wake_fd() const noexcept override { return wake_set_.get(); }
    Status watch(int fd) noexcept override;
    void expect_traffic() noexcept override { port_->rc().expect_traffic(); }

  private:
    explicit SharedDevice(std::shared_ptr<ofi::MsgPort> port) noexcept : port_(std::move(port)) {}
    Status start();

    const std::shared_ptr<ofi::MsgPort> port_;
    util::ProcessFd wake_set_;
};

Result<std::unique_ptr<core::UdSharing>> SharedDevice::open(const util::SockAddr& bind) {
    auto port = open_datagram_number(bind);
    if (!port.is_ok()) {
        return port.status();
    }
    std::unique_ptr<SharedDevice> made(new SharedDevice(port.take()));
    const Status started = made->start();
    if (!started.is_ok()) {
        return started;
    }
    return std::unique_ptr<core::UdSharing>(std::move(made));
}

Status SharedDevice::start() {
    const util::ForkHold hold;
    wake_set_ = util::ProcessFd(util::UniqueFd(epoll_create1(EPOLL_CLOEXEC)));
    return wake_set_.is_open() ? watch(port_->wake_fd()) : Status(errno);
}

Status SharedDevice::watch(int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(wake_set_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? kOk : Status(errno);
}

class DgramHost final : public core::UdHost {
  public:
    explicit DgramHost(const core::UdHostAttr& attr) noexcept : attr_(attr) {}
    ~DgramHost() override;
    DgramHost(const DgramHost&) = delete;
    DgramHost& operator=(const DgramHost&) = delete;

    Status open(ofi::MsgNic* nic);

    core::Device& device() noexcept override { return *device_; }
    util::SockAddr address() const noexcept override {
        return shared_ != nullptr ? shared_->address() : core::to_sock_addr(device_->address());
    }
    core::UdSharing* sharing() noexcept override { return shared_.get(); }
    core::UdPolling polling() const noexcept override;
    void leave_to_host() noexcept override { watch_->resume(); }
    Status start() override;
    void stop() noexcept override;

  private:
    Status open_wire();
    void open_host_wire(const char* name);
    Status open_shared(ofi::MsgNic* nic);
    Status open_host();
    Status open_groups();

    const core::UdHostAttr attr_;
    core::Device* device_ = nullptr;  // of one of these
    std::unique_ptr<roce::PacketDevice> wire_;
    std::unique_ptr<shm::SegmentDevice> host_;
    std::unique_ptr<core::UdSharing> shared_;
    std::shared_ptr<util::ControlThread> thread_;
    std::unique_ptr<DgramWatch> watch_;
    std::unique_ptr<PortWatch> port_watch_;  // of a wire
};

/// An address of this host alone is reached through shared memory, another one by its network.
Status DgramHost::open(ofi::MsgNic* nic) {
    if (nic != nullptr || shares_device(attr_.bind)) {
        return open_shared(nic);
    }
    const bool has_wire = util::param_is_set(util::ParamId::kRoce) && !attr_.bind.is_loopback();
    return has_wire ? open_wire() : open_host();
}

Status DgramHost::open_wire() {
    auto port = util::bind_udp_port(attr_.bind);
    if (!port.is_ok()) {
        return port.status();
    }
    util::UdpPort bound = port.take();
    const std::string name = "dgram-" + bound.address.to_string();
    auto device =
        roce::PacketDevice::open(core::Registry::instance(), {.name = name.c_str(),
                                                              .port = &bound,
                                                              .payload_bytes = wanted_bytes(),
                                                              .joins_groups = true,
                                                              .limits = kLimits,
                                                              .faults = packet_faults(),
                                                              .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    wire_ = device.take();
    device_ = &wire_->device();
    // Faults are of packets: who asks for them wants all of them to be some.
    if (util::param_is_set(util::ParamId::kDgramSharedMemory) && !packet_faults().has_faults()) {
        open_host_wire(name.c_str());
    }
    return kOk;
}

/// Without it the wire leads everywhere.
void DgramHost::open_host_wire(const char* name) {
    auto port = wire_->share_port();
    Status opened = port.status();
    if (opened.is_ok()) {
        util::UdpPort shared = port.take();
        auto host =
            shm::PacketPort::open({.name = name, .port = &shared, .capture = packet_capture()});
        opened = host.is_ok() ? wire_->use_host_wire(host.take()) : host.status();
    }
    if (!opened.is_ok() && opened.error() != EAFNOSUPPORT) {
        RVT_WARN(kEpCtrl, "datagrams from %s to this host go by UDP: shared memory has failed (%s)",
                 attr_.bind.to_string().c_str(), strerrordesc_np(opened.error()));
    }
}

Status DgramHost::open_shared(ofi::MsgNic* nic) {
    auto opened = nic != nullptr ? nic->open_datagrams(attr_.bind) : SharedDevice::open(attr_.bind);
    if (opened.is_ok()) {
        shared_ = opened.take();
        device_ = &shared_->device();
    }
    return opened.status();
}

Status DgramHost::open_host() {
    // A datagram has to fit in one packet, should it go to a group.
    const auto bytes = dgram_bytes_of(attr_.bind);
    if (!bytes.is_ok()) {
        return bytes.status();
    }
    // The port is known only when it is open.
    static std::atomic<unsigned> opened{0};
    // relaxed: a number of its own.
    const std::string name =
        "dgram-host-" + std::to_string(opened.fetch_add(1, std::memory_order_relaxed));
    DeviceLimits limits = kLimits;
    limits.max_ud_bytes = bytes.value();
    auto device =
        shm::SegmentDevice::open(core::Registry::instance(), {.name = name.c_str(),
                                                              .address = attr_.bind,
                                                              .limits = limits,
                                                              .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    host_ = device.take();
    device_ = &host_->device();
    return open_groups();
}

Status DgramHost::open_groups() {
    auto port = host_->share_port();
    if (!port.is_ok()) {
        return port.status();
    }
    util::UdpPort shared = port.take();
    auto groups = roce::GroupPort::open({.name = device_->name().c_str(),
                                         .port = &shared,
                                         .wake_fd = host_->wake_fd(),
                                         .faults = packet_faults(),
                                         .capture = packet_capture()});
    if (!groups.is_ok()) {
        return groups.status();
    }
    host_->use_groups(groups.take());
    return kOk;
}

/// A look at shared memory, or at a device whose station knows when to look, makes no system call,
/// and nobody but the endpoint has to look unless it is to make progress by itself.
core::UdPolling DgramHost::polling() const noexcept {
    if (wire_ != nullptr && wire_->has_host_peers()) {
        return {.idle_us = kHostIdleUs, .is_cheap = true};
    }
    if (wire_ != nullptr) {
        return {};
    }
    return {.idle_us = attr_.has_auto_progress ? kHostIdleUs : core::UdPolling::kNever,
            .is_cheap = true};
}

Status DgramHost::start() {
    auto thread = util::ControlThread::acquire();
    if (!thread.is_ok()) {
        return thread.status();
    }
    thread_ = thread.take();
    watch_ = std::make_unique<DgramWatch>(*thread_, attr_, wire_.get());
    util::Status started = util::kOk;
    thread_->run([&] {
        if (wire_ != nullptr) {
            started = watch_->start(wire_->wire_fd(), wire_->group_fd(), wire_->host_fd());
            port_watch_ = std::make_unique<PortWatch>(*wire_, [] {});
            port_watch_->start(*thread_);
        } else {
            started = watch_->start(
                shared_ != nullptr ? shared_->wake_fd() : device_->ops().wake_fd(*device_), -1, -1);
        }
    });
    return started;
}

void DgramHost::stop() noexcept {
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
}

DgramHost::~DgramHost() {
    stop();
    if (wire_ != nullptr) {
        [[maybe_unused]] const Status closed = wire_->close();
    }
    if (host_ != nullptr) {
        [[maybe_unused]] const Status closed = host_->close();
    }
}

}  // namespace

Result<std::unique_ptr<core::UdHost>> open_dgram_host(const core::UdHostAttr& attr,
                                                      ofi::MsgNic* nic) {
    auto made = std::make_unique<DgramHost>(attr);
    const Status opened = made->open(nic);
    return opened.is_ok() ? Result<std::unique_ptr<core::UdHost>>(std::move(made)) : opened;
}

Result<std::uint32_t> dgram_bytes_of(const util::SockAddr& address) {
    const auto most = roce::payload_of(address);
    if (!most.is_ok()) {
        return most;
    }
    const std::uint32_t wanted = wanted_bytes();
    return core::mtu_within(wanted == 0 ? most.value() : std::min(most.value(), wanted));
}

void use_dgram_hosts() noexcept {
    ofi::set_dgram_hosts({.open = open_dgram_host, .bytes_of = dgram_bytes_of});
}

}  // namespace rvt
