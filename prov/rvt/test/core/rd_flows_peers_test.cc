// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows to peers that are started again, owe something, poll seldom or go, and what another thread
// and a change of the address do to them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/flow_pair.h"
#include "protocol/cm_messages.h"
#include "protocol/faults.h"
#include "protocol/headers.h"
#include "rvt/backend.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

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
        b = std::make_unique<FlowTalker>(wire, number, 13);
    }

    fake::Wire wire;
    std::unique_ptr<FlowTalker> dead;
    FlowTalker a{wire, 1, 11};
    std::unique_ptr<FlowTalker> b = std::make_unique<FlowTalker>(wire, 2, 12);
    bool b_owner_polls = true;
};

/// Two of which one can be started again.
struct Two {
    template <class IsDone>
    bool until(IsDone is_done, std::uint64_t most_us = 2 * kSecondUs) {
        const std::uint64_t end_us = now_us + most_us;
        while (now_us < end_us && !is_done()) {
            a.poll();
            b->poll();
            now_us += 20;
        }
        return is_done();
    }
    void run(std::uint64_t for_us) {
        until([] { return false; }, for_us);
    }
    [[nodiscard]] bool is_connected() const { return a.flow != nullptr && b->flow != nullptr; }
    void restart_b() {
        b->kill();
        b = std::make_unique<FlowTalker>(wire, 2, 13);
    }

    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    std::unique_ptr<FlowTalker> b = std::make_unique<FlowTalker>(wire, 2, 12);
};

/// Two that had a flow, of which one was killed and started again.
struct Restarted : Two {
    Restarted() {
        a.flows->connect(b->address());
        RVT_ASSERT(until([&] { return is_connected(); }));
        restart_b();
    }
};

/// One whose peer was started again. A request of the former process is still on its way.
struct LateRequest : Two {
    LateRequest() {
        wire.set_faults(protocol::parse_faults("delay=100%:500000us").value());
        b->flows->connect(a.address());
        run(kSecondUs / 50);
        restart_b();
        wire.set_faults({});
    }
};

bool is_request(std::span<const std::byte> packet) {
    const auto decoded = protocol::decode(packet);
    const auto mad = protocol::decode_cm(decoded.is_ok() ? decoded.value().payload : packet);
    return mad.is_ok() && std::holds_alternative<protocol::CmReq>(mad.value().message);
}

}  // namespace

Test(rd_flows, a_late_request_of_a_process_that_has_ended_leaves_the_flow_of_the_next_one) {
    LateRequest net;
    net.a.flows->connect(net.b->address());
    RVT_ASSERT(net.until([&] { return net.is_connected(); }));
    net.run(kSecondUs);
    RVT_ASSERT(net.is_connected());
    RVT_ASSERT(net.a.say(1, "ask") && net.b->say(1, "answer"));
    RVT_ASSERT(net.until([&] { return net.a.heard.size() == 1 && net.b->heard.size() == 1; }));
    RVT_EQ(net.a.opens + net.b->opens, 2);
    RVT_EQ(net.a.ends + net.b->ends, 0);
}

Test(rd_flows, a_peer_that_was_started_again_gets_a_new_flow) {
    Restarted net;
    net.b->flows->connect(net.a.address());
    RVT_ASSERT(net.until([&] { return net.a.opens == 2 && net.b->flow != nullptr; }));
    RVT_EQ(net.a.ends, 1);
    RVT_EQ(net.a.flow->peer().incarnation, 13);
    RVT_ASSERT(net.b->say(1, "again"));
    RVT_ASSERT(net.until([&] { return !net.a.heard.empty(); }));
}

Test(rd_flows, a_peer_that_was_killed_and_is_there_again_gets_a_new_flow_at_once) {
    Asked net;
    net.replace_b(2);
    net.b->flows->connect(net.a.address());
    RVT_ASSERT(net.until([&] { return net.a.opens == 2; }, kSecondUs / 50));
    RVT_EQ(net.a.ends, 1);
    RVT_ASSERT(net.b->say(2, "again"));
    RVT_ASSERT(net.until([&] { return net.a.heard.size() == 1; }));
    RVT_EQ(net.b->ends, 0);
}

