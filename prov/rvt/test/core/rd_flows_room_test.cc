// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// More peers than flows: idle ones are closed by agreement, and nobody notices. A failure of random
// traffic names its seed.
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/seeds.h"
#include "core/flow_host.h"
#include "core/plain_flow_user.h"
#include "protocol/faults.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// What an endpoint knows of another one.
struct Peer {
    RdFlow* flow = nullptr;
    bool is_connecting = false;
    bool is_busy = false;  // something of the application's is under way
    std::uint64_t said = 0;
    std::deque<std::string> queue;
    std::vector<std::string> heard;
};

/// An endpoint that opens a flow when it has something to say.
class Node final : public FlowHost, public PlainFlowUser, public RdFlowsUser {
  public:
    Node(fake::Wire& wire, std::uint8_t number, std::uint32_t max_flows) : FlowHost(wire, number) {
        open({.taker = this,
              .user = this,
              .own = {.incarnation = number},
              .connect_timeout_ms = 5000,
              .max_flows = max_flows});
    }
    ~Node() { kill(); }  // the flows go before what they call
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void say(std::uint8_t to, std::string text) {
        ++peers[to].said;
        peers[to].queue.push_back(std::move(text));
    }
    void poll() {
        flows->poll();
        for (RdFlow* const ended : std::exchange(ended_, {})) {
            ended->close();
        }
        for (auto& [number, peer] : peers) {
            if (!peer.queue.empty() && peer.flow == nullptr && !peer.is_connecting) {
                peer.is_connecting = true;
                flows->connect(host_address(number));
            }
            while (!peer.queue.empty() && peer.flow != nullptr && put(*peer.flow, peer.queue[0])) {
                peer.queue.pop_front();
            }
        }
    }
    [[nodiscard]] std::size_t open_flows() const {
        std::size_t count = 0;
        for (const auto& [number, peer] : peers) {
            count += peer.flow != nullptr ? 1 : 0;
        }
        return count;
    }

    void take_message(void* peer, const RdMessage& message) noexcept override {
        auto& heard = static_cast<Peer*>(peer)->heard;
        const bool is_run = has_run(message.op);
        const std::string text(
            reinterpret_cast<const char*>(is_run ? message.run : message.payload), message.length);
        if (message.op == RdOp::kEagerMore) {
            heard.back() += text;
        } else {
            heard.push_back(text);
        }
    }
    void take_malformed(void*) noexcept override { is_malformed = true; }
    bool is_idle(void* peer) noexcept override {
        const Peer& one = *static_cast<Peer*>(peer);
        return one.queue.empty() && !one.is_busy;
    }
    void flow_opened(RdFlow& opened) noexcept override {
        Peer& peer = peer_of(opened.address());
        peer.flow = &opened;
        peer.is_connecting = false;
        opened.start(&peer);
        most_open = std::max(most_open, open_flows());
    }
    void connect_failed(const Address& address, int error) noexcept override {
        Peer& peer = peer_of(address);
        peer.is_connecting = false;
        peer.queue.clear();
        failure = error;
    }
    void flow_ended(RdFlow& ended) noexcept override {
        ++ends;
        forget(ended);
    }
    void flow_left(RdFlow& left) noexcept override {
        ++lefts;
        forget(left);
    }
    void work_waits() noexcept override {}

    std::map<std::uint8_t, Peer> peers;
    std::size_t most_open = 0;
    int ends = 0;
    int lefts = 0;
    int failure = 0;
    bool is_malformed = false;

  private:
    Peer& peer_of(const Address& address) { return peers[address.gid[15]]; }
    void forget(RdFlow& flow) {
        ended_.push_back(&flow);
        Peer& peer = peer_of(flow.address());
        peer.flow = peer.flow == &flow ? nullptr : peer.flow;
    }
    static bool put(RdFlow& flow, const std::string& text) {
        const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
        if (text.size() <= kMaxRecordPayload) {
            return flow.put({.op = RdOp::kEager, .payload = bytes, .payload_bytes = text.size()},
                            RdFlow::Room::kAny);
        }
        std::byte* const run = flow.reserve_run(text.size(), sizeof(RdHeader));
        if (run == nullptr) {
            return false;
        }
        std::memcpy(run, text.data(), text.size());
        const RdHeader header{.total = text.size(), .operation = 0, .address = 0};
        flow.put_run({.op = RdOp::kEagerFirst,
                      .payload = reinterpret_cast<const std::byte*>(&header),
                      .payload_bytes = sizeof header},
                     text.size());
        return true;
    }

