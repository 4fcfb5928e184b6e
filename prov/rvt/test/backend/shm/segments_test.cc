// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A device of the verbs core on shared memory, and peers that are no devices or no honest ones.
// What it does with honest ones is in the conformance suite.
#include "backend/shm/segments.h"
#include "backend/shm/presence.h"

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/addresses.h"
#include "core/context.h"
#include "core/device.h"
#include "core/key_table.h"
#include "test_endpoint.h"

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>

using namespace rvt;
using namespace rvt::shm;
using rvt::shm::test::await_control_thread;
using rvt::shm::test::Kind;
using rvt::shm::test::loopback;
using rvt::shm::test::TestEndpoint;

namespace {

/// Waits until `holds()`, with turns of `progress()`: the control thread may be long away from its
/// processor.
template <class Condition, class Progress>
void turn_until(Condition holds, Progress progress) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < end) {
        progress();
        std::this_thread::yield();
    }
}

struct Fixture {
    core::Registry registry;
    std::unique_ptr<SegmentDevice> device =
        SegmentDevice::open(registry, {.address = loopback()}).take();
    TestEndpoint endpoint;
    Path path;  // of the endpoint to the device

    explicit Fixture(Service service) { endpoint.page().service = service; }
    ~Fixture() { [[maybe_unused]] const Status closed = device->close(); }
    Fixture(const Fixture&) = delete;
    Fixture& operator=(const Fixture&) = delete;

    /// The endpoint's next event, while the device makes progress.
    std::unique_ptr<ConnectionEvent> next() {
        turn_until([&] { return endpoint.waiting_events() != 0; },
                   [&] { device->device().progress(); });
        return endpoint.next();
    }
    void connect() {
        const Address& address = device->device().address();
        endpoint.connector().connect(loopback(address.port));
        const auto event = next();
        RVT_ASSERT(event != nullptr && event->kind == Kind::kConnected);
        path.open(std::move(event->peering));
    }
    /// The device's channel to the endpoint, which is open, or has failed.
    SegmentChannel& channel() {
        Channel* const made = device->open_channel(core::to_address(endpoint.address())).value();
        auto& known = static_cast<SegmentChannel&>(*made);
        while (known.state() == SegmentChannel::State::kConnecting) {
            device->device().sleep_on(-1, 1000);
            device->device().progress();
        }
        return known;
    }
    bool hangs_up() {
        const auto event = next();
        return event != nullptr && event->kind == Kind::kPeerGone;
    }
};

}  // namespace

Test(segments, an_endpoint_that_is_no_device_is_turned_away, .timeout = 60) {
    Fixture fixture(Service::kRd);
    fixture.connect();
    RVT_ASSERT(fixture.hangs_up());
}

Test(segments, a_channel_to_an_endpoint_fails, .timeout = 60) {
    Fixture fixture(Service::kRd);
    SegmentChannel& channel = fixture.channel();
    RVT_EQ(channel.send({}, {}), ENOTCONN);
    fixture.device->close_channel(channel);
}

Test(segments, a_message_that_no_device_sends_ends_the_connection, .timeout = 60) {
    Fixture fixture(Service::kSegments);
    fixture.connect();
    RVT_ASSERT(fixture.path.put_eager(0, 1, 2, "x", 1));
    RVT_ASSERT(fixture.hangs_up());
}

Test(segments, a_header_longer_than_its_segment_ends_the_connection, .timeout = 60) {
    Fixture fixture(Service::kSegments);
    fixture.connect();
    RVT_ASSERT(fixture.path.reserve_run(64) != nullptr);
    fixture.path.put_run(core::RdOp::kSegment, 0, 65, 0, "", 0, 64);
    RVT_ASSERT(fixture.hangs_up());
}

/// Its number may be that of another process, whether that it is gone has been read or not.
Test(segments, nothing_is_written_to_a_peer_that_is_known_to_be_gone, .timeout = 60) {
    Fixture fixture(Service::kSegments);
    const util::Mapping& block = fixture.endpoint.keys();
    const auto keys = core::KeyTable::create(block.at<void>(0), block.length()).take();
    std::array<char, 8> there{};
    const auto addr = reinterpret_cast<std::uint64_t>(there.data());
    const PeerMemory memory{.addr = addr,
                            .rkey = keys->add({.addr = addr,
                                               .length = there.size(),
                                               .iova = addr,
                                               .access = Access::kRemoteWrite})
                                        .take()};
    fixture.connect();
    core::Device& device = fixture.device->device();
    SegmentChannel& channel = fixture.channel();
    const auto write = [&](char what) {
        const iovec from{.iov_base = &what, .iov_len = 1};
        return device.ops().write_peer(device, channel, memory, {&from, 1});
    };
    RVT_OK(write('a'));
    fixture.endpoint.close();
    // Nobody polls the device: its host alone hears of it.
    turn_until([&] { return !write('b').is_ok(); }, [] {});
    RVT_ASSERT(!write('c').is_ok());
    RVT_ASSERT(there[0] != 'c');
    fixture.device->close_channel(channel);
}

