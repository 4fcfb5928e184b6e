// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows over a NIC when something goes wrong with it: endpoints of this process, and the mock for
// their NIC.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>

#include "core/flow_node.h"
#include "core/mock_roce_nic.h"
#include "core/send_hold.h"
#include "util/log.h"

using namespace rvt;
using namespace rvt::core;
using test::FlowNode;

namespace {

// ---- what is logged ----

std::vector<std::string> warnings;

constexpr util::LogSink kSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kWarn; },
    .write = [](util::LogLevel, util::LogArea, const char*, int,
                const char* text) noexcept { warnings.emplace_back(text); },
};

bool is_warned_once_of(const char* what) {
    return warnings.size() == 1 && warnings[0].find(what) != std::string::npos;
}

// ---- endpoints ----

struct Net {
    Net() { nic = test::open_mock_nic(mock, registry); }
    ~Net() {
        nodes.clear();
        nic.reset();
        RVT_EQ(mock.live, 0);
    }
    Net(const Net&) = delete;
    Net& operator=(const Net&) = delete;

    FlowNode& add(std::uint32_t max_flows = 1u << 16) {
        Address address = nic->device().address();
        address.port = static_cast<std::uint16_t>(5001 + nodes.size());
        return *nodes.emplace_back(std::make_unique<FlowNode>(wire, address, &nic->device(),
                                                              core::RegCacheAttr{}, max_flows));
    }
    void poll() {
        nic->take_events();
        for (const auto& node : nodes) {
            if (node.get() != asleep) {
                node->poll();
            }
        }
    }
    /// Polls until it is so; fails the test when it does not come to that.
    template <class Is>
    void until(Is is) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!is()) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            poll();
        }
    }
    static void connect_by(Net& net, FlowNode& a, FlowNode& b) {
        const std::size_t before_a = a.all.size();
        const std::size_t before_b = b.all.size();
        a.flows->connect(b.address());
        net.until([&] { return a.all.size() > before_a && b.all.size() > before_b; });
    }
    void connect(FlowNode& a, FlowNode& b) { connect_by(*this, a, b); }
    /// A message each way arrives.
    void talk(FlowNode& a, RdFlow& a_flow, FlowNode& b, RdFlow& b_flow) {
        a.heard.clear();
        b.heard.clear();
        RVT_ASSERT(FlowNode::say("there", a_flow));
        RVT_ASSERT(FlowNode::say("and back", b_flow));
        until([&] { return a.heard.size() == 1 && b.heard.size() == 1; });
    }

    verbs::MockNic mock;
    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    fake::Wire wire;
    std::vector<std::unique_ptr<FlowNode>> nodes;
    const FlowNode* asleep = nullptr;  // is not polled
};

/// Two of them, connected.
struct Two : Net {
    Two() {
        connect(a, b);
        RVT_ASSERT(a.flow->is_over_nic());
    }
    /// Both ends learn that the flow is gone, and make another one.
    void again() {
        until([&] { return a.ends > 0 && b.ends > 0 && a.all.empty() && b.all.empty(); });
        connect(a, b);
        talk(a, *a.flow, b, *b.flow);
    }
    FlowNode& a = add();
    FlowNode& b = add();
};

}  // namespace

TestSuite(rd_nic_mock, .timeout = 60);

// ---- receives ----

Test(rd_nic_mock, receives_that_a_pair_holds_come_back_when_it_ends) {
    constexpr std::size_t kRounds = 60;
    Two net;
    const std::size_t before = net.mock.receives_left();
    for (std::size_t i = 0; i < kRounds; ++i) {
        for (const std::uint32_t qpn : net.mock.connected_pairs()) {
            net.mock.begin_message_to(qpn);
        }
        RVT_ASSERT(FlowNode::say("unread", *net.a.flow));
        net.a.flow->close();
        net.a.all.clear();
        net.until([&] { return net.b.all.empty() && net.mock.pairs_left() == 0; });
        net.connect(net.a, net.b);
    }
    RVT_ASSERT(net.mock.receives_left() + kRounds > before);  // some wait to be posted with others
}

