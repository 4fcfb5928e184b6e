// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When a device that also has a host wire looks at its own: each look is a system call.
#include <sys/eventfd.h>

#include "backend/roce/packet_device.h"
#include "common/check.h"
#include "core/addresses.h"
#include "core/host_wire.h"
#include "core/registry.h"
#include "util/unique_fd.h"

using namespace rvt;

namespace {

/// A host wire with peers who send nothing.
class QuietPeers final : public core::HostWire {
  public:
    QuietPeers() { note_peers(true); }
    Result<Channel*> open_channel(const Address&) override { return EHOSTUNREACH; }
    void close_channel(Channel&) noexcept override {}
    Status send(Channel&, std::span<const std::byte>, std::span<const iovec>) noexcept override {
        return ENOTCONN;
    }
    unsigned poll(core::Device&) noexcept override { return 0; }
    Status arm() noexcept override { return kOk; }
    [[nodiscard]] int wake_fd() const noexcept override { return fd_.get(); }

  private:
    util::UniqueFd fd_{eventfd(0, EFD_CLOEXEC)};
};

struct Wired {
    static constexpr util::SockAddr kLoopback{.family = AF_INET, .ip = {127, 0, 0, 1}};

    core::Registry registry;
    std::unique_ptr<roce::PacketDevice> device =
        roce::PacketDevice::open(registry, {.address = kLoopback, .joins_groups = true}).take();
    roce::UdpSocket peer = roce::open_udp_socket(kLoopback).take();

    Wired() { RVT_OK(device->use_host_wire(std::make_unique<QuietPeers>())); }
    ~Wired() { RVT_OK(device->close()); }
    Wired(const Wired&) = delete;
    Wired& operator=(const Wired&) = delete;

    /// It is there when this returns.
    void bring_packet() const {
        sockaddr_storage name{};
        const auto bytes =
            static_cast<socklen_t>(core::to_sock_addr(device->device().address()).to(&name));
        RVT_EQ(sendto(peer.fd(), "x", 1, 0, reinterpret_cast<sockaddr*>(&name), bytes), 1);
    }
    /// Looks many times. Returns: how many packets, bad ones, have been found by now.
    std::uint64_t found() const {
        for (int i = 0; i < 1000; ++i) {
            device->device().progress();
        }
        return device->corrupted();
    }
};

}  // namespace

Test(roce_host_wire, a_wire_that_is_left_is_looked_at_once_when_asked_for) {
    const Wired here;
    here.bring_packet();
    RVT_EQ(here.found(), 1U);
    here.device->leave_wire();
    here.bring_packet();
    RVT_EQ(here.found(), 1U);
    here.device->glance_at_wire();
    RVT_EQ(here.found(), 2U);
    here.bring_packet();
    RVT_EQ(here.found(), 2U);
    here.device->take_wire();
    RVT_EQ(here.found(), 3U);
}
