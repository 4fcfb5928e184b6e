// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers of other hosts whose connection makes room for another one, as the engine knows them.
#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/nic_net.h"

using namespace rvt;
using test::NicEnd;

namespace {

/// Beside the two an endpoint that has room for connections with both, and further ones.
struct Crowd : test::NicNet {
    Crowd() : third(make(5004)) {
        max_flows = 2;
        narrow = make(5003);
        for (const auto* const peer : {b.get(), third.get()}) {
            RVT_OK(narrow->av.insert(peer->own));
        }
        RVT_EQ(narrow->av.insert({.family = b->own.family, .port = 5999, .ip = b->own.ip}).value(),
               kNobody);
        RVT_EQ(a->av.insert(narrow->own).value(), kNarrow);
    }
    void poll_all() {
        poll();
        third->poll();
        narrow->poll();
    }
    template <class Is>
    void all_until(Is is) {
        while (!is()) {
            poll_all();
        }
    }
    /// A message to the narrow one that waits until it is received, and a second one, behind which
    /// it is there.
    void send_unexpected(std::uint64_t number) {
        char heard[sizeof word];
        RVT_OK(b->send(number, {word, sizeof word}, core::RdFlags::kMatchComplete, 1, kNarrow));
        RVT_OK(b->send(number + 1, {word, sizeof word}, core::RdFlags::kNone, 1, kNarrow));
        RVT_OK(narrow->recv(number + 1, {heard, sizeof heard}));
        all_until([&] { return narrow->is_done(number + 1) && b->is_done(number + 1); });
    }
    /// Every endpoint polls, the narrow one last; something has arrived for it then.
    void turn() {
        RVT_OK(a->send(kChat, {word, sizeof word}, core::RdFlags::kNone, 1, kNarrow));
        poll();
        third->poll();
        narrow->poll();
    }
    template <class Is>
    void turn_until(Is is) {
        while (!is()) {
            turn();
        }
    }

    static constexpr std::uint64_t kNarrow = 1;  // in the vectors of the first two
    static constexpr std::uint64_t kThird = 1;   // in that of the narrow one
    static constexpr std::uint64_t kNobody = 2;
    static constexpr std::uint64_t kChat = 1;
    char word[8] = "to all";
    std::unique_ptr<NicEnd> third;
    std::unique_ptr<NicEnd> narrow;
};

/// How long an endpoint takes to say often that nothing is under way with its only peer.
std::uint64_t ns_of_looks(const test::FlowStation& station) {
    constexpr int kLooks = 200;
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
               static_cast<std::uint64_t>(time.tv_nsec);
    };
    const std::uint64_t begin = now();
    for (int i = 0; i < kLooks; ++i) {
        RVT_ASSERT(station.is_idle_with_first());
    }
    return now() - begin;
}

}  // namespace

Test(rd_left, nothing_is_prepared_for_a_peer_whose_place_another_has, .timeout = 60) {
    Crowd net;
    std::vector<char> out(8192);
    std::vector<char> in(out.size());
    for (const std::uint64_t number : {2, 3}) {  // the second finds the peer connected
        RVT_OK(net.b->recv(number, {in.data(), in.size()}));
        RVT_OK(net.narrow->send(number, {out.data(), out.size()}));
        net.turn_until([&] { return net.b->is_done(number); });
    }
    RVT_OK(net.narrow->av.remove(0));
    RVT_OK(net.third->recv(4, {in.data(), in.size()}));
    RVT_OK(net.narrow->send(4, {net.word, sizeof net.word}, core::RdFlags::kNone, 1, net.kThird));
    net.turn_until([&] { return net.third->is_done(4); });
    RVT_OK(net.narrow->send(5, {net.word, sizeof net.word}, core::RdFlags::kNone, 1, net.kNobody));
    std::vector<std::string> others;  // where the peer was that nobody knows any more
    for (std::size_t bytes = 256; bytes <= 2048; ++bytes) {
        others.emplace_back(bytes, '\xa5');
    }
    for (int i = 0; i < 200; ++i) {
        net.narrow->poll();
    }
    RVT_OK(net.third->recv(6, {in.data(), in.size()}));
    RVT_OK(net.narrow->send(6, {net.word, sizeof net.word}, core::RdFlags::kNone, 1, net.kThird));
    net.turn_until([&] { return net.third->is_done(6); });
}

/// An operation of the one that is there now may have the name of one of the lost.
Test(rd_left, a_message_of_a_lost_peer_is_not_acknowledged_to_who_comes_after_it, .timeout = 60) {
    Crowd net;
    const test::FlowStation& station = *net.stations.back();  // the narrow one's
    RVT_EQ(net.b->av.insert(net.narrow->own).value(), Crowd::kNarrow);
    net.send_unexpected(1);
    char in[8] = "";
    RVT_OK(net.third->recv(3, {in, sizeof in}));
    RVT_OK(net.narrow->send(3, {net.word, sizeof net.word}, core::RdFlags::kNone, 1, net.kThird));
    net.all_until([&] { return net.third->is_done(3) && net.narrow->is_done(3); });
    // The flow that has been idle for longest is asked to end, and closed without an answer.
    RVT_OK(net.narrow->send(4, {net.word, sizeof net.word}, core::RdFlags::kNone, 1, net.kNobody));
    net.all_until([&] { return station.is_any_leaving(); });
    net.b.reset();
    net.all_until([&] { return !station.is_any_leaving(); });

    net.b = net.make(5002);
    RVT_EQ(net.b->av.insert(net.a->own).value(), 0);
    RVT_EQ(net.b->av.insert(net.narrow->own).value(), Crowd::kNarrow);
    net.send_unexpected(5);
    RVT_OK(net.narrow->recv(1, {in, sizeof in}));
    net.all_until([&] { return net.narrow->is_done(1); });
    for (int i = 0; i < 200; ++i) {
        net.poll_all();
    }
    RVT_ASSERT(!net.b->is_done(5));
    RVT_OK(net.narrow->recv(5, {in, sizeof in}));
    net.all_until([&] { return net.b->is_done(5); });
    RVT_EQ(net.b->status(5), core::WcStatus::kSuccess);
}

Test(rd_left, messages_that_have_been_received_cost_no_later_look_at_a_peer, .timeout = 60) {
    constexpr std::uint64_t kMessages = 20'000;
    test::NicNet net;
    char word[8] = "kept";
    net.poll_for_a_while();
    const std::uint64_t before = ns_of_looks(*net.stations[1]);
    for (std::uint64_t i = 0; i < kMessages; ++i) {
        while (!net.a->send(i, {word, sizeof word}).is_ok()) {
            net.poll();
        }
    }
    net.until([&] { return net.a->done.back().op_context == test::context_of(kMessages - 1); });
    for (std::uint64_t i = 0; i < kMessages; ++i) {
        RVT_OK(net.b->recv(i, {word, sizeof word}));
        net.b->poll();
    }
    net.until([&] { return net.b->is_done(kMessages - 1); });
    net.poll_for_a_while();
    RVT_ASSERT(ns_of_looks(*net.stations[1]) < 50 * before);
}
