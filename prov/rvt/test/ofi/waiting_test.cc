// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sleeping until a completion comes: fi_cq_sread(3), fi_cntr_wait(3), fi_trywait(3).
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/epoll_sets.h"
#include "common/process.h"
#include "ofi/msg_pair.h"
#include "ofi/pair.h"
#include "ofi/sleeper.h"

using namespace rvt::test;

namespace {

/// Two connected endpoints, of which b's queue has a descriptor.
EndOptions for_threads() {
    EndOptions options;
    options.threading = FI_THREAD_SAFE;
    options.wait_obj = FI_WAIT_FD;
    return options;
}

/// A message by which a thread that waits at b's queue, or on its descriptor, has to wake up. Only
/// a makes progress.
void send_to_who_sleeps(Pair& pair) {
    while (fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer) == -FI_EAGAIN) {
        fi_cntr_read(pair.a.cntrs[0].get());
    }
}

void send_and_await_completion(Pair& pair) {
    send_to_who_sleeps(pair);
    while (fi_cntr_read(pair.a.cntrs[0].get()) == 0) {
    }
}

void connect(Pair& pair) {
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
    pair.b.next();
}

/// What other threads do with the endpoint while one sleeps at its queue.
void wait_for_another_counter(End& end) {
    RVT_EQ(fi_cntr_wait(end.cntrs[0].get(), 99, 5), -FI_ETIMEDOUT);
}
void read_a_counter_often(End& end) {
    for (int i = 0; i < 1000; ++i) {
        fi_cntr_read(end.cntrs[0].get());
    }
}
void read_a_counter_for_long(End& end) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(20)) {
        fi_cntr_read(end.cntrs[0].get());
    }
}
void read_a_counter_for_long_and_wait(End& end) {
    read_a_counter_for_long(end);
    wait_for_another_counter(end);
}
constexpr void (*kBusy[])(End&) = {wait_for_another_counter, read_a_counter_often,
                                   read_a_counter_for_long, read_a_counter_for_long_and_wait};

/// Two connected endpoints, where reads of b's queue may wait for several completions.
EndOptions for_thresholds(fi_cq_wait_cond wait_cond) {
    EndOptions options = for_threads();
    options.caps = FI_MSG | FI_SOURCE;
    options.wait_cond = wait_cond;
    return options;
}

/// fi_cq(3): the number itself is handed in, not a pointer to it.
const void* threshold(std::uintptr_t completions) {
    return reinterpret_cast<const void*>(completions);
}

/// Posts `count` receives at b, whose messages are of no interest.
void expect_messages(Pair& pair, int count) {
    static char in[8];
    for (int i = 0; i < count; ++i) {
        RVT_OK(fi_recv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, nullptr));
    }
}

/// So many completions of messages are in b's queue afterwards, which is empty before.
void fill_queue(Pair& pair, int count) {
    const std::uint64_t before = fi_cntr_read(pair.b.cntrs[1].get());
    expect_messages(pair, count);
    for (int i = 0; i < count; ++i) {
        pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
    }
    pair.until([&] {
        return fi_cntr_read(pair.b.cntrs[1].get()) == before + static_cast<unsigned>(count);
    });
}

}  // namespace

Test(waiting, a_blocking_read_returns_with_the_message, .timeout = 60) {
    for (const fi_wait_obj kind : {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD}) {
        EndOptions options;
        options.wait_obj = kind;
        Pair pair(options);
        char in[8] = "";
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        std::thread sender([&] { send_and_await_completion(pair); });
        fi_cq_tagged_entry entry{};
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN) {
            got = fi_cq_sread(pair.b.cq.get(), &entry, 1, nullptr, 20000);
        }
        RVT_EQ(got, 1);
        sender.join();
    }
}