Test(rd_nic_mock, a_pair_whose_last_receive_is_not_told_of_ends_all_the_same) {
    Two net;
    net.mock.tells_last_receive = false;
    net.a.flow->close();
    net.until([&] { return net.b.ends == 1 && net.mock.pairs_left() == 0; });
}

Test(rd_nic_mock, a_flow_whose_pair_has_the_number_of_one_just_gone_hears_its_peer) {
    Two net;
    FlowNode& c = net.add();
    net.asleep = &net.b;  // its pair stays
    net.mock.when_pair_is_gone = [&] { net.a.flows->connect(c.address()); };
    net.a.all.clear();
    net.a.flow->close();
    net.until([&] { return !net.a.all.empty() && !c.all.empty(); });
    RVT_ASSERT(net.a.flow->is_over_nic());
    net.talk(net.a, *net.a.flow, c, *c.flow);
}

Test(rd_nic_mock, an_idle_flow_whose_last_frames_asked_for_no_completion_makes_room) {
    Net net;
    FlowNode& a = net.add(1);
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    net.connect(a, b);
    RVT_ASSERT(b.say("of which no completion is asked"));
    net.until([&] { return a.heard.size() == 1; });
    a.flows->connect(c.address());
    net.until([&] { return c.all.size() == 1; });
    RVT_EQ(a.failure, 0);
}

Test(rd_nic_mock, a_flow_without_room_holds_back_no_other) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    net.connect(a, b);
    net.connect(c, b);
    RdFlow& to_c = *b.flow;
    net.asleep = &b;  // it takes nothing from its flows
    const std::string text(a.flow->max_run(), 'x');
    std::size_t said = 0;
    for (unsigned refused = 0; refused < 100;) {
        refused = a.say(text) ? 0 : refused + 1;
        said += refused == 0 ? 1 : 0;
        net.poll();
        b.flows->poll_for_owner();
    }
    RVT_ASSERT(FlowNode::say("answer", to_c));
    net.until([&] {
        b.flows->poll_for_owner();
        return to_c.is_drained();
    });
    net.asleep = nullptr;
    net.until([&] { return b.heard.size() == said; });
    RVT_ASSERT(b.heard.back() == text);
}

Test(rd_nic_mock, frames_of_a_flow_stay_in_order_when_others_make_room) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    b.starts_flows = false;
    net.connect(a, b);
    RdFlow& from_a = *b.flow;
    net.connect(c, b);
    RdFlow& from_c = *b.flow;
    net.asleep = &b;
    const auto move = [&] {
        net.poll();
        b.flows->poll_for_owner();
    };
    const std::string text(c.flow->max_run(), 'x');
    const std::size_t before = net.mock.receives_left();
    while (net.mock.receives_left() + 64 > before) {  // until frames stay in them
        c.say(text);
        move();
    }
    for (const char* said : {"first", "second"}) {  // which has no room
        RVT_ASSERT(a.say(said));
        move();
    }
    from_c.close();
    b.poll();
    RVT_ASSERT(a.say("third"));
    move();
    from_a.start(&from_a);
    net.asleep = nullptr;
    net.until([&] { return b.heard.size() == 3; });
    RVT_ASSERT(b.heard[0] == "first" && b.heard[1] == "second" && b.heard[2] == "third");
}

Test(rd_nic_mock, what_arrived_before_the_end_of_a_peer_is_heard) {
    Two net;
    net.asleep = &net.b;
    constexpr std::size_t kMessages = 300;  // more than one poll takes
    for (std::size_t said = 0; said < kMessages; ++said) {
        net.until([&] { return net.a.say(std::to_string(said)); });
        net.poll();  // a frame for each
    }
    FlowNode& b = net.b;
    net.nodes.erase(net.nodes.begin());
    net.asleep = nullptr;
    net.until([&] { return b.ends == 1; });
    RVT_EQ(b.heard.size(), kMessages);
}

