// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a datagram endpoint of a NIC has around it, for tests: nobody looks at the NIC but who
// polls, and who asks for peers is remembered.
#pragma once

#include "core/ud_endpoint.h"

namespace rvt::test {

class NicServices final : public core::UdServices {
  public:
    Status open_service(std::uint16_t, const core::UdPair&, core::SidrUser& opened) override {
        user = &opened;
        return kOk;
    }
    void close_service(std::uint16_t) noexcept override { user = nullptr; }
    Status ask(const Address&, std::uint16_t) override { return kOk; }

    core::SidrUser* user = nullptr;
    int watched_fd = -1;  // of the device's sleepers
};

class NicHost final : public core::UdHost, public core::UdSharing {
  public:
    NicHost(core::Device& device, NicServices& services, const util::SockAddr& own) noexcept
        : device_(device), services_(services), own_(own) {}
    core::Device& device() noexcept override { return device_; }
    util::SockAddr address() const noexcept override { return own_; }
    core::UdSharing* sharing() noexcept override { return this; }
    void leave_to_host() noexcept override {}
    Status start() override { return kOk; }
    void stop() noexcept override {}
    core::UdServices& services() noexcept override { return services_; }
    void poll() noexcept override {}
    Status arm() noexcept override { return kOk; }
    int wake_fd() const noexcept override { return -1; }
    Status watch(int fd) noexcept override {
        services_.watched_fd = fd;
        return kOk;
    }
    void expect_traffic() noexcept override {}

  private:
    core::Device& device_;
    NicServices& services_;
    const util::SockAddr own_;
};

}  // namespace rvt::test