Test(waiting, a_descriptor_becomes_readable_when_a_message_arrives, .timeout = 60) {
    EndOptions options;
    options.wait_obj = FI_WAIT_FD;
    Pair pair(options);
    int fd = -1;
    RVT_OK(fi_control(&pair.b.cq->fid, FI_GETWAIT, &fd));
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    std::thread sender([&] { send_and_await_completion(pair); });
    fid* fids[] = {&pair.b.cq->fid};
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    while (got == -FI_EAGAIN) {
        if (fi_trywait(pair.b.open.fabric.get(), fids, 1) == 0) {
            pollfd source{fd, POLLIN, 0};
            RVT_EQ(poll(&source, 1, 20000), 1);
        }
        got = fi_cq_read(pair.b.cq.get(), &entry, 1);
    }
    RVT_EQ(got, 1);
    sender.join();
}

Test(waiting, a_counter_can_be_waited_for, .timeout = 60) {
    Pair pair;
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    std::thread sender([&] { send_and_await_completion(pair); });
    RVT_OK(fi_cntr_wait(pair.b.cntrs[1].get(), 1, 20000));
    sender.join();
}

// ---- what a blocking read tells, and waits for ----

Test(waiting, a_blocking_read_tells_who_has_sent, .timeout = 60) {
    Pair pair(for_thresholds(FI_CQ_COND_NONE));
    connect(pair);
    const fi_addr_t itself = Pair::introduce(pair.b, pair.b);
    expect_messages(pair, 2);
    const auto read_one_from = [&](fi_addr_t sender, auto send) {
        Sleeper reader([&] {
            fi_cq_tagged_entry entry{};
            fi_addr_t source = FI_ADDR_NOTAVAIL;
            RVT_EQ(fi_cq_sreadfrom(pair.b.cq.get(), &entry, 1, &source, nullptr, -1), 1);
            RVT_EQ(source, sender);
        });
        reader.await_sleep();
        send();
        reader.join();
    };
    read_one_from(pair.b.peer, [&] { send_to_who_sleeps(pair); });
    read_one_from(itself, [&] { RVT_OK(fi_inject(pair.b.ep.get(), "abc", 4, itself)); });
}

Test(waiting, a_blocking_read_sleeps_until_so_many_completions_are_there, .timeout = 60) {
    Pair pair(for_thresholds(FI_CQ_COND_THRESHOLD));
    connect(pair);
    const fi_addr_t itself = Pair::introduce(pair.b, pair.b);
    const std::uint64_t before = fi_cntr_read(pair.b.cntrs[1].get());
    expect_messages(pair, 3);
    Sleeper reader([&] {
        std::array<fi_cq_tagged_entry, 4> entries{};
        std::array<fi_addr_t, 4> sources{};
        RVT_EQ(fi_cq_sreadfrom(pair.b.cq.get(), entries.data(), entries.size(), sources.data(),
                               threshold(3), -1),
               3);
        RVT_EQ(sources[0], pair.b.peer);
        RVT_EQ(sources[1], itself);
        RVT_EQ(sources[2], pair.b.peer);
    });
    const auto have_one_more = [&](std::uint64_t count, auto send) {
        reader.await_sleep();
        send();
        pair.until([&] { return fi_cntr_read(pair.b.cntrs[1].get()) == before + count; });
    };
    have_one_more(1, [&] { send_to_who_sleeps(pair); });
    have_one_more(2, [&] { RVT_OK(fi_inject(pair.b.ep.get(), "abc", 4, itself)); });
    have_one_more(3, [&] { send_to_who_sleeps(pair); });
    reader.join();
}

Test(waiting, a_blocking_read_returns_at_its_time_limit_with_fewer_than_it_waits_for) {
    Pair pair(for_thresholds(FI_CQ_COND_THRESHOLD));
    fill_queue(pair, 2);
    std::array<fi_cq_tagged_entry, 4> entries{};
    const auto read = [&](std::size_t count) {
        const auto start = std::chrono::steady_clock::now();
        const ssize_t got =
            fi_cq_sread(pair.b.cq.get(), entries.data(), entries.size(), threshold(count), 30);
        RVT_ASSERT(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30));
        return got;
    };
    RVT_EQ(read(3), 2);
    RVT_EQ(read(3), -FI_EAGAIN);
}