Test(segments, a_segment_of_nonsense_is_counted_and_the_connection_stays, .timeout = 60) {
    Fixture fixture(Service::kSegments);
    fixture.connect();
    std::byte* run = fixture.path.reserve_run(200);
    std::memset(run, 0xa5, 200);
    fixture.path.put_run(core::RdOp::kSegment, 0, sizeof(core::SegmentHeader), 0, "", 0, 200);
    core::Device& device = fixture.device->device();
    turn_until([&] { return device.stats().sum(core::Stat::kBadSegments) != 0; },
               [&] { device.progress(); });
    RVT_EQ(device.stats().sum(core::Stat::kBadSegments), 1);
    RVT_ASSERT(fixture.path.reserve_run(64) != nullptr);
    RVT_EQ(fixture.endpoint.waiting_events(), 0u);
}

Test(segments, a_pair_takes_large_rings_once_much_has_gone_through_the_small_ones, .timeout = 60) {
    constexpr std::size_t kRun = 4000;
    Fixture fixture(Service::kSegments);
    fixture.connect();
    const auto send = [&](std::size_t bytes) {
        for (std::size_t sent = 0; sent < bytes; sent += kRun) {
            std::byte* run = nullptr;
            while ((run = fixture.path.reserve_run(kRun)) == nullptr) {
                fixture.device->device().progress();
            }
            std::memset(run, 0xa5, kRun);
            fixture.path.put_run(core::RdOp::kSegment, 0, sizeof(core::SegmentHeader), 0, "", 0,
                                 kRun);
        }
    };
    const auto has_large_rings = [&] {
        return fixture.path.describe().find("large rings") != std::string::npos;
    };
    send(3'500'000);  // fills the small ring of bytes some two hundred times
    RVT_ASSERT(!has_large_rings());
    send(1'000'000);
    RVT_ASSERT(has_large_rings());
}

Test(segments, addresses_that_name_nobody_give_no_channel) {
    Fixture fixture(Service::kSegments);
    RVT_EQ(fixture.device->open_channel({.port = 5}), EHOSTUNREACH);
    RVT_EQ(fixture.device->open_channel(
               {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}),
           EHOSTUNREACH);
}

namespace {

std::atomic<std::uint64_t> clock_us{1};
std::uint64_t test_clock() noexcept {
    return clock_us.load(std::memory_order_relaxed);  // relaxed: a clock orders nothing
}

/// Two devices that have not met; the first sends to the second. Time stands still.
struct Strangers {
    core::Registry registry;
    std::unique_ptr<SegmentDevice> from =
        SegmentDevice::open(registry, {.name = "from", .address = loopback(), .now_us = test_clock})
            .take();
    std::unique_ptr<SegmentDevice> to =
        SegmentDevice::open(registry, {.name = "to", .address = loopback()}).take();
    Channel* channel = from->open_channel(to->device().address()).value();
    std::array<std::byte, 1000> bytes{};

    ~Strangers() {
        from->close_channel(*channel);
        [[maybe_unused]] const Status closed = from->close();
        [[maybe_unused]] const Status too = to->close();
    }

    /// Nonsense, which the device counts.
    Status send() {
        const iovec payload{.iov_base = bytes.data(), .iov_len = bytes.size()};
        return from->device().ops().send_datagram(from->device(), *channel, bytes, {&payload, 1});
    }
    std::uint64_t arrived() { return to->device().stats().sum(core::Stat::kBadSegments); }
    std::uint64_t lost() { return from->device().stats().sum(core::Stat::kDrops); }
    template <class Condition>
    void until(Condition holds, bool polls_receiver = true) {
        turn_until(holds, [&] {
            from->device().progress();
            if (polls_receiver) {
                to->device().progress();
            }
        });
        RVT_ASSERT(holds());
    }
    /// One datagram connects them; then the sender falls asleep.
    void meet_and_arm() {
        RVT_OK(send());
        until([&] { return arrived() == 1; });
        await_control_thread();
        while (from->device().ops().arm(from->device()).error() == EAGAIN) {
            from->device().progress();
        }
    }
};

}  // namespace

Test(segments, datagrams_wait_for_a_peer_that_has_not_answered_yet, .timeout = 60) {
    Strangers pair;
    for (int i = 0; i < 50; ++i) {
        RVT_OK(pair.send());
    }
    pair.until([&] { return pair.arrived() == 50; });
    RVT_EQ(pair.lost(), 0);
}

Test(segments, a_full_ring_takes_datagrams_up_to_a_bound, .timeout = 60) {
    Strangers pair;
    RVT_OK(pair.send());
    pair.until([&] { return pair.arrived() == 1; });
    int sent = 0;
    while (pair.send().is_ok()) {
        ++sent;
    }
    RVT_EQ(pair.send(), ENOBUFS);
    pair.until([&] { return pair.arrived() == static_cast<std::uint64_t>(sent) + 1; });
    RVT_OK(pair.send());
    pair.until([&] { return pair.arrived() == static_cast<std::uint64_t>(sent) + 2; });
}

