// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows between endpoints on the wire of backend/fake: they open, carry messages in order and whole
// whatever the wire does, and end. A failure of random traffic names its seed.
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#include "core/flow_host.h"
#include "protocol/faults.h"
#include "util/unique_fd.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// What a peer said, with its run put together again.
struct Heard {
    RdOp op;
    std::uint64_t tag;
    std::string text;
};

/// An endpoint that writes down what it is told.
class Node final : public FlowHost, public RdFlowUser, public RdFlowsUser {
  public:
    Node(fake::Wire& wire, std::uint8_t number, std::uint64_t incarnation,
         std::uint32_t payload_bytes = 256)
        : FlowHost(wire, number, payload_bytes), number_(number) {
        open({.taker = this,
              .user = this,
              .own = {.incarnation = incarnation},
              .connect_timeout_ms = 5000});
    }
    ~Node() { kill(); }  // the flows go before what they call
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void poll() {
        packets += flows->poll();
        for (RdFlow* const ended : std::exchange(ended_, {})) {
            ended->close();
        }
    }
    [[nodiscard]] Address address() const { return host_address(number_); }

    bool say(std::uint64_t tag, const std::string& text) {
        if (text.size() <= kMaxRecordPayload) {
            return flow->put({.op = RdOp::kEager,
                              .tag = tag,
                              .payload = reinterpret_cast<const std::byte*>(text.data()),
                              .payload_bytes = text.size()},
                             RdFlow::Room::kAny);
        }
        if (tag % 2 == 0) {
            lent.push_back(text);
            return lend(tag, lent.back());
        }
        std::byte* const run = flow->reserve_run(text.size());
        if (run == nullptr) {
            return false;
        }
        std::memcpy(run, text.data(), text.size());
        const RdHeader header{.total = text.size(), .operation = 0, .address = 0};
        flow->put_run({.op = RdOp::kEagerFirst,
                       .tag = tag,
                       .payload = reinterpret_cast<const std::byte*>(&header),
                       .payload_bytes = sizeof header},
                      text.size());
        return true;
    }
    /// The same from memory that stays in use.
    bool lend(std::uint64_t tag, std::string_view run, bool has_more = false) const {
        const RdHeader header{.total = run.size(), .operation = 0, .address = 0};
        return flow->put_borrowed({.op = RdOp::kEagerFirst,
                                   .tag = tag,
                                   .payload = reinterpret_cast<const std::byte*>(&header),
                                   .payload_bytes = sizeof header},
                                  {const_cast<char*>(run.data()), run.size()}, has_more);
    }

    void take_message(void* peer, const RdMessage& message) noexcept override {
        RVT_ASSERT(peer == this);
        has_sent_held = flows->send_held();
        const bool is_run = has_run(message.op);
        const auto* bytes = reinterpret_cast<const char*>(is_run ? message.run : message.payload);
        if (message.op == RdOp::kEagerMore) {
            heard.back().text.append(bytes, message.length);
        } else {
            heard.push_back({message.op, message.tag, std::string(bytes, message.length)});
        }
    }
    void take_malformed(void*) noexcept override { is_malformed = true; }
    bool is_idle(void* peer) noexcept override { return peer == this && !is_owed; }
    void flow_opened(RdFlow& opened) noexcept override {
        flow = &opened;
        flow->start(this);
        ++opens;
    }
    void connect_failed(const Address&, int error) noexcept override { failure = error; }
    void flow_ended(RdFlow& ended) noexcept override {
        ended_.push_back(&ended);
        flow = flow == &ended ? nullptr : flow;
        ++ends;
    }
    void flow_left(RdFlow& left) noexcept override { flow_ended(left); }
    void work_waits() noexcept override { ++wakes; }

    RdFlow* flow = nullptr;
    std::vector<Heard> heard;
    std::deque<std::string> lent;  // to the flow
    int opens = 0;
    int ends = 0;
    int failure = 0;
    int wakes = 0;
    std::uint64_t packets = 0;  // that arrived
    bool is_malformed = false;
    bool is_owed = false;       // something, by its peer
    bool has_sent_held = true;  // another thread, amid the last poll that brought a message

  private:
    const std::uint8_t number_;
    std::vector<RdFlow*> ended_;  // to be closed
};

struct Net {
    fake::Wire wire;
    Node a{wire, 1, 11};
    Node b{wire, 2, 12};

