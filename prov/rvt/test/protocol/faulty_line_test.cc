// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a line with faults lets through, what it changes, and when it gives out what it holds.
#include "protocol/faulty_line.h"

#include "common/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <vector>

using namespace rvt;
using namespace rvt::protocol;

namespace {

constexpr std::uint32_t kAlways = 1'000'000;
constexpr std::size_t kBytes = 64;

/// A line, and the numbers of the packets that have come out of it.
struct Line {
    FaultyLine line;
    std::vector<int> out{};
    std::vector<KeptPacket> changed{};
    std::uint64_t now = 0;

    void put(int number) {
        std::array<std::byte, kBytes> bytes{};
        bytes[0] = static_cast<std::byte>(number);
        if (line.passes({.bytes = bytes}, now)) {
            out.push_back(number);
        }
        take_due();
    }
    void pass_us(std::uint64_t us) {
        now += us;
        take_due();
    }
    void take_due() {
        while (auto due = line.take_due(now)) {
            out.push_back(std::to_integer<int>(due->packet().bytes[0]));
            changed.push_back(std::move(*due));
        }
    }
};

Line line_with(const FaultPlan& plan) {
    return {.line = FaultyLine(plan)};
}

}  // namespace

Test(faulty_line, lets_everything_pass_without_a_fault) {
    Line line = line_with({});
    line.put(1);
    line.put(2);
    RVT_ASSERT(line.out == std::vector({1, 2}));
    RVT_ASSERT(line.changed.empty());
}

Test(faulty_line, loses_a_packet_for_good) {
    Line line = line_with({.drop = kAlways});
    line.put(1);
    line.pass_us(1'000'000);
    RVT_ASSERT(line.out.empty());
    RVT_EQ(line.line.held(), 0);
}

Test(faulty_line, gives_a_packet_twice) {
    Line line = line_with({.duplicate = kAlways});
    line.put(1);
    line.put(2);
    RVT_ASSERT(line.out == std::vector({1, 1, 2, 2}));
}

Test(faulty_line, changes_one_bit_that_an_icrc_covers) {
    Line line = line_with({.corrupt = kAlways});
    std::set<std::size_t> places;
    for (int i = 0; i < 4000; ++i) {
        line.put(0);
        const auto bytes = line.changed.back().packet().bytes;
        int bits = 0;
        for (std::size_t at = 0; at < kBytes; ++at) {
            const int here = std::popcount(std::to_integer<unsigned>(bytes[at]));
            bits += here;
            if (here != 0) {
                places.insert(at);
            }
        }
        RVT_EQ(bits, 1);
    }
    RVT_EQ(places.size(), kBytes - 1);
    cr_assert(not(places.contains(4)), "the byte that routers may change");
}

Test(faulty_line, delays_no_longer_than_asked) {
    Line line = line_with({.delay = kAlways, .delay_us = 50});
    for (int i = 0; i < 100; ++i) {
        line.put(i);
    }
    RVT_ASSERT(line.out.empty());
    line.pass_us(25);
    RVT_ASSERT(line.out.size() > 10 && line.out.size() < 90);
    line.pass_us(25);
    RVT_EQ(line.out.size(), 100);
}

Test(faulty_line, lets_a_packet_be_overtaken_by_as_many_as_the_dice_say) {
    const FaultPlan plan{.reorder = kAlways};
    const auto overtaking = static_cast<int>(FaultInjector(plan).next().overtaken_by);
    Line line = line_with(plan);
    line.put(0);
    line.line.set_plan({});
    for (int i = 1; i <= overtaking; ++i) {
        RVT_ASSERT(std::count(line.out.begin(), line.out.end(), 0) == 0);
        line.put(i);
    }
    RVT_EQ(line.out.size(), overtaking + 1);
    RVT_EQ(line.out.back(), 0);
}

Test(faulty_line, does_not_wait_for_ever_to_be_overtaken) {
    Line line = line_with({.reorder = kAlways});
    line.put(1);
    RVT_EQ(line.line.held(), 1);
    line.pass_us(200);
    RVT_ASSERT(line.out == std::vector({1}));
}

Test(faulty_line, loses_what_it_has_no_room_for) {
    Line line = line_with({.delay = kAlways, .delay_us = 1000});
    for (int i = 0; i < 3000; ++i) {
        line.put(0);
    }
    RVT_EQ(line.line.held(), 1024);
}
