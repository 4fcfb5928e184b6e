// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Shared memory beside a wire, and peers that are of another kind, or no honest ones. What it does
// with honest ones is in ofi/dgram_host_wire_test.cc.
#include "backend/shm/packet_port.h"

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/addresses.h"
#include "core/device.h"
#include "core/registry.h"
#include "test_endpoint.h"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include <poll.h>

using namespace rvt;
using namespace rvt::shm;
using rvt::shm::test::Kind;
using rvt::shm::test::loopback;
using rvt::shm::test::quiet_port;
using rvt::shm::test::TestEndpoint;

namespace {

constexpr BackendOps kNoWire = {
    .send_packets =
        [](core::Device&, const AhAttr&, std::span<const OutPacket> packets) {
            return static_cast<unsigned>(packets.size());
        },
    .poll = [](core::Device&) { return 0U; },
};

/// A port with a device that has no wire, and an endpoint with this service that connects to it.
struct Neighbourhood {
    core::Registry registry;
    util::UdpPort bound = quiet_port();
    const util::SockAddr address = bound.address;
    core::Device* device = registry
                               .add_device({.name = "wire",
                                            .grade = Grade::kPacket,
                                            .address = core::to_address(address),
                                            .payload_bytes = 1024},
                                           kNoWire, nullptr)
                               .take();
    std::unique_ptr<core::HostWire> port =
        PacketPort::open({.port = &bound, .most_peers = 1}).take();
    TestEndpoint endpoint;
    Path path;  // of the endpoint to the port

    explicit Neighbourhood(Service service) {
        endpoint.page().service = service;
        endpoint.connector().connect(address);
        const auto event = next();
        RVT_ASSERT(event != nullptr && event->kind == Kind::kConnected);
        path.open(std::move(event->peering));
    }
    ~Neighbourhood() {
        port.reset();
        [[maybe_unused]] const Status removed = registry.remove_device(device);
    }
    Neighbourhood(const Neighbourhood&) = delete;
    Neighbourhood& operator=(const Neighbourhood&) = delete;

    template <class Condition>
    void poll_until(Condition holds) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!holds() && std::chrono::steady_clock::now() < end) {
            port->poll(*device);
            std::this_thread::yield();
        }
        RVT_ASSERT(holds());
    }
    std::unique_ptr<ConnectionEvent> next() {
        poll_until([&] { return endpoint.waiting_events() != 0; });
        return endpoint.next();
    }
    /// The connection ends, and with it the last of the port's peers.
    bool hangs_up() {
        const auto event = next();
        poll_until([&] { return !port->has_peers(); });
        return event != nullptr && event->kind == Kind::kPeerGone;
    }
    void put_run(std::size_t header_bytes, std::size_t bytes) {
        std::byte* const run = path.reserve_run(bytes);
        std::memset(run, 0xa5, bytes);
        path.put_run(core::RdOp::kSegment, 0, header_bytes, 0, "", 0, bytes);
    }
    /// Falls asleep, as often as it takes.
    void fall_asleep() {
        poll_until([&] { return port->arm().is_ok(); });
    }
    bool is_woken(int patience_ms = 0) {
        pollfd one{.fd = port->wake_fd(), .events = POLLIN, .revents = 0};
        return poll(&one, 1, patience_ms) == 1;
    }
    std::uint64_t bad_packets() { return device->stats().sum(core::Stat::kBadPackets); }
};

}  // namespace

Test(shm_packets, a_peer_of_another_kind_is_turned_away, .timeout = 60) {
    for (const Service service : {Service::kRd, Service::kSegments, static_cast<Service>(77)}) {
        Neighbourhood here(service);
        RVT_ASSERT(here.hangs_up());
    }
}

Test(shm_packets, a_message_that_is_no_segment_ends_the_connection, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    RVT_ASSERT(here.path.put_eager(0, 1, 2, "x", 1));
    RVT_ASSERT(here.hangs_up());
}

Test(shm_packets, a_header_longer_than_its_packet_ends_the_connection, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    here.put_run(65, 64);
    RVT_ASSERT(here.hangs_up());
}

Test(shm_packets, bytes_that_are_no_packet_are_counted_and_the_connection_stays, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    std::uint64_t count = 0;
    for (const std::size_t bytes : {1, 11, 12, 24, 200, 8000}) {
        here.put_run(bytes / 2, bytes);
        ++count;
        here.poll_until([&] { return here.bad_packets() == count; });
    }
    RVT_EQ(here.endpoint.waiting_events(), 0U);
}

Test(shm_packets, who_ends_the_connection_is_heard_to_the_end, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    here.poll_until([&] { return here.port->has_peers(); });
    here.put_run(12, 100);
    here.put_run(12, 100);
    here.endpoint.close();
    here.poll_until([&] { return !here.port->has_peers(); });
    RVT_EQ(here.bad_packets(), 2);
}

/// Nobody is left to be woken by.
Test(shm_packets, who_has_lost_its_last_peer_sleeps, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    here.poll_until([&] { return here.port->has_peers(); });
    here.fall_asleep();
    RVT_ASSERT(!here.is_woken());
    here.put_run(65, 64);  // of no honest peer
    RVT_ASSERT(here.is_woken(20'000));
    RVT_ASSERT(here.hangs_up());
    rvt::shm::test::await_control_thread();
    for (int i = 0; i < 3; ++i) {
        here.fall_asleep();
        RVT_ASSERT(!here.is_woken());
    }
}

/// Who comes later is reached by the wire until there is room again.
Test(shm_packets, peers_past_the_most_are_turned_away, .timeout = 60) {
    Neighbourhood here(Service::kPackets);
    TestEndpoint other;
    other.page().service = Service::kPackets;
    const auto expect = [&](Kind kind, int error) {
        here.poll_until([&] { return other.waiting_events() != 0; });
        const auto event = other.next();
        RVT_ASSERT(event->kind == kind);
        RVT_EQ(event->error, error);
    };
    for (int i = 0; i < 3; ++i) {
        other.connector().connect(here.address);
        expect(Kind::kFailed, EUSERS);
    }
    here.put_run(12, 100);
    here.poll_until([&] { return here.bad_packets() == 1; });
    here.endpoint.close();
    here.poll_until([&] { return !here.port->has_peers(); });
    other.connector().connect(here.address);
    expect(Kind::kConnected, 0);
    here.poll_until([&] { return here.port->has_peers(); });
    rvt::shm::test::await_control_thread();
    RVT_EQ(other.waiting_events(), 0U);
}

Test(shm_packets, addresses_that_are_not_of_this_host_give_no_channel) {
    util::UdpPort bound = quiet_port();
    const auto port = PacketPort::open({.port = &bound}).take();
    const auto v4 = [](std::array<std::uint8_t, 4> ip, std::uint16_t at) {
        Address address{.port = at};
        address.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ip[0], ip[1], ip[2], ip[3]};
        return address;
    };
    RVT_EQ(port->open_channel({.port = 5}), EHOSTUNREACH);             // of none
    RVT_EQ(port->open_channel(v4({127, 0, 0, 1}, 5)), EHOSTUNREACH);   // has no wire
    RVT_EQ(port->open_channel(v4({192, 0, 2, 77}, 5)), EHOSTUNREACH);  // of documents
    RVT_EQ(port->open_channel(v4({192, 0, 2, 77}, 0)), EHOSTUNREACH);
}