    template <class IsDone>
    bool run_until(IsDone is_done, int turns = 200'000) {
        for (int turn = 0; turn < turns && !is_done(); ++turn) {
            a.poll();
            b.poll();
            now_us += 20;
        }
        return is_done();
    }
    void connect() {
        a.flows->connect(b.address());
        RVT_ASSERT(run_until([&] { return a.flow != nullptr && b.flow != nullptr; }));
    }
};

}  // namespace

Test(rd_flows, a_flow_opens_on_both_sides_and_carries_messages) {
    Net net;
    net.connect();
    RVT_EQ(net.a.flow->peer().incarnation, 12);
    RVT_EQ(net.b.flow->peer().incarnation, 11);
    RVT_ASSERT(net.a.say(7, "hello"));
    RVT_ASSERT(net.b.say(8, ""));
    RVT_ASSERT(net.run_until([&] { return !net.a.heard.empty() && !net.b.heard.empty(); }));
    RVT_EQ(net.b.heard[0].tag, 7);
    RVT_ASSERT(net.b.heard[0].text == "hello");
    RVT_EQ(net.a.heard[0].tag, 8);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
}

Test(rd_flows, an_answer_brings_the_acknowledgement) {
    Net net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    RVT_ASSERT(net.a.say(1, "question"));
    net.b.poll();
    RVT_ASSERT(net.b.say(2, "answer"));
    RVT_EQ(net.a.flows->poll(), 1);  // packets
    RVT_EQ(net.a.heard.size(), 1);
    RVT_ASSERT(net.a.flow->is_drained());
}

