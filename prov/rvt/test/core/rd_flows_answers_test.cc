// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided accesses and their answers in flows between endpoints: which leave together, and what
// answers tell of the packets that have come.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/flow_pair.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kLongBytes = 32 * 256 - 64;  // packets, but for what comes with them
constexpr std::size_t kAnswersInPacket = 10;       // of 256 bytes, with where they come from

/// A write of so many bytes.
void write(const FlowTalker& from, std::size_t bytes) {
    std::byte* const run = from.flow->reserve_run(bytes, sizeof(RdAccess));
    RVT_ASSERT(run != nullptr);
    std::memset(run, 'x', bytes);
    const RdAccess access{.key = 1, .address = 2, .length = bytes, .operation = 3};
    from.flow->put_run({.op = RdOp::kWrite,
                        .payload = reinterpret_cast<const std::byte*>(&access),
                        .payload_bytes = sizeof access},
                       bytes);
}

void answer(const FlowTalker& from) {
    const RdOutcome outcome{};
    RVT_ASSERT(from.flow->put({.op = RdOp::kAccessDone,
                               .data = 3,
                               .payload = reinterpret_cast<const std::byte*>(&outcome),
                               .payload_bytes = sizeof outcome},
                              RdFlow::Room::kReply));
}

}  // namespace

Test(rd_flows, writes_behind_others_leave_together_with_the_next_poll) {
    Quiet net;
    for (int i = 0; i < 5; ++i) {
        write(net.a, 150);
    }
    net.b.poll();
    RVT_EQ(net.b.heard.size(), 1u);
    net.a.poll();
    net.b.poll();
    RVT_EQ(net.b.heard.size(), 5u);
}

// The first is answered before the packet has come that asks for an acknowledgement. Of so many
// packets it would otherwise not wait.
Test(rd_flows, answers_of_one_poll_leave_in_one_frame_with_the_acknowledgement) {
    constexpr std::size_t kWrites = 40;  // of a packet each
    Quiet net;
    net.b.on_message = [&] { answer(net.b); };
    write(net.a, 180);
    net.b.poll();
    for (std::size_t i = 1; i < kWrites; ++i) {
        write(net.a, 180);
    }
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1u);
    net.a.poll();  // settles what it has been told of
    net.b.poll();
    net.a.packets = 0;
    net.a.poll();
    RVT_EQ(net.a.heard.size(), kWrites);
    RVT_ASSERT(net.a.flow->is_drained());
    RVT_EQ(net.a.packets, (kWrites - 1) / kAnswersInPacket + 1);
}

