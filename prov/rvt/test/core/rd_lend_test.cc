// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large messages over NICs, from send to completion: endpoints of this process, and the mock for
// their NIC, which reads them.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "core/flow_node.h"
#include "core/nic_net.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using test::context_of;
using test::Pages;
using Net = test::NicNet;
constexpr std::size_t kBytes = test::kPagesBytes;

/// One message under way, which the NIC has been asked to read and does not.
struct Stuck : Net {
    Stuck() {
        mock.is_rdma_stopped = true;
        RVT_OK(b->recv(1, to.all()));
        RVT_OK(a->send(1, from.all()));
        poll_for_a_while();
        RVT_ASSERT(!a->is_done(1) && !b->is_done(1));
    }
    /// Both ends hear of it, and can go on.
    void both_fail() {
        until([&] { return a->is_done(1) && b->is_done(1); });
        RVT_EQ(a->status(1), WcStatus::kPeerDead);
        RVT_EQ(b->status(1), WcStatus::kPeerDead);
        RVT_ASSERT(to.is('-'));
        mock.is_rdma_stopped = false;
        talk();
    }
    Pages from{'a'};
    Pages to{'-'};
};

}  // namespace

TestSuite(rd_lend, .timeout = 60);

// ---- what is read ----

Test(rd_lend, a_large_message_is_read_from_where_it_lies) {
    Net net;
    for (const std::size_t bytes : {std::size_t{33} << 10, std::size_t{100'001}, kBytes}) {
        const Pages from('a', bytes);
        const Pages to('-', bytes);
        const unsigned before = net.mock.reads;
        net.pass(from.all(), to.all());
        RVT_ASSERT(to.is('a'));
        RVT_EQ(net.mock.reads, before + 1);
    }
}

Test(rd_lend, a_buffer_is_the_senders_again_when_it_has_been_read) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    for (const RdFlags flags :
         {RdFlags::kNone, RdFlags::kDeliveryComplete, RdFlags::kMatchComplete}) {
        net.mock.is_rdma_stopped = true;
        const std::uint64_t number = ++net.last;
        RVT_OK(net.b->recv(number, to.all()));
        RVT_OK(net.a->send(number, from.all(), flags));
        net.poll_for_a_while();
        RVT_ASSERT(!net.a->is_done(number) && !net.b->is_done(number));
        net.mock.is_rdma_stopped = false;
        net.talk();  // which takes the NIC to what waits
        net.until([&] { return net.a->is_done(number); });
        RVT_ASSERT(net.b->is_done(number) && to.is('a'));
    }
}

Test(rd_lend, a_message_that_nobody_expects_stays_with_its_sender) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RVT_OK(net.a->send(1, from.all()));
    net.poll_for_a_while();
    RVT_ASSERT(!net.a->is_done(1));
    RVT_EQ(net.mock.reads, 0);
    RVT_OK(net.b->recv(1, to.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 1);
}

Test(rd_lend, what_a_receive_has_no_room_for_is_not_read) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    constexpr std::size_t kRoom = 100'000;
    RVT_OK(net.b->recv(1, to.part(0, kRoom)));
    RVT_OK(net.a->send(1, from.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_EQ(net.a->status(1), WcStatus::kSuccess);
    RVT_EQ(net.b->status(1), WcStatus::kTruncated);
    RVT_EQ(net.b->completion(1)->len, kRoom);
    RVT_EQ(net.b->completion(1)->extra, kBytes - kRoom);
    RVT_ASSERT(to.is('a', 0, kRoom) && to.is('-', kRoom, kBytes));
}

Test(rd_lend, a_receive_without_room_reads_nothing) {
    Net net;
    const Pages from('a');
    RVT_OK(net.b->recv(1, {nullptr, 0}));
    RVT_OK(net.a->send(1, from.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_EQ(net.b->status(1), WcStatus::kTruncated);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, a_buffer_for_several_takes_them_one_behind_the_other) {
    Net net;
    constexpr std::size_t kEach = 64u << 10;
    const Pages from('a', kEach);
    const Pages too('b', kEach);
    const Pages to('-');
    const iovec all = to.all();
    RVT_OK(net.b->engine.recv({.iov = &all,
                               .iov_count = 1,
                               .context = context_of(9),
                               .flags = RdFlags::kMultiRecv | RdFlags::kCompletion}));
    for (const Pages* const each : {&from, &too, &from}) {
        const iovec whole = each->all();
        RVT_OK(net.a->engine.send({.iov = &whole, .iov_count = 1, .context = context_of(9)}));
    }
    net.until(
        [&] { return std::ranges::count(net.b->done, context_of(9), &Cqe::op_context) == 3; });
    RVT_EQ(net.mock.reads, 3);
    RVT_ASSERT(to.is('a', 0, kEach) && to.is('b', kEach, 2 * kEach) &&
               to.is('a', 2 * kEach, 3 * kEach) && to.is('-', 3 * kEach, kBytes));
}

Test(rd_lend, a_message_that_was_looked_at_can_be_claimed) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RVT_OK(net.a->send(1, from.all()));
    net.until([&] {
        net.b->done.clear();
        RVT_OK(net.b->recv(1, {nullptr, 0}, RdFlags::kPeek | RdFlags::kClaim));
        net.poll();
        return net.b->status(1) == WcStatus::kSuccess;
    });
    RVT_EQ(net.b->completion(1)->len, kBytes);
    RVT_EQ(net.mock.reads, 0);
    net.b->done.clear();
    RVT_OK(net.b->recv(1, to.all(), RdFlags::kClaim));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_EQ(net.mock.reads, 1);
    RVT_ASSERT(to.is('a'));
}

Test(rd_lend, a_message_that_is_discarded_is_not_read) {
    Net net;
    const Pages from('a');
    RVT_OK(net.a->send(1, from.all()));
    net.until([&] {
        net.b->done.clear();
        RVT_OK(net.b->recv(1, {nullptr, 0}, RdFlags::kPeek | RdFlags::kDiscard));
        net.poll();
        return net.b->status(1) == WcStatus::kSuccess;
    });
    net.until([&] { return net.a->is_done(1); });
    RVT_EQ(net.a->status(1), WcStatus::kSuccess);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, messages_are_matched_in_their_order_whatever_their_size) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    char small[2][8] = {"first", "second"};
    char heard[2][8] = {};
    net.mock.is_rdma_stopped = true;
    for (const iovec& each : {from.all(), iovec{small[0], 8}, iovec{small[1], 8}}) {
        RVT_OK(net.a->send(7, each));  // the same tag
    }
    for (const auto& [number, each] : {std::pair{1, to.all()}, std::pair{2, iovec{heard[0], 8}},
                                       std::pair{3, iovec{heard[1], 8}}}) {
        RVT_OK(net.b->engine.recv({.iov = &each,
                                   .iov_count = 1,
                                   .tag = 7,
                                   .context = context_of(static_cast<std::uint64_t>(number)),
                                   .flags = RdFlags::kTagged | RdFlags::kCompletion}));
    }
    net.until([&] { return net.b->is_done(2) && net.b->is_done(3); });
    RVT_ASSERT(std::string_view(heard[0]) == "first" && std::string_view(heard[1]) == "second");
    RVT_ASSERT(!net.b->is_done(1));
    net.mock.is_rdma_stopped = false;
    net.talk();
    net.until([&] { return net.b->is_done(1); });
    RVT_EQ(net.b->completion(1)->len, kBytes);
    RVT_ASSERT(to.is('a'));
}

Test(rd_lend, more_messages_than_the_nic_is_given_at_a_time_all_arrive) {
    Net net;
    constexpr std::size_t kEach = 40'000;
    constexpr std::size_t kMessages = 60;
    const Pages from('a', kEach * kMessages);
    const Pages to('-', kEach * kMessages);
    for (std::size_t i = 0; i < kMessages; ++i) {
        from.memory[i * kEach] = static_cast<char>('A' + i % 26);
        RVT_OK(net.b->recv(i, to.part(i * kEach, kEach)));
    }
    for (std::size_t i = 0; i < kMessages; ++i) {
        RVT_OK(net.a->send(i, from.part(i * kEach, kEach)));
    }
    net.until(
        [&] { return net.a->done.size() >= kMessages + 2 && net.b->done.size() >= kMessages + 2; });
    RVT_ASSERT(std::equal(from.memory, from.memory + from.bytes, to.memory));
    RVT_EQ(net.mock.reads, kMessages);
}

// ---- what goes in frames ----

Test(rd_lend, without_registrations_at_the_other_end_frames_do) {
    Net net({}, {.keeps = false});
    const Pages from('a');
    const Pages to('-');
    net.pass(from.all(), to.all());
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, what_cannot_be_registered_by_the_sender_goes_in_frames) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    net.mock.reg_mr_error = ENOMEM;
    net.pass(from.all(), to.all());
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, what_cannot_be_registered_by_the_receiver_comes_in_frames) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RVT_OK(net.a->send(1, from.all()));
    net.poll_for_a_while();
    net.mock.reg_mr_error = ENOMEM;
    RVT_OK(net.b->recv(1, to.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, what_is_longer_than_all_that_is_kept_goes_in_frames) {
    Net net;
    const Pages from('a', 17u << 20);
    const Pages to('-', 17u << 20);
    net.pass(from.all(), to.all());
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, shared_memory_goes_in_frames) {
    Net net;
    const Pages shared('a', kBytes, MAP_SHARED);
    const Pages to('-');
    net.pass(shared.all(), to.all());
    RVT_ASSERT(to.is('a'));
    const Pages from('b');
    net.pass(from.all(), shared.all());
    RVT_ASSERT(shared.is('b'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, several_pieces_go_in_frames) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    const iovec pieces[] = {from.part(0, kBytes / 2), from.part(kBytes / 2, kBytes / 2)};
    const iovec places[] = {to.part(0, 1000), to.part(1000, kBytes - 1000)};
    RVT_OK(net.b->recv(1, to.all()));
    RVT_OK(net.a->send(1, pieces[0], RdFlags::kNone, 2));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_ASSERT(to.is('a'));
    std::fill_n(to.memory, kBytes, '-');
    RVT_OK(net.b->recv(2, places[0], RdFlags::kNone, 2));
    RVT_OK(net.a->send(2, from.all()));
    net.until([&] { return net.a->is_done(2) && net.b->is_done(2); });
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, what_is_injected_is_not_lent) {
    Net net({.eager_max = 1024});
    const Pages from('a', kMaxInjectSize);
    const Pages to('-', kMaxInjectSize);
    net.pass(from.all(), to.all(), RdFlags::kInject);
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 0);
}

// ---- what goes wrong ----

Test(rd_lend, a_read_that_is_refused_ends_both_operations) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RVT_OK(net.a->send(1, from.all()));
    net.poll_for_a_while();
    for (verbs::MockNic::Region& region : net.mock.regions) {
        region.access &= ~IBV_ACCESS_REMOTE_READ;
    }
    RVT_OK(net.b->recv(1, to.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_EQ(net.a->status(1), WcStatus::kPeerDead);
    RVT_EQ(net.b->status(1), WcStatus::kPeerDead);
    RVT_ASSERT(to.is('-'));
    net.talk();
}

Test(rd_lend, a_pair_of_the_reader_that_fails_ends_both_operations) {
    Stuck net;
    net.mock.fail_pair(net.mock.connected_pairs()[1]);
    net.both_fail();
}

Test(rd_lend, a_pair_of_the_sender_that_fails_ends_both_operations) {
    Stuck net;
    net.mock.fail_pair(net.mock.connected_pairs()[0]);
    net.both_fail();
}

Test(rd_lend, a_sender_that_does_not_answer_ends_the_receive) {
    Stuck net;
    net.mock.is_cut = true;
    net.mock.is_rdma_stopped = false;
    char word[] = "are you there?";
    RVT_OK(net.b->send(2, {word, sizeof word}));
    net.until([&] { return net.b->is_done(1); });
    RVT_EQ(net.b->status(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.to.is('-'));
}

Test(rd_lend, a_receiver_that_is_gone_before_it_reads_ends_the_send) {
    Net net;
    const Pages from('a');
    RVT_OK(net.a->send(1, from.all()));
    net.poll_for_a_while();
    net.mock.is_cut = true;
    net.until([&] { return net.a->is_done(1); });
    RVT_EQ(net.a->status(1), WcStatus::kPeerDead);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, a_receive_ends_when_the_nic_writes_no_more) {
    Stuck net;
    net.mock.tells_last_receive = false;
    net.mock.is_rdma_unfinished = true;
    net.mock.fail_pair(net.mock.connected_pairs()[1]);
    net.until([&] { return net.a->is_done(1); });  // the connection is gone at both ends
    net.poll_for_a_while();
    RVT_ASSERT(!net.b->is_done(1));
    net.mock.finish_rdma();
    net.both_fail();
}

Test(rd_lend, a_receive_ends_with_its_pair_when_the_nic_says_nothing) {
    Stuck net;
    net.mock.tells_last_receive = false;
    net.mock.is_rdma_unfinished = true;
    net.mock.fail_pair(net.mock.connected_pairs()[1]);
    net.both_fail();
}

Test(rd_lend, reads_that_wait_for_others_end_with_them) {
    Stuck net;
    constexpr std::size_t kEach = 40'000;
    const Pages more('b', 40 * kEach);
    const Pages place('-', 40 * kEach);
    for (std::size_t i = 0; i < 40; ++i) {
        RVT_OK(net.b->recv(100 + i, place.part(i * kEach, kEach)));
        RVT_OK(net.a->send(100 + i, more.part(i * kEach, kEach)));
    }
    net.poll_for_a_while();
    net.mock.fail_pair(net.mock.connected_pairs()[1]);
    for (std::uint64_t i = 0; i < 40; ++i) {
        net.until([&] { return net.a->is_done(100 + i) && net.b->is_done(100 + i); });
        RVT_EQ(net.b->status(100 + i), WcStatus::kPeerDead);
    }
    RVT_ASSERT(place.is('-'));
    net.both_fail();
}

Test(rd_lend, when_the_nic_is_gone_both_operations_end_and_packets_do) {
    Stuck net;
    net.mock.gone();
    net.both_fail();
    const Pages from('b');
    net.pass(from.all(), net.to.all());
    RVT_ASSERT(net.to.is('b'));
}

Test(rd_lend, an_endpoint_that_is_closed_reads_no_more) {
    Stuck net;
    RVT_EQ(net.mock.connected_pairs().size(), 2);
    net.b.reset();
    net.mock.is_rdma_stopped = false;
    net.until([&] { return net.a->is_done(1); });
    RVT_ASSERT(net.mock.connected_pairs().empty());  // nobody can read it any more
    RVT_EQ(net.a->status(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.to.is('-'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, an_endpoint_that_is_closed_lends_no_more) {
    Stuck net;
    net.a.reset();
    net.mock.is_rdma_stopped = false;
    net.until([&] { return net.b->is_done(1); });
    RVT_EQ(net.b->status(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.to.is('-'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, a_sender_that_hears_of_an_end_is_read_no_more) {
    Stuck net;
    // The reader does not hear of it, and its NIC goes on.
    net.mock.fail_pair(net.mock.connected_pairs()[0]);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!net.a->is_done(1)) {
        RVT_ASSERT(std::chrono::steady_clock::now() < end);
        net.opened->take_events();
        net.a->poll();
    }
    RVT_EQ(net.a->status(1), WcStatus::kPeerDead);
    std::fill_n(net.from.memory, kBytes, 'x');
    net.mock.is_rdma_stopped = false;
    net.until([&] { return net.b->is_done(1); });
    RVT_EQ(net.b->status(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.to.is('-'));
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend, a_message_that_waits_to_be_announced_can_be_cancelled) {
    Net net({.rendezvous_headers = 1});
    const Pages from('a');
    RVT_OK(net.a->send(1, from.all()));
    RVT_OK(net.a->send(2, from.all()));
    net.poll_for_a_while();
    RVT_OK(net.a->engine.cancel(context_of(2)));
    net.until([&] { return net.a->is_done(2); });
    RVT_EQ(net.a->status(2), WcStatus::kCanceled);
    RVT_EQ(net.a->engine.cancel(context_of(1)), ENOENT);  // the peer may read it
    const Pages to('-');
    RVT_OK(net.b->recv(1, to.all()));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_ASSERT(to.is('a'));
}

Test(rd_lend, who_announces_nonsense_is_hung_up_on) {
    Net net;
    struct {
        RdHeader header{.total = kBytes, .operation = 1, .address = 4096};
        RdReadable readable{.key = 5};
    } payload;
    struct Case {
        std::uint8_t flags;
        std::uint64_t key;
        std::size_t bytes;
    };
    constexpr std::uint8_t kBoth = wire::kReadable | wire::kContiguous;
    for (const Case& each :
         {Case{wire::kReadable, 5, sizeof payload},
          Case{kBoth, std::uint64_t{1} << 32, sizeof payload},
          Case{kBoth, 5, sizeof payload.header}, Case{wire::kContiguous, 5, sizeof payload}}) {
        Address address = net.nic->address();
        address.port =
            static_cast<std::uint16_t>(6000 + each.bytes + each.flags + (each.key >> 32));
        test::FlowNode liar(net.wire, address, net.nic.get());
        liar.flows->connect(to_address(net.b->own));
        const auto poll_until = [&](auto is) {
            net.until([&] {
                liar.poll();
                return is();
            });
        };
        poll_until([&] { return liar.flow != nullptr; });
        payload.readable.key = each.key;
        RVT_ASSERT(liar.flow->put({.op = RdOp::kRendezvous,
                                   .flags = each.flags,
                                   .payload = reinterpret_cast<const std::byte*>(&payload),
                                   .payload_bytes = each.bytes},
                                  RdFlow::Room::kAny));
        poll_until([&] { return liar.ends == 1; });
    }
    net.talk();
}

Test(rd_lend, the_way_of_a_peer_says_by_which_nic_and_how_often_memory_was_registered_already) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    net.pass(from.all(), to.all());
    net.pass(from.all(), to.all());
    const std::string way = net.a->engine.describe_peer(0);
    cr_assert(way.find("by NIC mock0") != std::string::npos, "%s", way.c_str());
    const core::Stats& stats = net.opened->device().stats();
    RVT_ASSERT(stats.sum(core::Stat::kRegionsFound) != 0);
    const std::string found = "registrations found " +
                              std::to_string(stats.sum(core::Stat::kRegionsFound)) + ", kept " +
                              std::to_string(stats.sum(core::Stat::kRegionsKept)) + ",";
    cr_assert(way.find(found) != std::string::npos, "%s", way.c_str());
}