Test(segments, what_waits_for_room_leaves_with_the_next_datagram, .timeout = 60) {
    Strangers pair;
    RVT_OK(pair.send());
    pair.until([&] { return pair.arrived() == 1; });
    const auto& channel = static_cast<SegmentChannel&>(*pair.channel);
    std::uint64_t sent = 1;
    for (; !channel.has_waiting(); ++sent) {
        RVT_OK(pair.send());
    }
    while (pair.arrived() != sent - 1) {
        pair.to->device().progress();
    }
    RVT_OK(pair.send());
    RVT_ASSERT(!channel.has_waiting());
}

Test(segments, who_sleeps_is_woken_once_for_what_waits_for_room, .timeout = 60) {
    Strangers pair;
    pair.meet_and_arm();
    pollfd woken{.fd = pair.from->wake_fd(), .events = POLLIN, .revents = 0};
    const auto& channel = static_cast<SegmentChannel&>(*pair.channel);
    while (!channel.has_waiting()) {
        RVT_EQ(poll(&woken, 1, 0), 0);
        RVT_OK(pair.send());
    }
    eventfd_t times = 0;
    RVT_OK(pair.send());
    RVT_EQ(eventfd_read(pair.from->wake_fd(), &times), 0);
    RVT_EQ(times, 1);
}

Test(segments, who_cannot_fall_asleep_takes_no_wake_up_from_who_does, .timeout = 60) {
    Strangers pair;
    pair.meet_and_arm();
    pollfd woken{.fd = pair.from->wake_fd(), .events = POLLIN, .revents = 0};
    while (poll(&woken, 1, 0) == 0) {
        RVT_OK(pair.send());
    }
    core::Device& device = pair.from->device();
    RVT_EQ(device.ops().arm(device).error(), EAGAIN);  // what waits for room keeps him awake
    RVT_EQ(poll(&woken, 1, 0), 1);
}

Test(segments, a_peer_that_takes_nothing_loses_what_waits_for_it, .timeout = 60) {
    Strangers pair;
    RVT_OK(pair.send());
    pair.until([&] { return pair.arrived() == 1; });
    std::uint64_t sent = 0;
    while (pair.send().is_ok()) {
        ++sent;
    }
    const auto& channel = static_cast<SegmentChannel&>(*pair.channel);
    pair.from->device().progress();
    RVT_ASSERT(channel.has_waiting());
    // relaxed: as in test_clock().
    clock_us.fetch_add(2'000'000, std::memory_order_relaxed);
    pair.until([&] { return !channel.has_waiting(); }, false);
    RVT_NE(pair.lost(), 0u);
    pair.until([&] { return pair.arrived() == 1 + sent - pair.lost(); });
}

Test(segments, a_datagram_to_who_does_not_answer_is_lost_and_counted, .timeout = 60) {
    Fixture fixture(Service::kRd);
    core::Device& device = fixture.device->device();
    const Address to{.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1},
                     .port = fixture.endpoint.address().port};
    Channel* channel = fixture.device->open_channel(to).value();
    RVT_OK(device.ops().send_datagram(device, *channel, {}, {}));
    while (device.stats().sum(core::Stat::kDrops) == 0) {
        device.sleep_on(-1, 1000);
        device.progress();
    }
    RVT_EQ(device.stats().sum(core::Stat::kDrops), 1);
    RVT_EQ(device.ops().send_datagram(device, *channel, {}, {}), ENOTCONN);
    fixture.device->close_channel(*channel);
}

Test(segments, what_waits_leaves_when_the_peer_answers_though_nobody_polls, .timeout = 60) {
    Strangers pair;
    RVT_OK(pair.send());
    while (pair.arrived() == 0) {
        pair.to->device().sleep_on(-1, 1000);
        pair.to->device().progress();
    }
    RVT_EQ(pair.arrived(), 1);
}

Test(segments, who_was_called_first_sends_without_a_poll, .timeout = 60) {
    Strangers pair;
    pollfd called{.fd = pair.to->wake_fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&called, 1, 20'000), 1);
    Channel* const back = pair.to->open_channel(pair.from->device().address()).value();
    RVT_OK(pair.to->device().ops().send_datagram(pair.to->device(), *back, pair.bytes, {}));
    core::Device& caller = pair.from->device();
    pair.until([&] { return caller.stats().sum(core::Stat::kBadSegments) == 1; }, false);
    pair.to->close_channel(*back);
}

Test(segments, who_is_served_is_known_before_a_handshake) {
    Fixture fixture(Service::kSegments);
    RVT_ASSERT(is_served(fixture.endpoint.address()));
    RVT_ASSERT(is_served(fixture.device->address()));
    RVT_ASSERT(not(is_served(loopback(9))));
    fixture.connect();  // a caller that has hung up does not matter
}

Test(segments, a_device_in_use_stays) {
    Fixture fixture(Service::kSegments);
    core::Context* context = core::open_device(fixture.device->device()).value();
    RVT_EQ(fixture.device->close(), EBUSY);
    RVT_OK(core::close_device(context));
}