Test(waiting, a_blocking_read_waits_for_no_more_than_it_has_room_for, .timeout = 60) {
    Pair pair(for_thresholds(FI_CQ_COND_THRESHOLD));
    fill_queue(pair, 2);
    std::array<fi_cq_tagged_entry, 2> entries{};
    RVT_EQ(fi_cq_sread(pair.b.cq.get(), entries.data(), entries.size(), threshold(3), -1), 2);
}

Test(waiting, a_blocking_read_waits_for_one_where_no_number_counts, .timeout = 60) {
    const std::pair<fi_cq_wait_cond, const void*> conditions[] = {{FI_CQ_COND_NONE, threshold(3)},
                                                                  {FI_CQ_COND_THRESHOLD, nullptr}};
    for (const auto& [wait_cond, condition] : conditions) {
        Pair pair(for_thresholds(wait_cond));
        fill_queue(pair, 1);
        std::array<fi_cq_tagged_entry, 4> entries{};
        RVT_EQ(fi_cq_sread(pair.b.cq.get(), entries.data(), entries.size(), condition, -1), 1);
    }
}

// ---- while other threads are awake ----

Test(waiting, a_blocking_read_is_woken_though_another_thread_has_been_awake, .timeout = 60) {
    for (const auto be_busy : kBusy) {
        Pair pair(for_threads());
        connect(pair);
        char in[8] = "";
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        Sleeper reader([&] {
            fi_cq_tagged_entry entry{};
            RVT_EQ(fi_cq_sread(pair.b.cq.get(), &entry, 1, nullptr, -1), 1);
        });
        reader.await_sleep();
        be_busy(pair.b);
        reader.await_sleep();
        send_to_who_sleeps(pair);
        reader.join();
    }
}

Test(waiting, a_descriptor_wakes_though_another_thread_has_been_awake, .timeout = 60) {
    for (const auto be_busy : kBusy) {
        Pair pair(for_threads());
        connect(pair);
        int fd = -1;
        RVT_OK(fi_control(&pair.b.cq->fid, FI_GETWAIT, &fd));
        char in[8] = "";
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        Sleeper reader([&] {
            fid* fids[] = {&pair.b.cq->fid};
            fi_cq_tagged_entry entry{};
            while (fi_cq_read(pair.b.cq.get(), &entry, 1) != 1) {
                if (fi_trywait(pair.b.open.fabric.get(), fids, 1) == 0) {
                    pollfd source{fd, POLLIN, 0};
                    RVT_EQ(poll(&source, 1, -1), 1);
                }
            }
        });
        reader.await_sleep();
        be_busy(pair.b);
        reader.await_sleep();
        send_to_who_sleeps(pair);
        reader.join();
    }
}

/// Whoever calls fi_trywait, it is not said who sleeps on the descriptor.
Test(waiting, a_descriptor_wakes_though_who_asked_goes_on, .timeout = 60) {
    char in[8] = "";  // until the endpoint is closed: the host may still fill it
    Pair pair(for_threads());
    connect(pair);
    int fd = -1;
    RVT_OK(fi_control(&pair.b.cq->fid, FI_GETWAIT, &fd));
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    fid* fids[] = {&pair.b.cq->fid};
    RVT_OK(fi_trywait(pair.b.open.fabric.get(), fids, 1));
    read_a_counter_often(pair.b);
    send_to_who_sleeps(pair);
    pollfd source{fd, POLLIN, 0};
    RVT_EQ(poll(&source, 1, 20000), 1);
}