// Each leaves alone, and is copied as it is posted.
Test(rd_nic_mock,
     small_messages_that_the_peer_has_no_receives_for_are_no_more_than_can_be_counted) {
    Two net;
    const std::size_t receives = net.mock.receives_left();
    net.asleep = &net.b;
    std::size_t said = 0;
    for (unsigned refused = 0; refused < 100;) {
        refused = net.a.say(std::to_string(said)) ? 0 : refused + 1;
        said += refused == 0 ? 1 : 0;
        net.poll();
        RVT_ASSERT(said <= receives + RdFrameRing::kMaxFrames);
    }
    net.asleep = nullptr;
    net.until([&] { return net.b.heard.size() == said; });
    for (std::size_t i = 0; i < said; ++i) {
        RVT_ASSERT(net.b.heard[i] == std::to_string(i));
    }
}

Test(rd_nic_mock, where_posting_takes_long_messages_are_held_as_long) {
    Two net;
    const SendHold& hold = net.a.flows->device().send_hold();
    net.mock.send_takes = std::chrono::microseconds(300);
    net.until([&] { return net.a.say("again") && hold.most_us() >= 300; });
}

// ---- frames that make no sense ----

namespace {

std::string record(const RdMessage& message) {
    std::string bytes(record_bytes(message), '\0');
    encode_record(message, 0, reinterpret_cast<std::byte*>(bytes.data()));
    return bytes;
}

}  // namespace

Test(rd_nic_mock, a_frame_that_makes_no_sense_ends_its_flow_alone) {
    const std::string frames[] = {
        std::string(1, '\xff'),
        std::string(RdNic::kFrameBytes, '\xff'),
        std::string(64, '\0') + "x",
        record({.op = RdOp::kTaken, .data = wire::kPsn | 5}),  // of packets
        record({.op = RdOp::kEagerFirst, .length = 4000}),
        record({.op = RdOp::kEager}) + "x",
    };
    for (const std::string& frame : frames) {
        Net net;
        FlowNode& a = net.add();
        FlowNode& b = net.add();
        FlowNode& c = net.add();
        net.connect(c, b);
        RdFlow& to_c = *b.flow;
        const auto before = net.mock.connected_pairs();
        net.connect(a, b);
        for (const std::uint32_t qpn : net.mock.connected_pairs()) {
            if (std::ranges::find(before, qpn) == before.end()) {
                net.mock.send_to(qpn, frame);
            }
        }
        net.until([&] { return a.all.empty() && b.all.size() == 1; });
        RVT_ASSERT(a.is_malformed && b.is_malformed && !c.is_malformed);
        net.talk(c, *c.flow, b, to_c);
    }
}

// ---- the NIC has no more ----

namespace {

/// Flows come about by packets, and the log says so once, with what to change.
void falls_back(Net& net, const char* hint) {
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    warnings.clear();
    net.connect(a, b);
    net.connect(a, c);
    for (const RdFlow* const flow : a.all) {
        RVT_ASSERT(!flow->is_over_nic());
    }
    RVT_ASSERT(is_warned_once_of(hint));
    net.talk(a, *a.flow, c, *c.flow);
    RVT_EQ(a.failure, 0);
}

}  // namespace

Test(rd_nic_mock, out_of_pairs_packets_do) {
    util::set_log_sink(&kSink);
    Net net;
    net.mock.most_pairs = 0;
    falls_back(net, "NIC mock0-10.1.2.3");
}

Test(rd_nic_mock, out_of_regions_packets_do) {
    util::set_log_sink(&kSink);
    Net net;
    // The receives of three endpoints, and nothing for flows.
    net.mock.most_registered = std::size_t{3} * 512 * RdNic::kFrameBytes;
    falls_back(net, "ulimit -l");
}

Test(rd_nic_mock, with_little_locked_memory_there_are_fewer_receives) {
    Net net;
    net.mock.most_registered = std::size_t{2} << 20;
    FlowNode& a = net.add();
    net.mock.most_registered = std::size_t{3} << 20;
    FlowNode& b = net.add();
    net.mock.most_registered = std::size_t{4} << 20;
    net.connect(a, b);
    RVT_ASSERT(a.flow->is_over_nic());
    net.talk(a, *a.flow, b, *b.flow);
}

