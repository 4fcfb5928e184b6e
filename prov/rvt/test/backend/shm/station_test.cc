// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an endpoint tells its peers of itself.
#include "backend/shm/station.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <criterion/criterion.h>
#include <poll.h>

#include "common/check.h"
#include "test_endpoint.h"

using rvt::shm::ConnectionEvent;
using rvt::shm::ConnectionUser;
using rvt::shm::EndpointPage;
using rvt::shm::Path;
using rvt::shm::Station;
using rvt::shm::StationAttr;
using rvt::shm::test::await_control_thread;
using rvt::shm::test::loopback;
using rvt::shm::test::TestEndpoint;

namespace {

/// So many that a peer must have seen some.
void poll_often(Station& station) {
    for (int i = 0; i < 1000; ++i) {
        station.note_poll();
    }
}

/// A station, and an endpoint that sends to it.
struct Pair {
    Pair() {
        RVT_OK(station.bind(loopback()));
        StationAttr attr;
        attr.user = &mailbox;
        RVT_OK(station.open(attr));
        sender_end.connector().connect(station.address());
        sender.open(sender_end.next_peering());
        receiver.open(mailbox.next_peering());
        await_control_thread();
    }
    ~Pair() { station.close(); }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    bool send() { return sender.put_eager(0, 0, 0, nullptr, 0); }
    unsigned take() {
        const auto take_one = [](const auto& /*arrival*/) { return true; };
        return receiver.poll(64, take_one, take_one);
    }
    /// Whether it has been woken, within a time in milliseconds.
    bool is_woken(int patience_ms) {
        pollfd sleeper{.fd = station.wake_fd(), .events = POLLIN, .revents = 0};
        return poll(&sleeper, 1, patience_ms) == 1;
    }

    TestEndpoint sender_end;
    TestEndpoint mailbox;
    Station station;
    Path sender;
    Path receiver;
};

}  // namespace

Test(station, each_sleep_is_ended_once, .timeout = 30) {
    Pair pair;
    for (int i = 0; i < 5; ++i) {
        pair.station.arm(true);
        RVT_ASSERT(!pair.is_woken(0));
        RVT_ASSERT(pair.send());
        RVT_ASSERT(pair.is_woken(0));
        pair.station.disarm();
        RVT_EQ(pair.take(), 1);
    }
    pair.station.arm(true);
    RVT_ASSERT(pair.send());
    pair.station.arm(true);
    RVT_ASSERT(!pair.is_woken(0));
}

Test(station, who_is_awake_is_not_woken, .timeout = 30) {
    Pair pair;
    pair.station.arm(true);
    pair.station.disarm();
    RVT_ASSERT(pair.send());
    RVT_ASSERT(!pair.is_woken(0));
    pair.station.arm_for_control(true);
    pair.station.disarm_for_control();
    RVT_ASSERT(pair.send());
    RVT_ASSERT(!pair.is_woken(0));
}

Test(station, senders_look_again_only_at_who_sleeps_often, .timeout = 30) {
    Pair pair;
    RVT_ASSERT(!pair.sender.is_doorbell_due());
    pair.station.arm(true);
    pair.station.disarm();
    RVT_ASSERT(pair.sender.is_doorbell_due());
    poll_often(pair.station);
    RVT_ASSERT(!pair.sender.is_doorbell_due());
    // The control thread may sleep for an application that computes for long.
    pair.station.arm_for_control(true);
    pair.station.disarm_for_control();
    RVT_ASSERT(!pair.sender.is_doorbell_due());
    // Nobody is there who could fence.
    pair.station.arm(false);
    pair.station.disarm();
    RVT_ASSERT(!pair.sender.is_doorbell_due());
}