/// Of three messages two are held; the sender polls `us` later.
static void say_three(Net& net, std::uint64_t us) {
    for (const char* text : {"first", "second", "third"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    now_us += us;
    net.run_until([&] { return net.a.flow->is_drained(); });
    net.b.heard.clear();
}

/// What the sender has said reaches the peer though it does not poll.
static std::size_t heard_at_once(Net& net) {
    net.b.poll();
    return net.b.heard.size();
}

Test(rd_flows, small_messages_behind_others_leave_together_with_the_next_poll) {
    Net net;
    net.connect();
    for (const char* text : {"first", "held", "with it"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    RVT_EQ(heard_at_once(net), 1);
    net.a.poll();
    RVT_EQ(net.b.flows->poll(), 1);  // packets
    RVT_EQ(net.b.heard.size(), 3);
}

Test(rd_flows, what_is_held_too_long_leaves_with_the_next_message) {
    Net net;
    net.connect();
    for (const char* text : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    now_us += SendHold::kMostUs + 1;
    RVT_ASSERT(net.a.say(1, "late"));
    RVT_EQ(heard_at_once(net), 3);
}

Test(rd_flows, a_timer_lets_go_what_a_sender_that_computes_has_left) {
    Net net;
    net.connect();
    const util::UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    SendHold& hold = net.a.flows->device().send_hold();
    hold.use_timer(timer.get());
    for (int time = 0; time < 10; ++time) {
        say_three(net, 2000);
    }
    for (const char* text : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    RVT_EQ(heard_at_once(net), 1);
    pollfd expired{.fd = timer.get(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&expired, 1, 10'000), 1);
    RVT_EQ(hold.is_overdue(now_us), false);
    now_us += SendHold::kMostUs;
    RVT_ASSERT(hold.is_overdue(now_us));
    RVT_ASSERT(net.a.flows->send_held());
    RVT_EQ(heard_at_once(net), 2);
    RVT_EQ(net.b.has_sent_held, false);  // who polls does it
    RVT_EQ(hold.is_overdue(now_us), false);
}

Test(rd_flows, a_sender_that_comes_back_soon_needs_no_timer) {
    Net net;
    net.connect();
    const util::UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    net.a.flows->device().send_hold().use_timer(timer.get());
    const auto is_set = [&] {
        itimerspec left{};
        pollfd expired{.fd = timer.get(), .events = POLLIN, .revents = 0};
        RVT_EQ(timerfd_gettime(timer.get(), &left), 0);
        return left.it_value.tv_nsec != 0 || poll(&expired, 1, 0) == 1;
    };
    say_three(net, 1);
    RVT_ASSERT(is_set());
    for (int time = 0; time < 10; ++time) {
        say_three(net, 1);
    }
    const itimerspec never{};
    RVT_EQ(timerfd_settime(timer.get(), 0, &never, nullptr), 0);
    say_three(net, 1);
    RVT_EQ(is_set(), false);
    say_three(net, 2000);  // not so this time
    say_three(net, 1);
    RVT_ASSERT(is_set());
}

Test(rd_flows, an_acknowledgement_of_what_was_not_sent_changes_nothing) {
    Net net;
    net.connect();
    RVT_ASSERT(net.b.say(1, "to be taken"));
    RVT_ASSERT(
        net.a.flow->put({.op = RdOp::kTaken, .data = wire::kPsn | 0x123456}, RdFlow::Room::kAny));
    RVT_ASSERT(net.a.say(2, "after it"));
    RVT_ASSERT(net.run_until([&] { return !net.a.heard.empty() && !net.b.heard.empty(); }));
    RVT_ASSERT(net.run_until([&] { return net.b.flow->is_drained(); }));
    RVT_EQ(net.b.heard[0].tag, 2);
    RVT_EQ(net.a.ends + net.b.ends, 0);
}

Test(rd_flows, what_is_lent_is_in_use_until_the_peer_has_it) {
    Net net;
    net.connect();
    const std::string text(5000, 'x');
    RVT_ASSERT(net.a.lend(1, text));
    const std::uint64_t frames = net.a.flow->frames();
    RVT_EQ(net.a.flow->has_let_go(frames), false);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->has_let_go(frames); }));
    RVT_ASSERT(net.b.heard.at(0).text == text);
}

Test(rd_flows, what_leaves_together_is_acknowledged_together) {
    Net net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    const std::string text(2000, 'x');
    const std::uint64_t before = net.a.packets;
    for (const bool has_more : {true, true, false}) {
        RVT_ASSERT(net.a.lend(1, text, has_more));
    }
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
    RVT_EQ(net.a.packets - before, 1);
    RVT_EQ(net.b.heard.size(), 3);
}

Test(rd_flows, packets_are_filled_as_far_as_both_ends_can) {
    fake::Wire wire;
    Node a{wire, 1, 11, 1408};
    Node b{wire, 2, 12, 1344};
    const auto run_until = [&](auto is_done) {
        for (int turn = 0; turn < 200'000 && !is_done(); ++turn, now_us += 20) {
            a.poll();
            b.poll();
        }
        return is_done();
    };
    a.flows->connect(b.address());
    RVT_ASSERT(run_until([&] { return a.flow != nullptr && b.flow != nullptr; }));
    RVT_EQ(a.flow->payload_bytes(), 1344);
    RVT_EQ(b.flow->payload_bytes(), 1344);
    const std::string text(5000, 'x');
    const std::uint64_t before = b.packets;
    RVT_ASSERT(a.lend(1, text));
    RVT_ASSERT(run_until([&] { return a.flow->is_drained(); }));
    RVT_ASSERT(b.heard.at(0).text == text);
    RVT_EQ(b.packets - before, 4);
}

Test(rd_flows, what_was_lent_is_not_read_after_the_close) {
    constexpr std::size_t kBytes = 4096;
    Net net;
    net.connect();
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    RVT_ASSERT(net.a.lend(1, {static_cast<const char*>(memory), kBytes}));
    net.a.flow->close();
    RVT_EQ(munmap(memory, kBytes), 0);
    // Long enough for many a repetition, which would end this process.
    for (int turn = 0; turn < 50'000; ++turn) {
        net.a.flows->poll_for_owner();
        now_us += 20;
    }
}

Test(rd_flows, connects_that_cross_end_in_one_flow) {
    Net net;
    net.a.flows->connect(net.b.address());
    net.b.flows->connect(net.a.address());
    RVT_ASSERT(net.run_until([&] { return net.a.flow != nullptr && net.b.flow != nullptr; }));
    net.run_until([] { return false; }, 1000);
    RVT_EQ(net.a.opens, 1);
    RVT_EQ(net.b.opens, 1);
    RVT_EQ(net.a.failure, 0);
    RVT_EQ(net.b.failure, 0);
}

Test(rd_flows, what_counts_as_a_whole_arrives_as_one) {
    Net net;
    net.connect();
    constexpr std::size_t kBytes = 3000;
    std::byte* const run = net.a.flow->reserve_run(kBytes);
    std::memset(run, 'x', kBytes);
    const RdAtomicHeader header{};
    net.a.flow->put_run({.op = RdOp::kAtomic,
                         .tag = 5,
                         .payload = reinterpret_cast<const std::byte*>(&header),
                         .payload_bytes = sizeof header},
                        kBytes);
    RVT_ASSERT(net.run_until([&] { return !net.b.heard.empty(); }));
    RVT_ASSERT(net.b.heard[0].text == std::string(kBytes, 'x'));
}

Test(rd_flows, a_peer_may_ask_for_headers_only) {
    Net net;
    net.connect();
    net.b.flow->hold_eager(true);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->must_hold_eager(); }));
    net.b.flow->hold_eager(false);
    RVT_ASSERT(net.run_until([&] { return !net.a.flow->must_hold_eager(); }));
}

Test(rd_flows, nobody_there_is_an_error_in_time) {
    Net net;
    const std::uint64_t began = now_us;
    net.a.flows->connect(host_address(9));
    RVT_ASSERT(net.run_until([&] { return net.a.failure != 0; }, 600'000));
    RVT_EQ(net.a.failure, ETIMEDOUT);
    RVT_ASSERT(now_us - began >= 5'000'000 && now_us - began < 10'000'000);
}

Test(rd_flows, a_peer_that_was_started_again_gets_a_new_flow) {
    fake::Wire wire;
    Node a(wire, 1, 11);
    auto b = std::make_unique<Node>(wire, 2, 12);
    const auto run_until = [&](auto is_done) {
        for (int turn = 0; turn < 200'000 && !is_done(); ++turn) {
            a.poll();
            b->poll();
            now_us += 20;
        }
        return is_done();
    };
    a.flows->connect(b->address());
    RVT_ASSERT(run_until([&] { return a.flow != nullptr && b->flow != nullptr; }));
    b->kill();
    b = std::make_unique<Node>(wire, 2, 13);
    b->flows->connect(a.address());
    RVT_ASSERT(run_until([&] { return a.opens == 2 && b->flow != nullptr; }));
    RVT_EQ(a.ends, 1);
    RVT_EQ(a.flow->peer().incarnation, 13);
    RVT_ASSERT(b->say(1, "again"));
    RVT_ASSERT(run_until([&] { return !a.heard.empty(); }));
}

Test(rd_flows, who_does_not_know_a_flow_any_more_says_so) {
    fake::Wire wire;
    Node a(wire, 1, 11);
    auto b = std::make_unique<Node>(wire, 2, 12);
    const auto run_until = [&](auto is_done) {
        const std::uint64_t end_us = now_us + 2'000'000;
        while (now_us < end_us && !is_done()) {
            a.poll();
            b->poll();
            now_us += 20;
        }
        return is_done();
    };
    a.flows->connect(b->address());
    RVT_ASSERT(run_until([&] { return a.flow != nullptr && b->flow != nullptr; }));
    b->kill();
    b = std::make_unique<Node>(wire, 2, 13);
    RVT_ASSERT(a.say(1, "are you there?"));
    RVT_ASSERT(run_until([&] { return a.ends == 1; }));
    a.flows->connect(b->address());
    RVT_ASSERT(run_until([&] { return a.flow != nullptr; }));
    RVT_EQ(a.flow->peer().incarnation, 13);
}

// ---- peers that owe something ----

namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

/// Two of which one has asked something, and has the word that the question has come.
struct Asked {
    Asked() {
        a.flows->connect(b->address());
        RVT_ASSERT(until([&] { return a.flow != nullptr && b->flow != nullptr; }));
        RVT_ASSERT(a.say(1, "a question"));
        RVT_ASSERT(until([&] { return b->heard.size() == 1 && a.flow->is_drained(); }));
        a.is_owed = true;
    }
    template <class IsDone>
    bool until(IsDone is_done, std::uint64_t most_us = 2 * kSecondUs) {
        const std::uint64_t end_us = now_us + most_us;
        while (now_us < end_us && !is_done()) {
            a.poll();
            b_owner_polls ? b->poll() : static_cast<void>(b->flows->poll_for_owner());
            now_us += 1000;
        }
        return is_done();
    }

    /// It dies, and somebody else is there.
    void replace_b(std::uint8_t number) {
        b->cut_off();
        dead = std::move(b);
        b = std::make_unique<Node>(wire, number, 13);
    }

    fake::Wire wire;
    std::unique_ptr<Node> dead;
    Node a{wire, 1, 11};
    std::unique_ptr<Node> b = std::make_unique<Node>(wire, 2, 12);
    bool b_owner_polls = true;
};

}  // namespace

Test(rd_flows, a_peer_that_owes_something_and_was_started_again_is_noticed) {
    Asked net;
    net.replace_b(2);
    RVT_ASSERT(net.until([&] { return net.a.ends == 1; }));
}

Test(rd_flows, a_peer_that_owes_something_and_whose_host_is_silent_is_given_up) {
    Asked net;
    net.replace_b(3);
    RVT_ASSERT(net.until([&] { return net.a.ends == 1; }, 80 * kSecondUs));
}

Test(rd_flows, a_peer_that_owes_something_and_is_only_slow_is_waited_for) {
    Asked net;
    net.b_owner_polls = false;
    net.until([] { return false; }, 80 * kSecondUs);
    RVT_EQ(net.a.ends, 0);
    net.b_owner_polls = true;
    RVT_ASSERT(net.b->say(2, "the answer"));
    RVT_ASSERT(net.until([&] { return net.a.heard.size() == 1; }));
    RVT_EQ(net.a.is_malformed || net.b->is_malformed, false);
}

Test(rd_flows, a_peer_that_owes_nothing_is_not_asked) {
    Asked net;
    net.a.is_owed = false;
    net.until([] { return false; }, kSecondUs);
    const std::uint64_t before = net.b->packets;
    net.until([] { return false; }, 5 * kSecondUs);
    RVT_EQ(net.b->packets, before);
    RVT_EQ(net.a.flows->owner_due_us(), RdFlows::kNever);
}

Test(rd_flows, an_owner_that_does_not_poll_is_woken_to_ask_a_silent_peer) {
    Asked net;
    net.until([] { return false; }, kSecondUs);
    const int before = net.a.wakes;
    for (const std::uint64_t end_us = now_us + kSecondUs; now_us < end_us; now_us += 1000) {
        net.a.flows->poll_for_owner();
    }
    RVT_EQ(net.a.wakes, before + 1);
    RVT_ASSERT(net.a.flows->owner_due_us() <= now_us);
    RVT_ASSERT(net.a.flows->next_due_us() <= now_us + kSecondUs);  // who polls seldom is told again
    const std::uint64_t heard = net.b->packets;
    net.until([] { return false; }, kSecondUs);
    RVT_ASSERT(net.b->packets > heard);
}

Test(rd_flows, what_another_thread_takes_in_waits_for_the_owner) {
    Net net;
    net.connect();
    for (std::uint64_t tag = 1; tag <= 20; ++tag) {
        RVT_ASSERT(net.a.say(tag, "m"));
    }
    for (int turn = 0; turn < 100; ++turn) {
        net.a.poll();
        net.b.flows->poll_for_owner();
        now_us += 20;
    }
    RVT_EQ(net.b.heard.size(), 0);
    RVT_ASSERT(net.b.wakes > 0);
    RVT_ASSERT(net.a.flow->is_drained());  // the peer's host has answered
    net.b.poll();
    RVT_EQ(net.b.heard.size(), 20);
    for (std::uint64_t tag = 1; tag <= 20; ++tag) {
        RVT_EQ(net.b.heard[tag - 1].tag, tag);
    }
}

Test(rd_flows, what_waits_for_the_owner_comes_before_the_end) {
    Net net;
    net.connect();
    RVT_ASSERT(net.a.say(1, "last words"));
    const auto let_another_take_in = [&] {
        for (int turn = 0; turn < 100; ++turn) {
            net.a.poll();
            net.b.flows->poll_for_owner();
            now_us += 20;
        }
    };
    let_another_take_in();
    net.a.flow->close();
    let_another_take_in();
    RVT_EQ(net.b.ends, 0);
    net.b.poll();
    RVT_EQ(net.b.heard.size(), 1);
    RVT_EQ(net.b.ends, 1);
}

Test(rd_flows, the_end_of_an_endpoint_is_told) {
    fake::Wire wire;
    Node a(wire, 1, 11);
    {
        Node b(wire, 2, 12);
        a.flows->connect(b.address());
        for (int turn = 0; turn < 1000 && b.flow == nullptr; ++turn) {
            a.poll();
            b.poll();
            now_us += 20;
        }
        b.flow->close();
        for (int turn = 0; turn < 1000 && a.ends == 0; ++turn) {
            a.poll();
            b.poll();
            now_us += 20;
        }
    }
    RVT_EQ(a.ends, 1);
}

Test(rd_flows, an_endpoint_whose_address_is_gone_has_no_flows) {
    Net net;
    net.connect();
    port_changed(net.a.flows->device(), 0);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1; }, 10));
}