Test(rd_nic_mock, without_room_for_receives_packets_do) {
    util::set_log_sink(&kSink);
    for (const char* call : {"reg_mr", "create_cq", "create_srq"}) {
        Net net;
        net.mock.failing = call;
        warnings.clear();
        FlowNode& a = net.add();
        RVT_ASSERT(is_warned_once_of("carries no flows"));
        RVT_ASSERT(is_warned_once_of("ulimit -l") == (std::string(call) == "reg_mr"));
        FlowNode& b = net.add();
        net.connect(a, b);
        RVT_ASSERT(!a.flow->is_over_nic());
        net.talk(a, *a.flow, b, *b.flow);
    }
}

// ---- the NIC fails ----

Test(rd_nic_mock, a_pair_that_fails_by_itself_ends_its_flow_alone) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    net.connect(b, c);
    RdFlow& to_c = *b.flow;
    const auto before = net.mock.connected_pairs();
    net.connect(a, b);
    for (const std::uint32_t qpn : net.mock.connected_pairs()) {
        if (std::ranges::find(before, qpn) == before.end()) {
            net.mock.fail_pair(qpn);
            break;
        }
    }
    net.until([&] { return a.ends == 1 && b.ends == 1; });
    net.talk(b, to_c, c, *c.flow);
    net.connect(a, b);
    RVT_ASSERT(a.flow->is_over_nic());
    net.talk(a, *a.flow, b, *b.flow);
}

Test(rd_nic_mock, a_pair_that_fails_under_traffic_ends_its_flow) {
    Two net;
    while (net.a.say(std::string(100, 'x'))) {  // until the other end has to take something
    }
    net.mock.fail_pair(net.mock.connected_pairs()[0]);
    net.again();
}

Test(rd_nic_mock, when_the_nic_is_gone_its_flows_end_and_packets_do) {
    Two net;
    while (net.a.say("on its way")) {
    }
    net.mock.gone();
    net.again();
    RVT_ASSERT(!net.a.flow->is_over_nic());
    RVT_ASSERT(!net.b.flow->is_over_nic());
}

Test(rd_nic_mock, when_the_nic_is_gone_before_it_carries_anything_packets_do) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    net.mock.gone();
    net.connect(a, b);
    RVT_ASSERT(!a.flow->is_over_nic());
    net.talk(a, *a.flow, b, *b.flow);
}

Test(rd_nic_mock, a_queue_that_fails_ends_the_flows_over_the_nic) {
    Two net;
    net.mock.fail_queue();
    net.again();
}

Test(rd_nic_mock, a_queue_that_gives_no_completions_ends_the_flows_over_the_nic) {
    Two net;
    net.mock.failing = "poll_cq";
    net.again();
}

Test(rd_nic_mock, a_port_that_is_down_ends_flows_when_the_nic_gives_up) {
    Two net;
    ibv_async_event event{};
    event.event_type = IBV_EVENT_PORT_ERR;
    event.element.port_num = 1;
    net.mock.events.push_back(event);
    net.poll();
    RVT_EQ(net.a.ends, 0);  // it may come back before that
    net.talk(net.a, *net.a.flow, net.b, *net.b.flow);
    net.mock.is_cut = true;
    RVT_ASSERT(net.a.say("into nowhere"));
    net.until([&] { return net.a.ends == 1; });
    net.mock.is_cut = false;
    net.again();
}

Test(rd_nic_mock, a_peer_that_owes_something_and_has_died_is_noticed) {
    Two net;
    RVT_ASSERT(net.a.say("a question"));
    net.until([&] { return net.b.heard.size() == 1 && net.a.flow->is_drained(); });
    net.a.is_owed = true;
    net.asleep = &net.b;
    net.mock.is_cut = true;
    net.until([&] { return net.a.ends == 1; });
}

Test(rd_nic_mock, a_peer_whose_death_another_frame_would_not_tell_of_is_noticed) {
    Two net;
    net.asleep = &net.b;
    RVT_ASSERT(net.a.say("a question"));  // of which no completion is asked
    net.a.is_owed = true;
    net.mock.is_cut = true;
    net.until([&] { return net.a.ends == 1; });
}