    std::vector<RdFlow*> ended_;  // to be closed
};

/// Endpoints 1, 2, 3 and so on.
struct Net {
    fake::Wire wire;
    std::vector<std::unique_ptr<Node>> nodes;

    Net(std::initializer_list<std::uint32_t> max_flows) {
        for (const std::uint32_t most : max_flows) {
            add(most);
        }
    }
    ~Net() {
        // An endpoint that lacks an acknowledgement waits for it, by the system's clock.
        wire.set_faults({});
        run_until([] { return false; }, 500);
    }
    Net(const Net&) = delete;
    Net& operator=(const Net&) = delete;
    void add(std::uint32_t max_flows) {
        const auto number = static_cast<std::uint8_t>(nodes.size() + 1);
        nodes.push_back(std::make_unique<Node>(wire, number, max_flows));
    }
    Node& operator[](std::uint8_t number) { return *nodes[number - 1u]; }
    void turn() {
        for (const auto& node : nodes) {
            node->poll();
        }
        now_us += 20;
    }
    template <class IsDone>
    bool run_until(IsDone is_done, int turns = 100'000) {
        for (int count = 0; count < turns && !is_done(); ++count) {
            turn();
        }
        return is_done();
    }
    std::size_t heard(std::uint8_t by, std::uint8_t from) {
        return (*this)[by].peers[from].heard.size();
    }
    void tell(std::uint8_t from, std::uint8_t to, const char* text) {
        const std::size_t before = heard(to, from);
        (*this)[from].say(to, text);
        RVT_ASSERT(run_until([&] { return heard(to, from) == before + 1; }));
        // Flows learn the time from what comes, here the acknowledgement.
        run_until([] { return false; }, 10);
    }
};

/// The second has agreed that the first closes their flow, and the first does not know that yet.
struct Agreed : Net {
    Agreed() : Net({1, 9, 9}) {
        tell(1, 2, "a");
        run_until([] { return false; }, 1000);
        Node& asker = (*this)[1];
        asker.say(3, "b");
        while (!asker.peers[2].flow->is_leaving()) {
            asker.poll();
            now_us += 20;
        }
        Node& asked = (*this)[2];
        RdFlow& flow = *asked.peers[1].flow;
        while (!flow.is_leaving() || !flow.is_drained()) {
            asker.flows->poll_for_owner();
            asked.poll();
            now_us += 20;
        }
    }
};

}  // namespace

Test(rd_flows_room, the_flow_that_has_been_idle_longest_makes_room) {
    Net net({2, 9, 9, 9});
    net.tell(1, 2, "first");
    net.tell(1, 3, "second");
    net.tell(1, 2, "again");
    net.tell(1, 4, "third");
    net.run_until([] { return false; }, 1000);
    RVT_EQ(net[3].lefts, 1);
    RVT_EQ(net[2].lefts + net[4].lefts, 0);
    RVT_EQ(net[1].lefts, 1);
    RVT_EQ(net[1].most_open, 2);
    RVT_EQ(net[1].ends + net[3].ends, 0);
}

Test(rd_flows_room, a_peer_that_was_left_is_reached_again_from_either_side) {
    Net net({1, 9, 9});
    net.tell(1, 2, "a");
    net.tell(1, 3, "b");
    net.tell(2, 1, "c");
    net.tell(3, 1, "d");
    net.tell(1, 2, "e");
    RVT_EQ(net.heard(2, 1), 2);
    RVT_EQ(net[1].ends + net[2].ends + net[3].ends, 0);
}

