// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Progress by the control thread: on a peer's wish, on a write to the wake descriptor, and when
// nobody polls.
#include "backend/shm/ticker.h"

#include <criterion/criterion.h>

#include <poll.h>

#include "common/check.h"
#include "test_endpoint.h"

using rvt::shm::test::Kind;
using rvt::shm::test::TestEndpoint;

namespace {

/// Lets others believe for a good while that the application polls.
void seem_to_poll(TestEndpoint& endpoint) {
    constexpr std::uint64_t kLong = 1'000'000'000'000;  // ticks
    // relaxed: a hint.
    endpoint.page().last_poll.store(rvt::util::cpu_ticks() + kLong, std::memory_order_relaxed);
}

/// Waits until the peer has read what was sent to it.
void answered(TestEndpoint& endpoint, std::uint64_t link) {
    endpoint.connector().request_region(link, 1);
    const auto event = endpoint.next();
    RVT_ASSERT(event != nullptr && event->kind == Kind::kRegion);
}

/// Of two endpoints one has connected to the other, whose control thread it can ask.
struct Pair {
    /// `prepare` makes of the other one what its control thread then sees.
    explicit Pair(void (*prepare)(TestEndpoint& b) = [](TestEndpoint&) {}) {
        prepare(b);
        a.connector().connect(b.address());
        at_a = a.next_peering();
    }
    void ask() { a.connector().wake_peer(at_a->link); }
    void await_answer() { answered(a, at_a->link); }

    TestEndpoint a;
    TestEndpoint b;
    std::unique_ptr<rvt::shm::Peering> at_a;
};

}  // namespace

Test(ticker, makes_progress_when_a_peer_asks, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    pair.ask();
    RVT_ASSERT(b.wait_until([&] { return b.progress_calls == 1 && b.arm_calls == 1; }));
}

Test(ticker, leaves_progress_to_an_application_that_is_inside, .timeout = 30) {
    Pair pair([](TestEndpoint& b) { b.is_inside = true; });
    TestEndpoint& b = pair.b;
    pair.ask();
    // Again and again: how often it has by now, nobody knows.
    RVT_ASSERT(b.wait_until([&] { return b.progress_calls != 0; }));
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 0; }));
}

Test(ticker, ignores_wishes_where_the_control_thread_may_not_enter, .timeout = 30) {
    Pair pair([](TestEndpoint& b) { b.page().control_may_enter = 0; });
    pair.ask();
    pair.await_answer();
    RVT_ASSERT(pair.b.wait_until([&] { return pair.b.progress_calls == 0; }));
}

Test(ticker, looks_again_after_an_application_that_was_inside, .timeout = 30) {
    Pair pair([](TestEndpoint& b) { b.is_inside = true; });
    TestEndpoint& b = pair.b;
    pair.ask();
    RVT_ASSERT(b.wait_until([&] {
        b.is_inside = b.progress_calls == 0;
        return !b.is_inside;
    }));
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 1; }));
}

Test(ticker, takes_back_what_it_has_asked_for_when_it_does_not_listen, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    pair.ask();
    RVT_ASSERT(b.wait_until([&] {
        b.is_inside = b.arm_calls == 1;
        return b.is_inside;
    }));
    pair.await_answer();  // it listens by now
    RVT_EQ(eventfd_write(pair.at_a->wake_fd.get(), 1), 0);
    RVT_ASSERT(b.wait_until([&] { return b.disarm_calls == 1; }));
}

Test(ticker, leaves_progress_to_an_application_that_polls, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    seem_to_poll(b);
    b.polls_all_the_time = true;
    pair.ask();
    pair.await_answer();
    RVT_ASSERT(b.wait_until([&] { return b.progress_calls == 0; }));
}

Test(ticker, looks_whether_who_polled_still_does, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    seem_to_poll(b);
    pair.ask();
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 1; }));
}