Test(rd_nic_mock, no_driver_is_asked_to_try_for_ever) {
    Two net;
    std::size_t pairs = 0;
    for (std::size_t i = 0; i < net.mock.modified.size(); ++i) {
        if ((net.mock.masks[i] & IBV_QP_RETRY_CNT) != 0) {
            RVT_ASSERT(net.mock.modified[i].retry_cnt < 7);
            ++pairs;
        }
    }
    RVT_EQ(pairs, 2);
}

Test(rd_nic_mock, a_peer_that_owes_something_and_is_only_slow_is_waited_for) {
    Two net;
    net.a.is_owed = true;
    net.asleep = &net.b;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
    net.until([&] { return std::chrono::steady_clock::now() > end; });
    RVT_EQ(net.a.ends, 0);
    net.asleep = nullptr;
    net.talk(net.a, *net.a.flow, net.b, *net.b.flow);
}

Test(rd_nic_mock, who_looks_for_silent_peers_asks_no_socket) {
    Two net;
    net.a.is_watched = false;
    const auto talk_for = [&](std::chrono::milliseconds time, bool is_left) {
        const auto end = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < end) {
            net.talk(net.a, *net.a.flow, net.b, *net.b.flow);
            RVT_ASSERT(net.a.flows->is_left_to_nic() || !is_left);
        }
    };
    talk_for(std::chrono::milliseconds(600),
             false);  // up to the last look for who does not connect
    talk_for(std::chrono::milliseconds(1200), true);  // twice that peers are looked at
}

// ---- calls that fail, and requests ----

Test(rd_nic_mock, a_pair_that_cannot_be_moved_leaves_its_peer_to_packets) {
    for (const char* call : {"modify_qp to INIT", "modify_qp to RTR", "modify_qp to RTS"}) {
        Net net;
        FlowNode& a = net.add();
        FlowNode& b = net.add();
        net.mock.failing = call;
        net.connect(a, b);
        RVT_ASSERT(!a.flow->is_over_nic());
        net.talk(a, *a.flow, b, *b.flow);
        RVT_EQ(a.failure, 0);
    }
}

Test(rd_nic_mock, a_frame_that_cannot_be_posted_ends_its_flow_alone) {
    Two net;
    FlowNode& c = net.add();
    net.connect(net.b, c);
    RdFlow& to_c = *net.b.flow;
    net.mock.failing = "post_send";
    static_cast<void>(net.a.say("lost"));
    net.until([&] { return net.a.ends == 1; });
    net.mock.failing = {};
    net.until([&] { return net.b.ends == 1; });
    net.talk(net.b, to_c, c, *c.flow);
    net.connect(net.a, net.b);
    RVT_ASSERT(net.a.flow->is_over_nic());
    net.talk(net.a, *net.a.flow, net.b, *net.b.flow);
}

Test(rd_nic_mock, receives_that_it_does_not_take_back_leave_all_to_packets) {
    for (const std::size_t taken : {0, 3}) {
        Two net;
        net.mock.failing = "post_srq_recv";
        net.mock.taken_before_failure = taken;
        net.until([&] {
            static_cast<void>(net.a.flow != nullptr && net.a.say("on its way"));
            return net.b.ends == 1 && net.a.ends == 1;
        });
        net.mock.failing = {};
        net.again();
        RVT_ASSERT(!net.b.flow->is_over_nic());
    }
}

Test(rd_nic_mock, who_cannot_arm_the_queue_is_told) {
    Two net;
    net.until([&] { return net.a.flows->arm_nic().is_ok(); });
    net.mock.failing = "req_notify_cq";
    RVT_EQ(net.a.flows->arm_nic(), EMFILE);
}

namespace {

bool is_awake(const FlowNode& node) {
    pollfd readable{.fd = node.flows->nic_wake_fd(), .events = POLLIN, .revents = 0};
    return poll(&readable, 1, 0) == 1;
}

}  // namespace

