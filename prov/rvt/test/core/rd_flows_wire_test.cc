// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows over a bad wire of backend/fake: messages arrive in order and whole whatever it does. A
// failure of random traffic names its seed.
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "common/seeds.h"
#include "core/flow_pair.h"
#include "protocol/faults.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kMessages = 120;

/// What the message with this number says; some are many packets long.
std::string text_of(std::uint64_t seed, int number) {
    std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(number));
    const std::size_t most = random() % 4 == 0 ? 6000 : 300;
    std::string text(random() % most, '\0');
    std::ranges::generate(text, [&, i = number]() mutable { return static_cast<char>(i++); });
    return text;
}

void expect(std::uint64_t seed, bool is_so, const char* what) {
    if (!is_so) {
        cr_fatal("seed %llu: %s", static_cast<unsigned long long>(seed), what);
    }
}

void talk(std::uint64_t seed, const char* faults) {
    FlowPair net;
    auto plan = protocol::parse_faults(faults).value();
    plan.seed = seed;
    net.wire.set_faults(plan);
    net.a.flows->connect(net.b.address());
    net.b.flows->connect(net.a.address());
    int said[2] = {};
    FlowTalker* nodes[2] = {&net.a, &net.b};
    const auto is_done = [&] {
        for (int i : {0, 1}) {
            FlowTalker& node = *nodes[i];
            while (node.flow != nullptr && said[i] < kMessages &&
                   node.say(static_cast<std::uint64_t>(said[i]), text_of(seed, said[i]))) {
                ++said[i];
            }
        }
        const auto all = [&](const FlowTalker& node) {
            return node.heard.size() == kMessages &&
                   node.heard.back().text.size() == text_of(seed, kMessages - 1).size();
        };
        return all(net.a) && all(net.b) && net.a.flow->is_drained() && net.b.flow->is_drained();
    };
    expect(seed, net.run_until(is_done, 400'000), "it hangs");
    for (FlowTalker* node : nodes) {
        expect(seed, node->opens == 1 && node->ends == 0 && !node->is_malformed, "a flow was lost");
        for (int i = 0; i < kMessages; ++i) {
            const Heard& heard = node->heard[static_cast<std::size_t>(i)];
            expect(seed, heard.tag == static_cast<std::uint64_t>(i), "a message out of order");
            expect(seed, heard.text == text_of(seed, i), "a message with other bytes");
        }
    }
}

void talk_with_many_seeds(const char* faults, std::uint64_t count) {
    for_each_seed(count, [faults](std::uint64_t seed) { talk(seed, faults); });
}

}  // namespace

Test(rd_flows, a_lost_packet_is_repeated_and_not_those_behind_it) {
    FlowPair net;
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

// Peers give requests up, and make new ones, while answers to the former ones are on their way.
Test(rd_flows_traffic, connects_that_cross_survive_answers_that_come_too_late, .timeout = 240) {
    constexpr std::uint64_t kSlowUs = 1'500'000;
    for_each_seed(100, [](std::uint64_t seed) {
        FlowPair net;
        auto plan = protocol::parse_faults("delay=100%:1400000us").value();
        plan.seed = seed;
        net.wire.set_faults(plan);
        const std::uint64_t began = now_us;
        net.a.flows->connect(net.b.address());
        net.b.flows->connect(net.a.address());
        net.run_until([&] { return now_us - began > kSlowUs; });
        net.wire.set_faults({});
        net.run_until([&] { return net.a.flow != nullptr && net.b.flow != nullptr; });
        expect(seed, net.a.failure == 0 && net.b.failure == 0, "somebody is told of a failure");
        expect(seed, net.a.flow != nullptr && net.b.flow != nullptr, "they do not come together");
    });
}