Test(ticker, takes_wishes_that_come_together_for_one, .timeout = 30) {
    constexpr int kWishes = 50;
    Pair pair;
    TestEndpoint& b = pair.b;
    bool has_asked = false;
    // The control thread waits for us with the first of them, if it has found it alone.
    RVT_ASSERT(b.wait_until([&] {
        for (int i = 0; i < kWishes && !has_asked; ++i) {
            pair.ask();
        }
        has_asked = true;
        return b.arm_calls != 0;
    }));
    pair.await_answer();
    RVT_ASSERT(b.wait_until([&] { return b.progress_calls <= 2; }));
}

Test(ticker, makes_progress_at_each_write_once_armed, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    pair.ask();
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 1; }));
    for (int i = 2; i < 5; ++i) {
        RVT_EQ(eventfd_write(pair.at_a->wake_fd.get(), 1), 0);
        RVT_ASSERT(b.wait_until([&] { return b.arm_calls == i; }));
    }
}

Test(ticker, listens_no_longer_than_until_the_application_polls, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    pair.ask();
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 1; }));
    b.connector().note_polling(false);
    RVT_ASSERT(b.wait_until([&] { return b.disarm_calls == 1; }));
    RVT_EQ(eventfd_write(pair.at_a->wake_fd.get(), 1), 0);
    pair.await_answer();
    RVT_ASSERT(b.wait_until([&] { return b.progress_calls == 1; }));
}

Test(ticker, leaves_it_to_sleepers_when_who_polled_beside_them_has_ceased, .timeout = 30) {
    Pair pair;
    TestEndpoint& b = pair.b;
    b.connector().note_polling(true);
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls == 1 && b.disarm_calls == 1; }));
    RVT_EQ(b.progress_calls, 1);
}

Test(ticker, sends_for_who_is_connected_after_the_last_poll, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    b.polls_all_the_time = true;
    b.polls_until_event = true;
    b.connector().note_polling(true);  // from now on there is a timer
    a.connector().connect(b.address());
    RVT_ASSERT(b.wait_until([&] { return b.send_calls != 0; }));
}

Test(ticker, takes_over_when_nobody_polls, .timeout = 30) {
    TestEndpoint a({.has_auto_progress = true});
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 1; }));
}

Test(ticker, comes_back_after_the_application_polled_again, .timeout = 30) {
    TestEndpoint a({.has_auto_progress = true});
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 1; }));
    a.connector().note_polling(false);  // which the count of polls does not show
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 2; }));
}

Test(ticker, notices_lost_news_of_polling_in_the_end, .timeout = 30) {
    TestEndpoint a({.has_auto_progress = true});
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 1; }));
    // relaxed: a count.
    a.polls.fetch_add(1, std::memory_order_relaxed);
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 2; }));
}

Test(ticker, rests_while_armed_and_quiet, .timeout = 30) {
    TestEndpoint a({.has_auto_progress = true});
    RVT_ASSERT(a.wait_until([&] { return a.arm_calls == 1; }));
    RVT_ASSERT(
        not(a.wait_until([&] { return a.progress_calls > 1; }, std::chrono::milliseconds(300))));
}

Test(ticker, wakes_a_sleeper_when_an_event_is_delivered, .timeout = 30) {
    TestEndpoint a({.refused_timeout_ms = 1});
    // relaxed: set before the event can come.
    a.page().armed.store(1, std::memory_order_relaxed);
    const rvt::util::UdpPort port = rvt::shm::test::quiet_port();
    a.connector().connect(port.address);
    RVT_ASSERT(a.next() != nullptr);
    pollfd entry{.fd = a.wake_fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&entry, 1, 20000), 1);
}

Test(ticker, does_not_spin_over_work_that_waits_for_a_peer, .timeout = 30) {
    Pair pair([](TestEndpoint& b) { b.has_endless_work = true; });
    TestEndpoint& b = pair.b;
    pair.ask();
    // The time first, then the count: who is not scheduled between the two has more time, not less.
    const auto begin = std::chrono::steady_clock::now();
    int first = 0;
    RVT_ASSERT(b.wait_until([&] { return (first = b.arm_calls) >= 16; }));
    RVT_ASSERT(b.wait_until([&] { return b.arm_calls >= first + 80; }));
    // 80 looks, 8 a millisecond.
    RVT_ASSERT(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(5));
}
