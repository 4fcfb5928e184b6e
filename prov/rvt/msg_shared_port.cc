// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The devices that are shared, and the numbers taken at each.
#include "msg_shared_port.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <set>
#include <vector>

#include <fcntl.h>

#include "core/addresses.h"
#include "util/fork_guard.h"
#include "util/log.h"
#include "util/mutex.h"

namespace rvt {
namespace {

// Numbers that nobody asks for by name, as the kernel's rdma_cm gives them out.
constexpr std::uint16_t kFirstFree = 32768;
constexpr std::uint16_t kLastFree = 60999;

/// One device, and who is there.
struct SharedDevice {
    util::SockAddr address;  // with port 0
    unsigned generation = 0;
    std::shared_ptr<ofi::MsgPort> port;
    std::array<std::set<std::uint16_t>, 2> numbers;  // by PortSpace

    std::set<std::uint16_t>& numbers_of(PortSpace space) noexcept {
        return numbers[static_cast<std::size_t>(space)];
    }
};

class SharedPort final : public ofi::MsgPort {
  public:
    SharedPort(ofi::MsgPort& device, util::SockAddr name, PortSpace space,
               util::ProcessFd wake_fd) noexcept
        : MsgPort(Same{device}),
          device_(device),
          name_(name),
          space_(space),
          wake_fd_(std::move(wake_fd)) {}
    ~SharedPort() override;
    SharedPort(const SharedPort&) = delete;
    SharedPort& operator=(const SharedPort&) = delete;

    core::RcPort& rc() noexcept override { return device_.rc(); }
    util::SockAddr address() const noexcept override { return name_; }
    core::RcCall call_to(const util::SockAddr& address) const noexcept override {
        Address dest = core::to_address(address);
        dest.port = device_.address().port;
        return {.dest = dest, .service = address.port, .source = name_.port};
    }
    util::SockAddr name_of(const Address& peer, std::uint16_t service) const noexcept override {
        util::SockAddr name = core::to_sock_addr(peer);
        name.port = service;
        return name;
    }
    const char* way() const noexcept override { return device_.way(); }
    int wake_fd() const noexcept override { return wake_fd_.get(); }
    util::Status arm() noexcept override { return device_.arm(); }

  private:
    unsigned poll_device() noexcept override { return device_.poll(); }

    ofi::MsgPort& device_;  // outlives the name, see SharedDevice
    const util::SockAddr name_;
    const PortSpace space_;
    util::ProcessFd wake_fd_;  // of its own: sets of descriptors take each once
};

util::Mutex lock;  // order: before the control thread's; held while a device opens or closes

std::vector<SharedDevice>& devices() RVT_REQUIRES(lock) {
    static auto* const kDevices = new std::vector<SharedDevice>;
    return *kDevices;
}

util::SockAddr without_port(util::SockAddr address) noexcept {
    address.port = 0;
    return address;
}

/// One that a forked child has inherited is none.
std::vector<SharedDevice>::iterator find_device(const util::SockAddr& address) RVT_REQUIRES(lock) {
    return std::ranges::find_if(devices(), [&](const SharedDevice& device) {
        return device.address == without_port(address) &&
               device.generation == util::fork_generation();
    });
}

/// Returns: EADDRINUSE when the number is taken, or all are.
util::Result<std::uint16_t> take_number(std::set<std::uint16_t>& taken, std::uint16_t wanted) {
    if (wanted != 0) {
        return taken.insert(wanted).second ? util::Result<std::uint16_t>(wanted)
                                           : util::Result<std::uint16_t>(EADDRINUSE);
    }
    constexpr unsigned kCount = kLastFree - kFirstFree + 1;
    // A peer may remember the last process at this address.
    const unsigned first = std::random_device()() % kCount;
    for (unsigned i = 0; i < kCount; ++i) {
        const auto number = static_cast<std::uint16_t>(kFirstFree + (first + i) % kCount);
        if (taken.insert(number).second) {
            return number;
        }
    }
    return EADDRINUSE;
}

void close_if_unused(std::vector<SharedDevice>::iterator device) RVT_REQUIRES(lock) {
    if (device->numbers_of(PortSpace::kConnections).empty() &&
        device->numbers_of(PortSpace::kDatagrams).empty()) {
        devices().erase(device);
    }
}

SharedPort::~SharedPort() {
    wake_fd_.reset();
    const util::Guard guard(lock);
    const auto device = std::ranges::find_if(
        devices(), [&](const SharedDevice& one) { return one.port.get() == &device_; });
    device->numbers_of(space_).erase(name_.port);
    close_if_unused(device);
}

util::Result<std::shared_ptr<ofi::MsgPort>> name_port(SharedDevice& device, PortSpace space,
                                                      std::uint16_t wanted) RVT_REQUIRES(lock) {
    const util::ForkHold hold;
    util::ProcessFd wake_fd(util::UniqueFd(fcntl(device.port->wake_fd(), F_DUPFD_CLOEXEC, 0)));
    if (!wake_fd.is_open()) {
        return errno;
    }
    const auto number = take_number(device.numbers_of(space), wanted);
    if (!number.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot take service %u of %s: %s; port 0 chooses a free one", wanted,
                 device.port->address().to_string().c_str(),
                 wanted != 0 ? "this process has it already" : "all are taken");
        return number.status();
    }
    util::SockAddr name = device.port->address();
    name.port = number.value();
    return std::shared_ptr<ofi::MsgPort>(
        std::make_shared<SharedPort>(*device.port, name, space, std::move(wake_fd)));
}

}  // namespace

util::Result<std::shared_ptr<ofi::MsgPort>> open_shared_port(const util::SockAddr& address,
                                                             PortSpace space,
                                                             std::uint16_t roce_port,
                                                             OpenSharedDevice open_device) {
    const util::Guard guard(lock);
    if (find_device(address) == devices().end()) {
        auto opened = open_device(address, roce_port);
        if (!opened.is_ok()) {
            return opened.status();
        }
        devices().push_back({.address = without_port(address),
                             .generation = util::fork_generation(),
                             .port = opened.take(),
                             .numbers = {}});
    }
    const auto device = find_device(address);
    auto port = name_port(*device, space, address.port);
    if (!port.is_ok()) {
        close_if_unused(device);
    }
    return port;
}

}  // namespace rvt