Test(rd_flows, a_peer_that_was_killed_and_hears_answers_too_late_gets_a_new_flow) {
    Asked net;
    net.replace_b(2);
    net.wire.set_faults(protocol::parse_faults("delay=100%:1400000us").value());
    net.b->flows->connect(net.a.address());
    net.until([] { return false; }, 3 * kSecondUs / 2);
    net.wire.set_faults({});
    RVT_ASSERT(net.until([&] { return net.a.opens == 2 && net.b->flow != nullptr; }));
    RVT_ASSERT(net.b->say(2, "again"));
    RVT_ASSERT(net.until([&] { return net.a.heard.size() == 1; }));
    RVT_EQ(net.b->ends, 0);
}

Test(rd_flows, a_flow_that_is_closed_while_its_peer_comes_back_leaves_it_the_place) {
    Asked net;
    net.replace_b(2);
    net.b->flows->connect(net.a.address());
    net.a.poll();  // answers
    std::exchange(net.a.flow, nullptr)->close();
    net.a.flows->connect(net.b->address());
    RVT_ASSERT(net.until([&] { return net.a.flow != nullptr && net.b->flow != nullptr; }));
    RVT_ASSERT(net.a.say(2, "again"));
    RVT_ASSERT(net.until([&] { return net.b->heard.size() == 1; }));
    RVT_EQ(net.b->opens, 1);
    RVT_EQ(net.b->ends, 0);
}

Test(rd_flows, who_does_not_know_a_flow_any_more_says_so) {
    Restarted net;
    RVT_ASSERT(net.a.say(1, "are you there?"));
    RVT_ASSERT(net.until([&] { return net.a.ends == 1; }));
    net.a.flows->connect(net.b->address());
    RVT_ASSERT(net.until([&] { return net.a.flow != nullptr; }));
    RVT_EQ(net.a.flow->peer().incarnation, 13);
}

Test(rd_flows, many_who_had_flows_with_an_endpoint_that_was_started_again_all_hear_soon) {
    constexpr std::uint8_t kMany = 200;
    fake::Wire wire;
    auto b = std::make_unique<FlowTalker>(wire, 1, 12);
    std::vector<std::unique_ptr<FlowTalker>> many;
    const auto all = [&](auto is_done) { return std::ranges::all_of(many, is_done); };
    const auto until = [&](std::uint64_t end_us, auto is_done) {
        for (; now_us < end_us && !all(is_done); now_us += 200) {
            std::ranges::for_each(many, [](const auto& one) { one->poll(); });
            b->poll();
        }
        return all(is_done);
    };
    for (std::uint8_t i = 0; i < kMany; ++i) {
        many.push_back(
            std::make_unique<FlowTalker>(wire, static_cast<std::uint8_t>(2 + i), 100 + i));
        many.back()->flows->connect(b->address());
    }
    RVT_ASSERT(until(now_us + 5 * kSecondUs, [](const auto& one) { return one->flow != nullptr; }));
    b->cut_off();
    const auto dead = std::exchange(b, std::make_unique<FlowTalker>(wire, 1, 13));
    std::ranges::for_each(many, [](const auto& one) { RVT_ASSERT(one->say(1, "there?")); });
    RVT_ASSERT(until(now_us + kSecondUs, [](const auto& one) { return one->ends == 1; }));
}

void expect_one_flow(FlowTalker& a, FlowTalker& b) {
    const std::uint64_t end_us = now_us + kSecondUs;
    for (; now_us < end_us && (a.flow == nullptr || b.flow == nullptr); now_us += 100) {
        a.poll();
        b.poll();
    }
    RVT_EQ(a.failure, 0);
    RVT_EQ(a.opens, 1);
    RVT_EQ(b.opens, 1);
}

