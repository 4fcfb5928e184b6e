// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What faults do to the packets of two devices on the loopback interface, and what a device says of
// those that went wrong. The traffic that survives them is in core/packet_traffic_test.cc.
#include "conform/fixture.h"

#include <string>

#include "util/log.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::uint32_t kAlways = 1'000'000;

const roce::ReceiveQueue& queue_of(Pair<RoceAs>& pair) {
    return pair.backend().packet_device(kB).receive_queue();
}

std::string said_at_end;

constexpr util::LogSink kEndSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kInfo; },
    .write = [](util::LogLevel, util::LogArea, const char*, int,
                const char* text) noexcept { (said_at_end += text) += '\n'; }};

}  // namespace

Test(roce_faults, a_changed_bit_is_found, .timeout = 30) {
    constexpr unsigned kDatagrams = 500;
    RoceAs::attr.faults = {.corrupt = kAlways};
    Pair<RoceAs> pair({.type = QpType::kUd, .cap = {.max_send_wr = 1000}, .cq_depth = 1000});
    RVT_OK(pair.b().post_recv(1));
    for (unsigned i = 1; i <= kDatagrams; ++i) {
        RVT_OK(pair.post_send());
        while (queue_of(pair).corrupted() < i) {
            pair.pass_us(5);
        }
    }
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
}

Test(roce_faults, a_packet_that_nothing_overtakes_comes_in_time, .timeout = 30) {
    RoceAs::attr.faults = {.reorder = kAlways};
    Pair<RoceAs> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send());
    while (!queue_of(pair).holds_packets()) {
        pair.backend().settle();
    }
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    pair.pass_us(200);
    RVT_ASSERT(not(queue_of(pair).holds_packets()));
    RVT_EQ(pair.received().wr_id, 3);
}

Test(roce_faults, nobody_sleeps_beside_a_packet_that_is_held, .timeout = 30) {
    RoceAs::attr.faults = {.delay = kAlways, .delay_us = 50'000};
    Pair<RoceAs> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send());
    while (!queue_of(pair).holds_packets()) {
        pair.backend().settle();
    }
    pair.b().device->sleep_on(-1, -1);
    pair.pass_us(50'000);
    RVT_EQ(pair.received().wr_id, 3);
}

Test(roce_faults, a_device_says_at_its_end_what_it_has_dropped, .timeout = 30) {
    RoceAs::attr.faults = {.corrupt = kAlways};
    util::set_log_sink(&kEndSink);
    {
        Pair<RoceAs> pair({.type = QpType::kUd});
        RVT_OK(pair.post_send());
        while (queue_of(pair).corrupted() == 0) {
            pair.pass_us(5);
        }
        said_at_end.clear();
    }
    cr_assert(said_at_end == "what went wrong at conform1: wrong_icrc 1\n", "%s",
              said_at_end.c_str());
}

Test(roce_faults, of_packets_that_are_whole_it_says_why_they_went_nowhere, .timeout = 30) {
    util::set_log_sink(&kEndSink);
    {
        Pair<Roce> pair({.type = QpType::kUd});
        const Stats& stats = pair.b().device->stats();
        RVT_OK(pair.post_send());  // there is no receive for it
        while (stats.sum(Stat::kDrops) == 0) {
            pair.backend().settle();
        }
        said_at_end.clear();
    }
    cr_assert(said_at_end == "what went wrong at conform1: drops 1\n", "%s", said_at_end.c_str());
}

Test(roce_faults, where_nothing_went_wrong_it_says_nothing, .timeout = 30) {
    util::set_log_sink(&kEndSink);
    {
        Pair<Roce> pair;
        RVT_OK(pair.b().post_recv(3));
        RVT_OK(pair.post_send());
        RVT_EQ(pair.received().wr_id, 3);
        pair.sent();
        said_at_end.clear();
    }
    cr_assert(said_at_end.empty(), "%s", said_at_end.c_str());
}
