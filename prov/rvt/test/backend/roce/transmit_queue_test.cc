// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When packets of a device on the loopback interface leave, and what it does when the kernel has
// something else to say to one.
#include "conform/fixture.h"

#include <chrono>
#include <cstdlib>
#include <vector>

#include <poll.h>

#include "backend/roce/packet_device.h"
#include "common/own_network.h"
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

/// An address where nothing listens any more, nor will in a network that the test has to itself.
Address address_of_nobody() {
    const util::SockAddr any{.family = AF_INET, .ip = {127, 0, 0, 1}};
    return to_address(util::bind_udp_port(any).value().address);
}

/// A packet for a pair that is not there: who gets it counts it as dropped.
class Packet {
  public:
    explicit Packet(std::size_t payload_bytes = 0) : payload_(payload_bytes) {}
    ~Packet() = default;
    Packet(const Packet&) = delete;
    Packet& operator=(const Packet&) = delete;

    bool send_now(Device& device, const Address& dest) const {
        return device.ops().send_now(device, {.dest = dest}, packet_);
    }
    bool send(Device& device, const Address& dest) const {
        return device.ops().send_packets(device, {.dest = dest}, {&packet_, 1}) == 1;
    }

  private:
    std::array<std::byte, protocol::kMaxHeaderBytes> headers_{};
    std::vector<std::byte> payload_;
    const iovec piece_{payload_.data(), payload_.size()};
    const OutPacket packet_{
        .headers = {headers_.data(), protocol::encode({.dest_qpn = kQpn}, headers_.data())},
        .payload = {&piece_, 1}};
};

std::uint64_t dropped(Side& side) {
    return side.device->stats().sum(Stat::kDrops);
}

/// Whether B gets a packet before long.
bool arrives(Pair<Roce>& pair) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAwaitMs);
    while (dropped(pair.b()) == 0 && std::chrono::steady_clock::now() < end) {
        pair.backend().settle();
    }
    return dropped(pair.b()) == 1;
}

}  // namespace

Test(roce_transmit, a_packet_that_is_kept_leaves_with_the_next_poll, .timeout = 30) {
    Pair<Roce> pair({.type = QpType::kUd});
    RVT_ASSERT(Packet().send(*pair.a().device, pair.b().device->address()));
    pair.b().device->progress();
    RVT_EQ(dropped(pair.b()), 0u);
    RVT_ASSERT(arrives(pair));
}

Test(roce_transmit, packets_that_an_interface_drops_keep_no_others_waiting, .timeout = 30) {
    if (!test::enter_own_network()) {
        cr_skip_test("this user may make no network of its own");
    }
    // The other end of the cable takes none that are longer.
    RVT_EQ(std::system("ip link set wire1 mtu 300 && "
                       "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev wire0"),
           0);
    const util::SockAddr own{.family = AF_INET, .ip = {192, 0, 2, 1}};
    Registry registry;
    const auto from = roce::PacketDevice::open(registry, {.name = "from", .address = own}).take();
    const auto to = roce::PacketDevice::open(registry, {.name = "to", .address = own}).take();
    util::SockAddr cut_off = own;
    cut_off.ip[3] = 2;
    cut_off.port = 7;
    RVT_ASSERT(Packet(600).send(from->device(), to_address(cut_off)));
    RVT_ASSERT(Packet().send(from->device(), to->device().address()));
    const Stats& heard = to->device().stats();
    while (heard.sum(Stat::kDrops) == 0) {
        from->device().progress();
        to->device().progress();
    }
    RVT_EQ(from->transmit_queue().refused(), 1);
    RVT_OK(from->close());
    RVT_OK(to->close());
}

Test(roce_transmit, word_of_a_refused_packet_is_heeded_and_costs_no_other_packet, .timeout = 30) {
    test::enter_own_network();
    Pair<Roce> pair({.type = QpType::kUd});
    Refused sink;
    Device& device = *pair.a().device;
    device.set_mad_sink(&sink);
    const Address nobody = address_of_nobody();
    const Packet packet;
    RVT_ASSERT(packet.send_now(device, nobody));
    pollfd told{.fd = pair.backend().packet_device(kA).wire_fd(), .events = 0, .revents = 0};
    RVT_EQ(poll(&told, 1, kAwaitMs), 1);
    // This one is told instead of the next poll.
    RVT_ASSERT(packet.send_now(device, pair.b().device->address()));
    RVT_ASSERT(arrives(pair));
    RVT_EQ(sink.count, 1u);
    RVT_ASSERT(sink.address == nobody);
    RVT_EQ(sink.qpn, kQpn);
    device.set_mad_sink(nullptr);
}

Test(roce_transmit, word_of_a_packet_that_was_refused_among_others_is_heeded, .timeout = 30) {
    test::enter_own_network();
    Pair<Roce> pair({.type = QpType::kUd});
    Refused sink;
    Device& device = *pair.a().device;
    device.set_mad_sink(&sink);
    const Packet packet;
    RVT_ASSERT(packet.send(device, address_of_nobody()));
    RVT_ASSERT(packet.send(device, pair.b().device->address()));
    // In one call, in which this host mostly answers the first before it takes the second.
    device.progress();
    RVT_ASSERT(arrives(pair));
    while (sink.count == 0) {
        device.progress();
    }
    RVT_EQ(sink.count, 1u);
    pollfd told{.fd = pair.backend().packet_device(kA).wire_fd(), .events = 0, .revents = 0};
    RVT_EQ(poll(&told, 1, 0), 0);  // nothing keeps a sleeper awake
    device.set_mad_sink(nullptr);
}