/// A peer starts that asks the first one just before that gives up, and hears no request of it
/// until then.
void expect_flow_with_who_starts(fake::Wire& wire, FlowTalker& a, std::uint64_t due_us) {
    FlowTalker b(wire, 2, 12);
    b.flows->connect(a.address());
    for (; now_us < due_us + 1000; now_us += 100) {
        wire.set_faults(protocol::parse_faults("drop=100%").value());
        b.poll();
        wire.set_faults({});
        a.poll();
    }
    expect_one_flow(a, b);
}

Test(rd_flows, a_peer_that_starts_while_it_is_about_to_be_given_up_gets_a_flow) {
    constexpr std::uint64_t kRefusedUs = 3 * kSecondUs;  // of FlowTalker
    fake::Wire wire;
    wire.spares = [](std::span<const std::byte> packet) { return !is_request(packet); };
    FlowTalker a(wire, 1, 11);
    a.flows->connect(host_address(2));
    a.poll();
    a.hear_of_no_port(host_address(2), protocol::kGsiQpn);
    const std::uint64_t due_us = now_us + kRefusedUs;
    for (; now_us < due_us - 1000; now_us += 1000) {
        a.poll();
    }
    expect_flow_with_who_starts(wire, a, due_us);
}

Test(rd_flows, a_peer_that_starts_behind_a_silent_host_just_in_time_gets_a_flow) {
    constexpr std::uint64_t kTimeoutUs = 5 * kSecondUs;  // of FlowTalker
    fake::Wire wire;
    wire.spares = [](std::span<const std::byte> packet) { return !is_request(packet); };
    FlowTalker a(wire, 1, 11);
    const std::uint64_t due_us = now_us + kTimeoutUs;
    a.flows->connect(host_address(2));
    for (; now_us < due_us - 1000; now_us += 1000) {
        a.poll();
    }
    expect_flow_with_who_starts(wire, a, due_us);
}

Test(rd_flows, a_stop_of_the_process_is_no_silence_of_its_peer) {
    for (const bool may_be_starting : {false, true}) {
        fake::Wire wire;
        FlowTalker a(wire, 1, 11);
        a.flows->connect(host_address(2));
        a.poll();
        if (may_be_starting) {
            a.hear_of_no_port(host_address(2), protocol::kGsiQpn);
        }
        for (const std::uint64_t end_us = now_us + 2 * kSecondUs; now_us < end_us; now_us += 1000) {
            a.poll();
        }
        now_us += 60 * kSecondUs;
        a.poll();
        RVT_EQ(a.failure, 0);
        FlowTalker b(wire, 2, 12);
        expect_one_flow(a, b);
    }
}

Test(rd_flows, a_peer_that_is_silent_before_a_stop_and_after_it_is_given_up) {
    Two net;
    net.b->cut_off();
    net.a.flows->connect(net.b->address());
    net.run(4 * kSecondUs);
    now_us += 60 * kSecondUs;
    net.run(kSecondUs / 4);
    RVT_EQ(net.a.failure, 0);
    net.run(kSecondUs);
    RVT_EQ(net.a.failure, ETIMEDOUT);
}

Test(rd_flows, a_peer_is_not_given_up_because_of_a_stop_just_before_it_would_be) {
    constexpr std::uint64_t kTimeoutUs = 5 * kSecondUs;  // of FlowTalker
    fake::Wire wire;
    FlowTalker a(wire, 1, 11);
    const std::uint64_t due_us = now_us + kTimeoutUs;
    a.flows->connect(host_address(2));
    for (; now_us < due_us - kSecondUs / 10; now_us += 1000) {
        a.poll();
    }
    now_us += 60 * kSecondUs;
    a.poll();
    RVT_EQ(a.failure, 0);
    FlowTalker b(wire, 2, 12);
    expect_one_flow(a, b);
}

Test(rd_flows, who_is_run_for_moments_alone_gives_a_silent_peer_up_all_the_same) {
    fake::Wire wire;
    FlowTalker a(wire, 1, 11);
    a.flows->connect(host_address(2));
    for (int i = 0; i < 200 && a.failure == 0; ++i) {
        a.poll();
        now_us += kSecondUs * 11 / 10;
    }
    RVT_EQ(a.failure, ETIMEDOUT);
}