Test(rd_flows, data_that_is_asked_for_at_once_leaves_together) {
    Quiet net;
    net.b.on_message = [&] {
        std::byte* const run = net.b.flow->reserve_run(50, 0);
        std::memset(run, 'x', 50);
        net.b.flow->put_run({.op = RdOp::kReadData, .data = 5}, 50);
    };
    for (const char* text : {"first", "held", "with it"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    net.b.poll();
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1u);
    net.a.poll();  // settles what it has been told of
    net.b.poll();
    RVT_EQ(net.a.flows->poll(), 1u);  // packets
    RVT_EQ(net.a.heard.size(), 3u);
}

// The answer that is under way is no sign that others will follow.
Test(rd_flows, a_message_right_behind_an_answer_leaves_at_once) {
    Quiet net;
    net.b.on_message = [&] { answer(net.b); };
    for (int turn = 0; turn < 3; ++turn) {
        net.a.heard.clear();
        write(net.a, 150);
        net.b.poll();
        write(net.b, 150);
        net.a.poll();
        RVT_EQ(net.a.heard.size(), 2u);
    }
}

/// How many packets come to A, which only listens, in so many polls of both.
static std::uint64_t come_back(Quiet& net, int turns) {
    net.a.packets = 0;
    net.run_until([] { return false; }, turns);
    return net.a.packets;
}

// Who has copied what it has sent does not wait for the acknowledgement. It leaves before the other
// side stops asking for packets.
Test(rd_flows, what_nobody_waits_for_is_acknowledged_when_nothing_else_comes) {
    Quiet net;
    RVT_ASSERT(net.a.say(1, "one way"));
    net.b.poll();
    RVT_ASSERT(net.b.flows->take_quiet());  // as it has been until now
    RVT_EQ(come_back(net, 4), 0u);
    RVT_EQ(come_back(net, 4), 1u);
    RVT_ASSERT(net.b.flows->take_quiet());
    RVT_ASSERT(net.a.flow->is_drained());
}

Test(rd_flows, who_computes_does_not_keep_a_sender_waiting_again) {
    Quiet net;
    net.stay();
    for (const bool waits : {true, false, false}) {
        net.hear("and computes");
        net.a.poll();
        net.a.poll();  // settles what it has been told of
        RVT_EQ(net.a.flow->is_drained(), !waits);
        now_us += 1000;
        net.run_until([] { return false; }, 1000);
    }
}

// Both send, and each goes on when it has the other's message and its own has arrived: who has both
// first would leave the other one waiting.
Test(rd_flows, who_exchanges_messages_and_computes_keeps_nobody_waiting) {
    constexpr std::uint64_t kComputesUs = 200;
    constexpr std::uint64_t kPollUs = 1;
    Quiet net;
    const std::string text(1000, 'x');
    for (int turn = 0; turn < 100; ++turn) {
        net.a.heard.clear();
        net.b.heard.clear();
        RVT_ASSERT(net.a.lend(1, text));
        RVT_ASSERT(net.b.lend(1, text));
        const std::uint64_t begin = now_us;
        const auto is_done = [](const FlowTalker& one) {
            return !one.heard.empty() && one.flow->is_drained();
        };
        while (!is_done(net.a) || !is_done(net.b)) {
            for (FlowTalker* const one : {&net.a, &net.b}) {
                if (!is_done(*one)) {
                    one->poll();
                }
            }
            now_us += kPollUs;
            RVT_ASSERT(now_us < begin + kComputesUs);
        }
        now_us += kComputesUs;
    }
}

// Of so many packets the acknowledgement of a part leaves at once. That of the end would delay the
// reply.
Test(rd_flows, a_reply_takes_the_acknowledgement_of_a_long_message_along) {
    Quiet net;
    net.stay();
    const std::string text(kLongBytes, 'x');
    for (int turn = 0; turn < 3; ++turn) {
        net.hear(text);
        RVT_ASSERT(net.b.say(1, "reply"));
        net.a.packets = 0;
        net.a.poll();
        RVT_EQ(net.a.packets, 1u);
        net.a.poll();  // settles what it has been told of
        RVT_ASSERT(net.a.flow->is_drained());
        RVT_EQ(come_back(net, 1000), 0u);
    }
}

Test(rd_flows, a_long_message_without_reply_is_acknowledged_with_the_third_poll) {
    Quiet net;
    net.stay();
    net.hear(std::string(kLongBytes, 'x'));
    RVT_EQ(come_back(net, 2), 0u);
    RVT_EQ(come_back(net, 1), 1u);
}

// An injected write counts when the peer has it.
Test(rd_flows, a_write_that_asks_for_no_answer_is_acknowledged_soon) {
    Quiet net;
    const RdAccess access{.key = 1, .address = 2, .length = 0, .operation = 0};
    RVT_ASSERT(net.a.flow->put({.op = RdOp::kWriteLine,
                                .payload = reinterpret_cast<const std::byte*>(&access),
                                .payload_bytes = sizeof access},
                               RdFlow::Room::kAny));
    net.b.poll();
    RVT_EQ(come_back(net, 4), 1u);
}

// To the next message for that peer it costs nothing, to one for another a system call.
Test(rd_flows, a_message_to_one_peer_takes_no_acknowledgement_for_another_along) {
    FlowTrio net;
    RVT_ASSERT(net.b.say(1, "to A"));
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1u);
    RVT_ASSERT(net.a.say(2, "to C"));  // the latest flow
    net.c.poll();
    RVT_EQ(net.c.heard.size(), 1u);
    net.b.packets = 0;
    net.b.poll();
    RVT_EQ(net.b.packets, 0u);
    RVT_ASSERT(net.run_until([&] { return net.b.flow->is_drained(); }));
}
