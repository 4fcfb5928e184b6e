// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a device on the loopback interface does when the kernel has something else to say to a
// packet that leaves at once.
#include "conform/fixture.h"

#include <poll.h>

#include "core/addresses.h"
#include "core/mad.h"
#include "protocol/headers.h"
#include "util/udp_port.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::uint32_t kQpn = 0x123;  // of no pair
constexpr int kAwaitMs = 10'000;

struct Refused final : MadSink {
    void take_mad(const Address& /*source*/,
                  std::span<const std::byte, protocol::kMadBytes> /*mad*/) noexcept override {}
    void peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept override {
        address = peer;
        qpn = dest_qpn;
        ++count;
    }
    Address address{};
    std::uint32_t qpn = 0;
    unsigned count = 0;
};

/// An address where nothing listens any more.
Address address_of_nobody() {
    const util::SockAddr any{.family = AF_INET, .ip = {127, 0, 0, 1}};
    return to_address(util::bind_udp_port(any).value().address);
}

bool send_now(Device& device, const Address& dest) {
    std::array<std::byte, protocol::kMaxHeaderBytes> headers;
    const std::size_t bytes = protocol::encode({.dest_qpn = kQpn}, headers.data());
    return device.ops().send_now(device, {.dest = dest}, {.headers = {headers.data(), bytes}});
}

}  // namespace

Test(roce_transmit, word_of_a_refused_packet_is_heeded_and_costs_no_other_packet, .timeout = 30) {
    Pair<Roce> pair({.type = QpType::kUd});
    Refused sink;
    Device& device = *pair.a().device;
    device.set_mad_sink(&sink);
    const Address nobody = address_of_nobody();
    RVT_ASSERT(send_now(device, nobody));
    pollfd told{.fd = pair.backend().packet_device(kA).wire_fd(), .events = 0, .revents = 0};
    RVT_EQ(poll(&told, 1, kAwaitMs), 1);
    RVT_ASSERT(send_now(device, pair.b().device->address()));  // is told instead of the next poll
    for (int i = 0; i < 1000 && pair.b().device->stats().sum(Stat::kDrops) == 0; ++i) {
        pair.backend().settle();
    }
    RVT_EQ(pair.b().device->stats().sum(Stat::kDrops), 1u);
    RVT_EQ(sink.count, 1u);
    RVT_ASSERT(sink.address == nobody);
    RVT_EQ(sink.qpn, kQpn);
    device.set_mad_sink(nullptr);
}