Test(rd_flows_room, a_flow_in_use_stays_and_the_wish_fails_in_time) {
    Net net({1, 9, 9});
    net.tell(1, 2, "a");
    net[2].peers[1].is_busy = true;
    const std::uint64_t began = now_us;
    net[1].say(3, "b");
    RVT_ASSERT(net.run_until([&] { return net[1].failure != 0; }, 600'000));
    RVT_EQ(net[1].failure, ENOMEM);
    RVT_ASSERT(now_us - began >= 5'000'000 && now_us - began < 6'000'000);
    net.tell(1, 2, "c");
    net.tell(2, 1, "d");
    RVT_EQ(net[1].lefts + net[1].ends + net[2].lefts + net[2].ends, 0);
}

Test(rd_flows_room, a_wish_is_granted_when_the_flow_has_become_idle) {
    Net net({1, 9, 9});
    net.tell(1, 2, "a");
    net[2].peers[1].is_busy = true;
    net[1].say(3, "b");
    net.run_until([] { return false; }, 5000);
    RVT_EQ(net.heard(3, 1), 0);
    net[2].peers[1].is_busy = false;
    RVT_ASSERT(net.run_until([&] { return net.heard(3, 1) == 1; }));
}

Test(rd_flows_room, who_has_asked_may_send_before_the_answer) {
    Net net({1, 9, 9});
    net.tell(1, 2, "a");
    net.run_until([] { return false; }, 1000);
    net[1].say(3, "b");
    // The second does not poll: it is asked, and does not answer.
    const auto run_without_it = [&](int turns) {
        for (int turn = 0; turn < turns; ++turn) {
            net[1].poll();
            net[2].flows->poll_for_owner();
            net[3].poll();
            now_us += 20;
        }
    };
    run_without_it(200);
    RVT_ASSERT(net[1].peers[2].flow->is_leaving());
    net[1].say(2, "c");
    run_without_it(200);
    RVT_ASSERT(net[1].peers[2].queue.empty());
    RVT_EQ(net.heard(3, 1), 0);
    RVT_ASSERT(net.run_until([&] { return net.heard(2, 1) == 2 && net.heard(3, 1) == 1; }));
    RVT_EQ(net[1].ends + net[2].ends, 0);
}

Test(rd_flows_room, a_close_and_a_message_that_cross_lose_nothing) {
    for (int delay = 0; delay < 60; ++delay) {
        Net net({1, 9, 9});
        net.tell(1, 2, "a");
        net.run_until([] { return false; }, 500);
        net[1].say(3, "b");
        net.run_until([] { return false; }, delay);
        net[2].say(1, "c");
        net[1].say(2, "d");
        cr_assert(net.run_until([&] {
            return net.heard(3, 1) == 1 && net.heard(1, 2) == 1 && net.heard(2, 1) == 2;
        }),
                  "delay %d", delay);
        for (const auto& node : net.nodes) {
            cr_assert(node->ends == 0 && node->failure == 0, "delay %d", delay);
        }
    }
}

Test(rd_flows_room, two_that_ask_each_other_agree) {
    Net net({1, 1, 9, 9});
    net.tell(1, 2, "a");
    net.run_until([] { return false; }, 500);
    net[1].say(3, "b");
    net[2].say(4, "c");
    RVT_ASSERT(net.run_until([&] { return net.heard(3, 1) == 1 && net.heard(4, 2) == 1; }));
    net.run_until([] { return false; }, 5000);
    RVT_EQ(net[1].lefts, 1);
    RVT_EQ(net[2].lefts, 1);
    RVT_EQ(net[1].ends + net[2].ends, 0);
}

Test(rd_flows_room, a_peer_that_has_no_room_is_asked_again) {
    Net net({9, 1, 9});
    net.tell(3, 2, "a");
    net[3].peers[2].is_busy = true;
    net[1].say(2, "b");
    net.run_until([] { return false; }, 5000);
    RVT_EQ(net.heard(2, 1), 0);
    RVT_EQ(net[1].failure, 0);
    net[3].peers[2].is_busy = false;
    RVT_ASSERT(net.run_until([&] { return net.heard(2, 1) == 1; }));
    RVT_EQ(net[2].most_open, 1);
}

Test(rd_flows_room, three_that_wait_for_each_other_get_on) {
    Net net({1, 1, 1});
    net[1].say(2, "a");
    net[2].say(3, "b");
    net[3].say(1, "c");
    RVT_ASSERT(net.run_until(
        [&] { return net.heard(2, 1) == 1 && net.heard(3, 2) == 1 && net.heard(1, 3) == 1; }));
    RVT_EQ(net[1].failure + net[2].failure + net[3].failure, 0);
}

Test(rd_flows_room, who_has_agreed_notices_that_the_asker_is_gone) {
    Agreed net;
    net[1].cut_off();
    const auto poll_the_second = [&](std::uint64_t for_us) {
        for (const std::uint64_t end_us = now_us + for_us; now_us < end_us; now_us += 1000) {
            net[2].poll();
        }
    };
    poll_the_second(2'000'000);
    net[2].say(1, "c");
    poll_the_second(150'000'000);
    RVT_EQ(net[2].lefts, 1);
    RVT_EQ(net[2].failure, ETIMEDOUT);
}

Test(rd_flows_room, who_has_agreed_and_does_not_hear_of_the_close_reaches_the_asker_again) {
    Agreed net;
    net[1].poll();
    net.wire.set_faults(protocol::parse_faults("drop=100%").value());
    for (const std::uint64_t end_us = now_us + 20'000'000; now_us < end_us; now_us += 1000) {
        net.turn();
    }
    RVT_EQ(net[1].lefts, 1);
    RVT_EQ(net[2].lefts + net[2].ends, 0);
    net.wire.set_faults({});
    net.tell(2, 1, "c");
    RVT_EQ(net[2].lefts, 1);
}

// ---- many, on a bad wire ----

namespace {

constexpr std::uint8_t kNodes = 8;
constexpr std::uint32_t kFlows = 3;
constexpr int kMessages = 400;

void talk(std::uint64_t seed, const char* faults) {
    const auto expect = [seed](bool is_so, const char* what) {
        if (!is_so) {
            cr_fatal("seed %llu: %s", static_cast<unsigned long long>(seed), what);
        }
    };
    Net net({});
    for (int i = 0; i < kNodes; ++i) {
        net.add(kFlows);
    }
    auto plan = protocol::parse_faults(faults).value();
    plan.seed = seed;
    net.wire.set_faults(plan);
    std::mt19937_64 random(seed);
    std::array<std::array<std::vector<std::string>, kNodes + 1>, kNodes + 1> said;
    int messages = 0;
    const auto is_done = [&] {
        if (messages < kMessages && random() % 20 == 0) {
            const auto from = static_cast<std::uint8_t>(1 + random() % kNodes);
            const auto to = static_cast<std::uint8_t>(1 + random() % kNodes);
            if (from != to) {
                std::string text = std::to_string(messages++);
                text.append(random() % 4 == 0 ? random() % 3000 : random() % 100, 'x');
                said[from][to].push_back(text);
                net[from].say(to, text);
            }
        }
        if (messages < kMessages) {
            return false;
        }
        for (std::uint8_t from = 1; from <= kNodes; ++from) {
            for (std::uint8_t to = 1; to <= kNodes; ++to) {
                const auto& heard = net[to].peers[from].heard;
                if (heard.size() != said[from][to].size() ||
                    (!heard.empty() && heard.back() != said[from][to].back())) {
                    return false;
                }
            }
        }
        return true;
    };
    expect(net.run_until(is_done, 300'000), "it hangs");
    int lefts = 0;
    for (std::uint8_t number = 1; number <= kNodes; ++number) {
        const Node& node = net[number];
        expect(node.failure == 0 && node.ends == 0 && !node.is_malformed, "a flow was lost");
        expect(node.most_open <= kFlows, "too many flows");
        lefts += node.lefts;
        for (std::uint8_t from = 1; from <= kNodes; ++from) {
            expect(net[number].peers[from].heard == said[from][number], "not what was said");
        }
    }
    expect(lefts >= kMessages / 4, "few flows were closed");
}

void talk_with_many_seeds(const char* faults, std::uint64_t count) {
    for_each_seed(count, [faults](std::uint64_t seed) { talk(seed, faults); });
}

}  // namespace

Test(rd_flows_room_traffic, arrives_whole_over_a_clean_wire, .timeout = 60) {
    talk_with_many_seeds("", 10);
}
Test(rd_flows_room_traffic, survives_loss, .timeout = 60) {
    talk_with_many_seeds("drop=2%", 10);
}
Test(rd_flows_room_traffic, survives_all_at_once, .timeout = 60) {
    talk_with_many_seeds("drop=3%,duplicate=5%,reorder=5%,corrupt=3%,delay=5%:500us", 10);
}