Test(rd_nic_mock, who_sleeps_is_woken_though_another_user_of_the_nic_takes_the_event) {
    Two net;
    net.until([&] { return net.a.flows->arm_nic().is_ok(); });
    RVT_ASSERT(!is_awake(net.a));
    RVT_ASSERT(net.b.say("wake up"));
    net.nic->device().progress();
    RVT_ASSERT(is_awake(net.a));
    net.until([&] { return net.a.heard.size() == 1 && net.a.flows->arm_nic().is_ok(); });
    RVT_ASSERT(!is_awake(net.a));
}

Test(rd_nic_mock, who_sleeps_is_not_kept_awake_by_the_end_of_the_last_flow) {
    Two net;
    net.until([&] { return net.a.flows->arm_nic().is_ok(); });
    for (const std::uint32_t qpn : net.mock.connected_pairs()) {
        net.mock.begin_message_to(qpn);
    }
    net.a.all.clear();
    net.a.flow->close();
    net.until([&] { return net.b.ends == 1 && net.mock.pairs_left() == 0; });
    RVT_OK(net.a.flows->arm_nic());
    RVT_ASSERT(!is_awake(net.a));
}

namespace {

constexpr ibv_wc_status kFirstFailure = IBV_WC_LOC_LEN_ERR;
constexpr ibv_wc_status kLastFailure = IBV_WC_TM_RNDV_INCOMPLETE;

/// Each failure of something of the flow between these two ends it, and no other.
template <class Fail>
void each_failure_ends_its_flow_alone(Fail fail) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    net.connect(b, c);
    RdFlow& to_c = *b.flow;
    const auto others = net.mock.connected_pairs();
    for (int status = kFirstFailure; status <= kLastFailure; ++status) {
        net.connect(a, b);
        RVT_ASSERT(a.flow->is_over_nic());
        std::uint32_t mine = 0;
        for (const std::uint32_t qpn : net.mock.connected_pairs()) {
            mine = std::ranges::find(others, qpn) == others.end() ? qpn : mine;
        }
        a.ends = 0;
        b.ends = 0;
        fail(net, *a.flow, mine, static_cast<ibv_wc_status>(status));
        net.until([&] { return a.ends == 1 && b.ends == 1 && a.all.empty(); });
        net.talk(b, to_c, c, *c.flow);
    }
}

}  // namespace

Test(rd_nic_mock, each_failure_of_a_frame_ends_its_flow_alone) {
    each_failure_ends_its_flow_alone(
        [](Net& net, RdFlow& flow, std::uint32_t, ibv_wc_status status) {
            net.mock.next_request = status;
            RVT_ASSERT(FlowNode::say("lost", flow));
        });
}

Test(rd_nic_mock, each_failure_of_a_receive_ends_its_flow_alone) {
    each_failure_ends_its_flow_alone(
        [](Net& net, RdFlow&, std::uint32_t qpn, ibv_wc_status status) {
            net.mock.fail_shared_receive(qpn, status);
        });
}

// ---- threads ----

Test(rd_nic_mock, threads_beside_the_owner_may_poll_send_and_connect) {
    Net net;
    FlowNode& a = net.add();
    FlowNode& b = net.add();
    FlowNode& c = net.add();
    net.connect(a, b);
    std::atomic<bool> is_over{false};
    std::thread watcher([&] {
        // relaxed: a flag on its own.
        while (!is_over.load(std::memory_order_relaxed)) {
            net.nic->take_events();
            a.flows->poll_for_owner();
            b.flows->send_held();
            [[maybe_unused]] const Status armed = a.flows->arm_nic();
            b.flows->trim();
            std::this_thread::yield();
        }
    });
    std::thread caller([&] { c.flows->connect(b.address()); });
    constexpr std::size_t kMessages = 2000;
    RdFlow& flow = *a.flow;
    for (std::size_t said = 0; said < kMessages;) {
        said += FlowNode::say(std::string(said % 200, 'm'), flow) ? 1 : 0;
        for (const auto& node : net.nodes) {
            node->poll();
        }
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while ((b.heard.size() < kMessages || c.all.empty()) &&
           std::chrono::steady_clock::now() < end) {
        for (const auto& node : net.nodes) {
            node->poll();
        }
    }
    RVT_EQ(b.heard.size(), kMessages);
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above
    watcher.join();
    caller.join();
    RVT_ASSERT(!c.all.empty());
}