Test(waiting, who_sleeps_hears_of_what_another_thread_has_posted, .timeout = 60) {
    for (const fi_progress progress : {FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO}) {
        EndOptions options = for_threads();
        options.data_progress = progress;
        Pair pair(options);
        connect(pair);
        const std::vector<char> out(65536, 'x');
        std::vector<char> in(out.size());
        pair.post([&] {
            return fi_send(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, nullptr);
        });
        read_a_counter_for_long(pair.b);  // the message waits there from now on
        Sleeper reader([&] {
            fi_cq_tagged_entry entry{};
            RVT_EQ(fi_cq_sread(pair.b.cq.get(), &entry, 1, nullptr, -1), 1);
        });
        reader.await_sleep();
        RVT_OK(fi_recv(pair.b.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, nullptr));
        reader.join();
        RVT_ASSERT(in == out);
    }
}

Test(waiting, who_sleeps_is_not_woken_by_what_another_thread_polls_for, .timeout = 60) {
    constexpr int kMessages = 20000;
    Pair pair(for_threads());
    connect(pair);
    Sleeper waiter([&] { RVT_OK(fi_cntr_wait(pair.b.cntrs[2].get(), 1, -1)); });
    waiter.await_sleep();
    const unsigned long before = sleeps_of(waiter.id());
    char in[8] = "";
    for (int i = 0; i < kMessages; ++i) {
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
        pair.b.next();
    }
    const unsigned long sleeps = sleeps_of(waiter.id()) - before;
    cr_assert(sleeps < kMessages / 20, "it slept %lu times", sleeps);
    fi_cntr_add(pair.b.cntrs[2].get(), 1);
    waiter.join();
}

// ---- what waits for room ----

/// More datagrams than a ring takes, without a look at what has become of them; then only the
/// receiver makes progress.
void send_more_than_there_is_room_for(Pair& pair) {
    constexpr unsigned kDatagrams = 40;
    static std::array<char, 4096> buffer;
    for (unsigned i = 0; i < kDatagrams; ++i) {
        RVT_OK(fi_recv(pair.b.ep.get(), buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC,
                       nullptr));
    }
    const iovec one{buffer.data(), buffer.size()};
    const fi_msg msg{&one, nullptr, 1, pair.a.peer, nullptr, 0};
    const std::uint64_t before = fi_cntr_read(pair.b.cntrs[1].get());
    for (unsigned i = 0; i < kDatagrams; ++i) {
        RVT_OK(fi_sendmsg(pair.a.ep.get(), &msg, 0));
    }
    while (fi_cntr_read(pair.b.cntrs[1].get()) != before + kDatagrams) {
    }
}

EndOptions for_datagrams(fi_progress progress) {
    EndOptions options = for_threads();
    options.type = FI_EP_DGRAM;
    options.node = "127.0.0.1";
    options.data_progress = progress;
    options.is_selective = true;
    return options;
}

void get_acquainted(Pair& pair) {
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer));
    pair.until([&] { return fi_cntr_read(pair.b.cntrs[1].get()) == 1; });
}

Test(waiting, who_sleeps_sends_the_datagrams_of_another_thread_that_find_no_room, .timeout = 60) {
    Pair pair(for_datagrams(FI_PROGRESS_MANUAL));
    get_acquainted(pair);
    Sleeper reader([&] {
        fi_cq_tagged_entry entry{};
        RVT_EQ(fi_cq_sread(pair.a.cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
    });
    reader.await_sleep();
    send_more_than_there_is_room_for(pair);
    RVT_OK(fi_cq_signal(pair.a.cq.get()));
    reader.join();
}

Test(waiting, automatic_progress_sends_datagrams_that_find_no_room, .timeout = 60) {
    Pair pair(for_datagrams(FI_PROGRESS_AUTO));
    get_acquainted(pair);
    read_a_counter_for_long(pair.a);  // from then on it is for the host to look
    send_more_than_there_is_room_for(pair);
}

/// The peer, which has taken nothing for a while, wakes him when it takes some of it.
Test(waiting, who_has_sent_more_than_there_is_room_for_may_sleep, .timeout = 60) {
    constexpr unsigned kSends = 400;
    const std::vector<char> out(4096, 'x');
    Pair pair(for_threads());
    connect(pair);
    fid_cq* const cq = pair.a.cq.get();
    fi_cq_tagged_entry entry{};
    unsigned open = 0;
    for (unsigned i = 0; i < kSends; ++i) {
        RVT_OK(fi_send(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, nullptr));
        open += fi_cq_read(cq, &entry, 1) == 1 ? 0 : 1;
    }
    while (fi_cq_read(cq, &entry, 1) == 1) {
        --open;
    }
    RVT_ASSERT(open > 0);
    int fd = -1;
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &fd));
    pollfd source{fd, POLLIN, 0};
    fid* queue = &cq->fid;
    RVT_OK(fi_trywait(pair.a.open.fabric.get(), &queue, 1));
    RVT_EQ(poll(&source, 1, 0), 0);
    while (open > 0) {
        fi_cntr_read(pair.b.cntrs[0].get());
        RVT_EQ(poll(&source, 1, static_cast<int>(kPatience.count() * 1000)), 1);
        do {
            open -= fi_cq_read(cq, &entry, 1) == 1 ? 1 : 0;
        } while (open > 0 && fi_trywait(pair.a.open.fabric.get(), &queue, 1) == -FI_EAGAIN);
    }
}