Test(rd_flows, packets_that_have_become_too_large_end_the_flow_at_both_ends) {
    Net net;
    net.connect();
    port_changed(net.a.flows->device(), 128);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1 && net.b.ends == 1; }));
}

Test(rd_flows, an_address_that_is_back_takes_flows_again) {
    Net net;
    net.connect();
    port_changed(net.a.flows->device(), 0);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1; }, 10));
    port_changed(net.a.flows->device(), 256);
    net.a.flows->connect(net.b.address());
    RVT_ASSERT(net.run_until([&] { return net.a.opens == 2 && net.b.opens == 2; }));
}

// ---- a bad wire ----

namespace {

constexpr int kMessages = 120;

/// What the message with this number says; some are many packets long.
std::string text_of(std::uint64_t seed, int number) {
    std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(number));
    const std::size_t most = random() % 4 == 0 ? 6000 : 200;
    return std::string(random() % most, static_cast<char>('a' + number % 26));
}

void talk(std::uint64_t seed, const char* faults) {
    const auto expect = [seed](bool is_so, const char* what) {
        if (!is_so) {
            cr_fatal("seed %llu: %s", static_cast<unsigned long long>(seed), what);
        }
    };
    Net net;
    auto plan = protocol::parse_faults(faults).value();
    plan.seed = seed;
    net.wire.set_faults(plan);
    net.a.flows->connect(net.b.address());
    net.b.flows->connect(net.a.address());
    int said[2] = {};
    Node* nodes[2] = {&net.a, &net.b};
    const auto is_done = [&] {
        for (int i : {0, 1}) {
            Node& node = *nodes[i];
            while (node.flow != nullptr && said[i] < kMessages &&
                   node.say(static_cast<std::uint64_t>(said[i]), text_of(seed, said[i]))) {
                ++said[i];
            }
        }
        const auto all = [&](const Node& node) {
            return node.heard.size() == kMessages &&
                   node.heard.back().text.size() == text_of(seed, kMessages - 1).size();
        };
        return all(net.a) && all(net.b) && net.a.flow->is_drained() && net.b.flow->is_drained();
    };
    expect(net.run_until(is_done, 400'000), "it hangs");
    for (Node* node : nodes) {
        expect(node->opens == 1 && node->ends == 0 && !node->is_malformed, "a flow was lost");
        for (int i = 0; i < kMessages; ++i) {
            const Heard& heard = node->heard[static_cast<std::size_t>(i)];
            expect(heard.tag == static_cast<std::uint64_t>(i), "a message out of order");
            expect(heard.text == text_of(seed, i), "a message with other bytes");
        }
    }
}

void talk_with_many_seeds(const char* faults, std::uint64_t count) {
    if (const char* one = std::getenv("RVT_SEED")) {
        talk(std::stoull(one), faults);
        return;
    }
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
        talk(seed, faults);
    }
}

}  // namespace