/// Sleeps that differ in how their first look is ordered, one after another, against a sender that
/// never waits for them.
Test(station, no_message_is_slept_through, .timeout = 60) {
    static constexpr unsigned kMessages = 50'000;
    Pair pair;
    std::atomic<unsigned> taken{0};
    std::thread sender([&] {
        for (unsigned i = 0; i < kMessages; ++i) {
            // relaxed: the messages themselves are ordered by the rings.
            while (taken.load(std::memory_order_relaxed) + 1 < i) {
            }
            while (!pair.send()) {
            }
        }
    });
    unsigned sleeps = 0;
    for (unsigned count = 0; count < kMessages;) {
        const unsigned got = pair.take();
        count += got;
        taken.store(count, std::memory_order_relaxed);  // relaxed: as above
        if (got != 0) {
            continue;
        }
        if (++sleeps % 8 == 0) {
            pair.station.arm_for_control(true);
        } else {
            pair.station.arm(true);
        }
        if (!pair.receiver.has_arrival()) {
            RVT_ASSERT(pair.is_woken(20'000));
        }
        pair.station.disarm();
        if (sleeps % 16 == 0) {
            poll_often(pair.station);  // senders need not fence any more
        }
    }
    sender.join();
    RVT_NE(sleeps, 0);
}

Test(station, polls_in_the_applications_stead_are_not_its, .timeout = 30) {
    TestEndpoint peer;
    Station station;
    RVT_OK(station.bind(loopback()));
    StationAttr attr;
    attr.user = &peer;
    RVT_OK(station.open(attr));
    peer.connector().connect(station.address());
    const auto peering = peer.next_peering();
    RVT_ASSERT(peering != nullptr);
    const EndpointPage& page = *peering->page.at<EndpointPage>(0);
    const auto last_seen = [&] {
        return page.last_poll.load(std::memory_order_relaxed);  // relaxed: by the same thread
    };

    poll_often(station);
    station.arm(true);
    const std::uint32_t armed = page.armed.load(std::memory_order_relaxed);  // relaxed: as above
    RVT_NE(armed, 0);
    const auto own = station.polling();
    const std::uint64_t seen = last_seen();
    RVT_NE(own.count, 0);
    RVT_NE(seen, 0);
    poll_often(station);
    RVT_NE(station.poll_count(), own.count);
    RVT_NE(last_seen(), seen);
    station.restore(own);
    RVT_EQ(station.poll_count(), own.count);
    RVT_EQ(last_seen(), seen);
    RVT_EQ(page.armed.load(std::memory_order_relaxed), armed);  // relaxed: as above
    poll_often(station);
    RVT_EQ(page.armed.load(std::memory_order_relaxed), 0);  // relaxed: as above
    station.close();
}

/// As of an endpoint in whose stead the control thread makes progress.
Test(station, may_be_called_by_the_control_thread_while_it_closes, .timeout = 60) {
    struct : ConnectionUser {
        void deliver(std::unique_ptr<ConnectionEvent> /*event*/) noexcept override {
            is_called = true;
            while (!is_closing) {
            }
            for (int i = 0; i < 1'000'000; ++i) {
                station.wake_peer(0);
            }
            station.request_region(0, 0);  // behind the end, which has been asked for by now
            is_done = true;
        }
        bool control_progress() noexcept override { return true; }
        std::uint64_t poll_count() const noexcept override { return 0; }
        bool control_arm() noexcept override { return true; }
        void control_disarm() noexcept override {}

        Station station;
        std::atomic<bool> is_called{false};
        std::atomic<bool> is_closing{false};
        std::atomic<bool> is_done{false};
    } user;
    TestEndpoint peer;
    StationAttr attr;
    attr.user = &user;
    RVT_OK(user.station.bind(loopback()));
    RVT_OK(user.station.open(attr));
    peer.connector().connect(user.station.address());
    while (!user.is_called) {
    }
    user.is_closing = true;
    user.station.close();
    RVT_ASSERT(user.is_done);
}

Test(station, who_has_ceased_to_poll_is_taken_to_poll_for_some_70_us) {
    using Clock = std::chrono::steady_clock;
    EndpointPage page{};
    Clock::duration least = Clock::duration::max();
    for (int i = 0; i < 100; ++i) {
        const Clock::time_point begin = Clock::now();
        page.last_poll.store(rvt::util::cpu_ticks(),
                             std::memory_order_relaxed);  // relaxed: one thread
        while (rvt::shm::is_polling(page)) {
        }
        least = std::min(least, Clock::now() - begin);
    }
    // The rate of x86's counter is not known, and a turn may be interrupted.
    RVT_ASSERT(least > std::chrono::microseconds(20));
    RVT_ASSERT(least < std::chrono::microseconds(500));
}

Test(cpu, a_microsecond_has_about_as_many_ticks_as_constants_are_made_of) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kLong(50);
    const Clock::time_point begin = Clock::now();
    const std::uint64_t first = rvt::util::cpu_ticks();
    while (Clock::now() - begin < kLong) {
    }
    const std::uint64_t ticks = rvt::util::cpu_ticks() - first;
    const auto took =
        static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
    const std::uint64_t expected = rvt::util::ticks_of_ns(took);
    cr_assert(ticks > expected / 4 && ticks < expected * 4, "%llu ticks instead of %llu",
              static_cast<unsigned long long>(ticks), static_cast<unsigned long long>(expected));
}

Test(cpu, times_are_as_many_ticks_as_the_rate_says) {
    RVT_EQ(rvt::util::ticks_of_ns(1000), rvt::util::ticks_per_us());
    RVT_EQ(rvt::util::ticks_of_ns(67'000, 3000), 201'000);
    RVT_EQ(rvt::util::ticks_of_ns(67'000, 25), 1675);
    RVT_EQ(rvt::util::ticks_of_ns(10, 25), 1);  // not 0: something has to pass
}