Test(rd_flows, a_peer_that_says_that_requests_cross_has_time_to_ask) {
    constexpr std::uint64_t kRefusedUs = 3 * kSecondUs;  // of FlowTalker
    fake::Wire wire;
    wire.spares = [](std::span<const std::byte> packet) { return !is_request(packet); };
    FlowTalker a(wire, 2, 12);
    a.flows->connect(host_address(1));
    a.poll();
    a.hear_of_no_port(host_address(1), protocol::kGsiQpn);
    const std::uint64_t due_us = now_us + kRefusedUs;
    for (; now_us < due_us - kSecondUs / 4; now_us += 1000) {
        a.poll();
    }
    FlowTalker b(wire, 1, 11);
    b.flows->connect(a.address());
    for (; now_us < due_us + 1000; now_us += 1000) {  // no request of the second arrives
        b.poll();
        wire.set_faults(protocol::parse_faults("drop=100%").value());
        a.poll();
        wire.set_faults({});
    }
    expect_one_flow(a, b);
}

Test(rd_flows, word_of_a_pair_that_was_there_before_is_not_about_a_slow_peer) {
    constexpr std::uint32_t kOther = 0x654321;
    Asked net;
    RVT_ASSERT(net.a.say(3, "what is the answer?"));
    for (const std::uint64_t end_us = now_us + kSecondUs / 2; now_us < end_us; now_us += 1000) {
        net.a.poll();
        net.a.hear_of_no_port(net.b->address(), kOther);
    }
    RVT_EQ(net.a.ends, 0);
    RVT_ASSERT(net.until([&] { return net.b->heard.size() == 2; }));
}

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
    FlowPair net;
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
    FlowPair net;
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
    FlowTalker a(wire, 1, 11);
    {
        FlowTalker b(wire, 2, 12);
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
    FlowPair net;
    net.connect();
    port_changed(net.a.flows->device(), 0);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1; }, 10));
}

Test(rd_flows, packets_that_have_become_too_large_end_the_flow_at_both_ends) {
    FlowPair net;
    net.connect();
    port_changed(net.a.flows->device(), 128);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1 && net.b.ends == 1; }));
}

Test(rd_flows, an_address_that_is_back_takes_flows_again) {
    FlowPair net;
    net.connect();
    port_changed(net.a.flows->device(), 0);
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1; }, 10));
    port_changed(net.a.flows->device(), 256);
    net.a.flows->connect(net.b.address());
    RVT_ASSERT(net.run_until([&] { return net.a.opens == 2 && net.b.opens == 2; }));
}

/// What their pairs report of all that was under way is more than the flows' queue of errors holds.
Test(rd_flows, peers_whose_hosts_fall_silent_together_are_all_given_up, .timeout = 30) {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    FlowTalker b{wire, 2, 12};
    FlowTalker c{wire, 3, 13};
    FlowTalker d{wire, 4, 14};
    const auto meet = [&](FlowTalker& peer) {
        a.flow = nullptr;
        a.flows->connect(peer.address());
        while (a.flow == nullptr) {
            a.poll();
            peer.poll();
            now_us += 20;
        }
        return a.flow;
    };
    core::RdFlow* const to_d = meet(d);
    core::RdFlow* const to_b = meet(b);
    core::RdFlow* const to_c = meet(c);
    b.cut_off();
    c.cut_off();
    const std::string text(300, 'x');
    for (core::RdFlow* const flow : {to_b, to_c}) {
        a.flow = flow;
        while (a.lend(2, text, true)) {
        }
    }
    const auto wait_for = [&](int ends) {
        for (const auto end = now_us + 80 * kSecondUs; now_us < end && a.ends != ends;
             now_us += kSecondUs) {
            a.poll();
        }
        RVT_EQ(a.ends, ends);
    };
    wait_for(2);
    d.cut_off();
    a.flow = to_d;
    RVT_ASSERT(a.say(2, "are you there?"));
    wait_for(3);
}