/// A pair says nothing when it has made room: who sleeps has to look.
Test(waiting, who_sleeps_sends_on_what_another_thread_finds_no_room_for, .timeout = 60) {
    const std::vector<char> out(65536, 'x');
    std::vector<char> in(out.size());  // until the endpoint is closed: the host may still fill it
    MsgOptions options;
    options.wait_obj = FI_WAIT_FD;
    MsgPair pair(options);
    const MsgEnd& sender = pair.client.end;
    RVT_OK(fi_recv(pair.server.ep.get(), in.data(), in.size(), nullptr, 0, nullptr));
    int fd = -1;
    RVT_OK(fi_control(&sender.cq->fid, FI_GETWAIT, &fd));
    pollfd source{fd, POLLIN, 0};
    std::thread([&] {
        fid* queue = &sender.cq->fid;
        while (fi_trywait(sender.fabric, &queue, 1) != 0 || poll(&source, 1, 0) != 0) {
        }
    }).join();
    RVT_OK(fi_send(sender.ep.get(), out.data(), out.size(), nullptr, 0, nullptr));
    RVT_EQ(poll(&source, 1, 40), 1);  // the host alone would look 50 ms later or more
}

// ---- many sleepers ----

Test(waiting, who_leaves_with_nothing_wakes_nobody, .timeout = 60) {
    const Opened open;
    const auto cq = open.cq(with<fi_cq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_UNSPEC; }));
    fi_cq_entry entry{};
    Sleeper reader([&] { fi_cq_sread(cq.get(), &entry, 1, nullptr, -1); });
    const unsigned long before = reader.sleeps_so_far();
    for (int i = 0; i < 100; ++i) {
        fi_cq_entry other{};
        RVT_EQ(fi_cq_sread(cq.get(), &other, 1, nullptr, 0), -FI_EAGAIN);
        reader.await_sleep();
    }
    RVT_EQ(sleeps_of(reader.id()), before);
    RVT_OK(fi_cq_signal(cq.get()));
    reader.join();
}

Test(waiting, whose_time_is_over_wakes_nobody_at_a_counter, .timeout = 60) {
    const Opened open;
    const auto cntr = open.cntr();
    Sleeper waiter([&] { RVT_OK(fi_cntr_wait(cntr.get(), 1, -1)); });
    const unsigned long before = waiter.sleeps_so_far();
    for (int i = 0; i < 20; ++i) {
        RVT_EQ(fi_cntr_wait(cntr.get(), 2, 1), -FI_ETIMEDOUT);
        waiter.await_sleep();
    }
    RVT_EQ(sleeps_of(waiter.id()), before);
    RVT_OK(fi_cntr_add(cntr.get(), 1));
    waiter.join();
}

std::latch is_held(1);
std::latch may_go_on(1);