Test(rd_flows, a_lost_packet_is_repeated_and_not_those_behind_it) {
    Net net;
    net.connect();
    auto plan = protocol::parse_faults("drop=2%").value();
    plan.seed = 1;
    net.wire.set_faults(plan);
    constexpr std::size_t kCount = 300;
    constexpr std::size_t kBytes = 5000;
    constexpr std::size_t kPackets = kCount * (kBytes / 256 + 1);
    const std::uint64_t before = net.b.packets;
    std::size_t said = 0;
    RVT_ASSERT(net.run_until([&] {
        said += said < kCount && net.a.say(said, std::string(kBytes, 'x')) ? 1 : 0;
        return net.b.heard.size() == kCount && net.a.flow->is_drained();
    }));
    const std::uint64_t arrived = net.b.packets - before;
    cr_assert(arrived < kPackets + kPackets / 10, "%llu packets came for %zu",
              static_cast<unsigned long long>(arrived), kPackets);
}

Test(rd_flows_traffic, arrives_whole_over_a_clean_wire, .timeout = 60) {
    talk_with_many_seeds("", 5);
}
Test(rd_flows_traffic, survives_loss, .timeout = 60) {
    talk_with_many_seeds("drop=5%", 20);
}
Test(rd_flows_traffic, survives_all_at_once, .timeout = 60) {
    talk_with_many_seeds("drop=3%,duplicate=5%,reorder=5%,corrupt=3%,delay=5%:500us", 30);
}
