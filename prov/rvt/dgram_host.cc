// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices of DGRAM endpoints, and when the control thread acts for them.
#include "dgram_host.h"

#include <algorithm>
#include <chrono>
#include <string>

#include <sys/epoll.h>

#include "backend/roce/packet_device.h"
#include "core/device.h"
#include "core/registry.h"
#include "ofi/ep_dgram.h"
#include "roce_tuning.h"
#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/params.h"

namespace rvt {
namespace {

using std::chrono::milliseconds;

// After so long without a poll the application is taken to be busy elsewhere.
constexpr milliseconds kPatience{1};
constexpr milliseconds kMostPause{4};
constexpr milliseconds kTurn{1};  // before other handlers of the thread have theirs

std::uint32_t wanted_bytes() noexcept {
    return static_cast<std::uint32_t>(util::param_number(util::ParamId::kRoceMtu));
}

/// While the wire is quiet it waits for a packet and tells the endpoint. If the endpoint is to make
/// progress by itself, and the application does not poll, it does.
class DgramWatch final : public util::ControlThread::Handler {
  public:
    using Clock = util::ControlThread::Clock;

    DgramWatch(util::ControlThread& thread, const core::UdHostAttr& attr) noexcept
        : Handler(thread), user_(*attr.user), has_auto_progress_(attr.has_auto_progress) {}

    Status start(int fd) { return watch(fd, EPOLLIN | EPOLLONESHOT); }
    /// Threads: any.
    void resume() noexcept { rearm(EPOLLIN | EPOLLONESHOT); }

    void on_ready(std::uint32_t /*events*/) override {
        user_.mark_hot();
        if (has_auto_progress_) {
            last_count_ = user_.poll_count();
            pause_ = kPatience;
            set_timer(Clock::now() + pause_);
        }
    }

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
    const bool has_auto_progress_;
    std::uint64_t last_count_ = 0;
    milliseconds pause_{kPatience};
};

class DgramHost final : public core::UdHost {
  public:
    static Result<std::unique_ptr<core::UdHost>> open(const core::UdHostAttr& attr);
    ~DgramHost() override;
    DgramHost(const DgramHost&) = delete;
    DgramHost& operator=(const DgramHost&) = delete;

    core::Device& device() noexcept override { return device_->device(); }
    util::SockAddr address() const noexcept override { return device_->address(); }
    void leave_to_host() noexcept override { watch_->resume(); }
    Status start() override;
    void stop() noexcept override;

  private:
    DgramHost(const core::UdHostAttr& attr, std::unique_ptr<roce::PacketDevice> device) noexcept
        : attr_(attr), device_(std::move(device)) {}

    const core::UdHostAttr attr_;
    std::unique_ptr<roce::PacketDevice> device_;
    std::shared_ptr<util::ControlThread> thread_;
    std::unique_ptr<DgramWatch> watch_;
};

Result<std::unique_ptr<core::UdHost>> DgramHost::open(const core::UdHostAttr& attr) {
    auto port = util::bind_udp_port(attr.bind);
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
                                                              .limits = {.max_qp = 1, .max_mr = 4},
                                                              .faults = packet_faults(),
                                                              .capture = packet_capture()});
    if (!device.is_ok()) {
        return device.status();
    }
    return std::unique_ptr<core::UdHost>(new DgramHost(attr, device.take()));
}

Status DgramHost::start() {
    auto thread = util::ControlThread::acquire();
    if (!thread.is_ok()) {
        return thread.status();
    }
    thread_ = thread.take();
    watch_ = std::make_unique<DgramWatch>(*thread_, attr_);
    util::Status started = util::kOk;
    thread_->run([&] { started = watch_->start(device_->wake_fd()); });
    return started;
}

void DgramHost::stop() noexcept {
    if (watch_ != nullptr) {
        thread_->run([this] { watch_.reset(); });
        static_cast<void>(watch_.release());  // of a process that is gone, if it is still there
    }
    thread_.reset();
}

DgramHost::~DgramHost() {
    stop();
    [[maybe_unused]] const Status closed = device_->close();
}

}  // namespace

Result<std::unique_ptr<core::UdHost>> open_dgram_host(const core::UdHostAttr& attr) {
    return DgramHost::open(attr);
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