/// Keeps a thread from waking up out of the call that it sleeps in.
void hold(const Sleeper& sleeper) {
    struct sigaction action {};
    action.sa_handler = [](int) {
        is_held.count_down();
        may_go_on.wait();
    };
    RVT_OK(sigaction(SIGUSR1, &action, nullptr));
    sleeper.await_sleep();
    RVT_OK(tgkill(getpid(), std::stoi(sleeper.id()), SIGUSR1));
    is_held.wait();
}

void let_go(Sleeper& sleeper) {
    may_go_on.count_down();
    sleeper.join();
}

/// Whether a thread that is told to sleep on the descriptor would.
bool may_sleep(const Opened& open, fid* object) {
    int fd = -1;
    RVT_OK(fi_control(object, FI_GETWAIT, &fd));
    RVT_OK(fi_trywait(open.fabric.get(), &object, 1));
    pollfd source{fd, POLLIN, 0};
    return poll(&source, 1, 0) == 0;
}

Test(waiting, who_has_not_woken_up_yet_keeps_nobody_awake_at_a_queue, .timeout = 60) {
    const Opened open;
    const auto cq = open.cq(with<fi_cq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_FD; }));
    Sleeper reader([&] {
        fi_cq_entry entry{};
        RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
    });
    hold(reader);
    RVT_OK(fi_cq_signal(cq.get()));
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);  // takes the signal
    RVT_ASSERT(may_sleep(open, &cq->fid));
    let_go(reader);
}

Test(waiting, who_has_not_woken_up_yet_keeps_nobody_awake_at_a_counter, .timeout = 60) {
    const Opened open;
    const auto cntr = open.cntr(with<fi_cntr_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_FD; }));
    Sleeper waiter([&] { RVT_OK(fi_cntr_wait(cntr.get(), 2, -1)); });
    hold(waiter);
    fid* object = &cntr->fid;
    RVT_OK(fi_cntr_set(cntr.get(), 0));  // a change that he has seen
    RVT_EQ(fi_trywait(open.fabric.get(), &object, 1), -FI_EAGAIN);
    RVT_ASSERT(may_sleep(open, object));
    RVT_OK(fi_cntr_add(cntr.get(), 2));  // and one that he has to wake up for
    RVT_EQ(fi_trywait(open.fabric.get(), &object, 1), -FI_EAGAIN);
    RVT_ASSERT(not(may_sleep(open, object)));
    let_go(waiter);
}

// ---- what a forked child closes ----

Test(waiting, a_descriptor_wakes_though_a_forked_child_has_closed_the_endpoint, .timeout = 60) {
    char in[8] = "";  // until the endpoint is closed: the host may still fill it
    Pair pair(for_threads());
    connect(pair);
    int fd = -1;
    RVT_OK(fi_control(&pair.b.cq->fid, FI_GETWAIT, &fd));
    Process child([&](Process&) { _exit(fi_close(&pair.b.ep.release()->fid) == 0 ? 0 : 1); });
    RVT_EQ(child.wait(), 0);
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    fid* fids[] = {&pair.b.cq->fid};
    RVT_OK(fi_trywait(pair.b.open.fabric.get(), fids, 1));
    send_to_who_sleeps(pair);
    pollfd source{fd, POLLIN, 0};
    RVT_EQ(poll(&source, 1, 20000), 1);
}

bool is_event(int fd) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    return std::filesystem::read_symlink(link) == "anon_inode:[eventfd]";
}

Test(waiting, a_connection_stays_in_the_set_of_sleepers_though_a_forked_child_has_closed_it) {
    const MsgFabric fabric(ask_msg().info);
    MsgEnd end(fabric.fabric.get(), fabric.eq.get(), fabric.info.get());
    RVT_OK(fi_enable(end.ep.get()));
    const unsigned before = places_in_sets(is_event);
    Process child([&](Process&) { _exit(fi_close(&end.ep.release()->fid) == 0 ? 0 : 1); });
    RVT_EQ(child.wait(), 0);
    RVT_EQ(places_in_sets(is_event), before);
}
