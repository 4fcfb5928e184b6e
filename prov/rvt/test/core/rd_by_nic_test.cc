// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large accesses over NICs: endpoints of this process, and the mock for their NIC, which reads and
// writes.
#include <algorithm>
#include <string_view>

#include <sys/mman.h>

#include "core/device_memory.h"
#include "core/flow_node.h"
#include "core/nic_net.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using test::context_of;
using test::Pages;
constexpr std::size_t kBytes = test::kPagesBytes;
constexpr std::size_t kVeryLarge = 4 * kBytes;
constexpr Access kBoth = Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteWrite;

/// What the first accesses is the second's `there`.
struct Net : test::NicNet {
    explicit Net(Access rights = kBoth, const test::NicEndAttr& second = {})
        : NicNet({}, second), key(b->open(there.all(), rights)) {}

    /// Asked for with the second access, the NIC's key has come.
    void learn_key() {
        const Pages one('1');
        for (const std::uint64_t number : {1, 2}) {
            RVT_OK(a->write(number, one.all(), key, there.memory));
            until([&] { return a->is_done(number); });
        }
        poll_for_a_while();
        a->done.clear();
        std::fill_n(there.memory, kBytes, '-');
        RVT_EQ(mock.writes, 0);
    }
    /// Another region, of which the first has not heard.
    std::uint32_t open(const Pages& pages, Access rights = kBoth) {
        return b->open(pages.all(), rights);
    }
    WcStatus end_of(std::uint64_t number) {
        until([&] { return a->is_done(number); });
        return a->status(number);
    }

    Pages there{'-'};
    std::uint32_t key;
};

/// A write under way, which the NIC has been asked for and does not do.
struct Stuck : Net {
    Stuck() {
        learn_key();
        mock.is_rdma_stopped = true;
        RVT_OK(a->write(1, from.all(), key, there.memory));
        poll_for_a_while();
        RVT_ASSERT(!a->is_done(1));
    }
    Pages from{'a'};
};

/// Memory of which each access waits for the key.
struct VeryLarge : Net {
    Pages whole{'-', kVeryLarge};
    Pages from{'a', kVeryLarge};
};

}  // namespace

TestSuite(rd_by_nic, .timeout = 60);

// ---- what the NIC does ----

Test(rd_by_nic, two_accesses_go_in_frames_and_the_next_ones_by_the_nic) {
    Net net;
    const Pages to('-');
    for (const char what : {'a', 'b', 'c'}) {
        const Pages from(what);
        const auto number = static_cast<std::uint64_t>(what);
        RVT_OK(net.a->write(number, from.all(), net.key, net.there.memory));
        RVT_EQ(net.end_of(number), WcStatus::kSuccess);
        RVT_ASSERT(net.there.is(what));
        RVT_EQ(net.mock.writes, what == 'c' ? 1 : 0);
        net.poll_for_a_while();
    }
    RVT_OK(net.a->read(1, to.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(to.is('c'));
    RVT_EQ(net.mock.reads, 1);
}

Test(rd_by_nic, a_region_that_is_accessed_once_is_not_registered_with_the_nic) {
    Net net;
    net.talk();  // they are connected
    const std::size_t before = net.mock.registered;
    const Pages from('a');
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    net.poll_for_a_while();
    RVT_EQ(net.mock.registered, before);
    RVT_OK(net.a->write(2, from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    net.poll_for_a_while();
    RVT_EQ(net.mock.registered, before + kBytes);
}

Test(rd_by_nic, a_target_that_does_nothing_is_read_and_written) {
    Net net;
    net.learn_key();
    const Pages from('a');
    const Pages to('-');
    const auto poll_only_a = [&](std::uint64_t number) {
        for (int i = 0; i < 1000 && !net.a->is_done(number); ++i) {
            net.a->poll();
        }
        RVT_EQ(net.a->status(number), WcStatus::kSuccess);
    };
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    poll_only_a(1);
    RVT_ASSERT(net.there.is('a'));
    RVT_OK(net.a->read(2, to.all(), net.key, net.there.memory));
    poll_only_a(2);
    RVT_ASSERT(to.is('a'));
}

Test(rd_by_nic, a_part_of_the_region_is_what_changes) {
    Net net;
    net.learn_key();
    const Pages from('a');
    constexpr std::size_t kBegin = 5001;
    constexpr std::size_t kPart = 100'001;
    RVT_OK(net.a->write(1, from.part(0, kPart), net.key, net.there.memory + kBegin));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_EQ(net.mock.writes, 1);
    RVT_ASSERT(net.there.is('-', 0, kBegin) && net.there.is('a', kBegin, kBegin + kPart) &&
               net.there.is('-', kBegin + kPart, kBytes));
}

Test(rd_by_nic, addresses_may_count_from_the_regions_first_byte) {
    Net net;
    const std::uint32_t key = net.b->open(net.there.all(), kBoth | Access::kZeroBased);
    const Pages from('a');
    const auto* const begin = static_cast<const char*>(context_of(4096));
    for (const std::uint64_t number : {1, 2, 3}) {
        std::fill_n(net.there.memory, kBytes, '-');
        RVT_OK(net.a->write(number, from.part(0, 100'000), key, begin));
        RVT_EQ(net.end_of(number), WcStatus::kSuccess);
        RVT_ASSERT(net.there.is('-', 0, 4096) && net.there.is('a', 4096, 104'096) &&
                   net.there.is('-', 104'096, kBytes));
        net.poll_for_a_while();
    }
    RVT_EQ(net.mock.writes, 1);
}

Test(rd_by_nic, more_than_the_nic_takes_at_a_time_is_done_in_the_end) {
    Net net;
    net.learn_key();
    constexpr std::size_t kParts = 40;
    constexpr std::size_t kPart = 6000;
    const Pages from('a');
    const Pages to('-');
    net.mock.is_rdma_stopped = true;
    for (std::size_t i = 0; i < kParts; ++i) {
        RVT_OK(net.a->write(i, from.part(i * kPart, kPart), net.key, net.there.memory + i * kPart));
        RVT_OK(net.a->read(100 + i, to.part(i * kPart, kPart), net.key, net.there.memory));
    }
    net.poll_for_a_while();
    RVT_ASSERT(net.a->done.empty());
    net.mock.is_rdma_stopped = false;
    net.talk();  // which takes the NIC to what waits
    for (std::size_t i = 0; i < kParts; ++i) {
        RVT_EQ(net.end_of(i), WcStatus::kSuccess);
        RVT_EQ(net.end_of(100 + i), WcStatus::kSuccess);
    }
    RVT_ASSERT(net.there.is('a', 0, kParts * kPart));
    RVT_EQ(net.mock.writes, kParts);
    RVT_EQ(net.mock.reads, kParts);
}

Test(rd_by_nic, a_message_behind_writes_arrives_behind_them) {
    Net net;
    net.learn_key();
    const Pages from('a');
    char word[] = "written";
    char heard[sizeof word] = {};
    RVT_OK(net.b->recv(99, {heard, sizeof heard}));
    net.mock.is_rdma_stopped = true;
    for (std::uint64_t i = 0; i < 20; ++i) {  // more than the NIC takes at a time
        RVT_OK(net.a->write(i, from.part(0, 10'000), net.key, net.there.memory + i * 10'000));
    }
    RVT_OK(net.a->send(99, {word, sizeof word}));
    net.poll_for_a_while();
    RVT_ASSERT(!net.b->is_done(99));
    net.mock.is_rdma_stopped = false;
    RVT_OK(net.b->send(98, {word, sizeof word}));  // which takes the NIC to what waits
    net.until([&] {
        if (net.b->is_done(99)) {
            RVT_ASSERT(net.there.is('a', 0, 200'000));
        }
        return net.b->is_done(99) && net.a->done.size() == 21;
    });
}

Test(rd_by_nic, a_fenced_access_waits_for_those_before_it) {
    Stuck net;
    const Pages too('b');
    RVT_OK(net.a->write(2, too.part(0, 8), net.key, net.there.memory, RdFlags::kFence));
    net.poll_for_a_while();
    RVT_ASSERT(net.there.is('-') && !net.a->is_done(2));
    net.mock.is_rdma_stopped = false;
    net.talk();
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('b', 0, 8) && net.there.is('a', 8, kBytes));
}

/// What is injected and reported to nobody comes in a frame, for which the target has to poll.
Test(rd_by_nic, a_fenced_access_waits_for_injected_writes) {
    for (const bool is_write : {true, false}) {
        Net net;
        net.learn_key();
        const Pages buffer('a');
        char word[] = "injected";
        const iovec from{word, 8};
        const RdRemote to{.addr = reinterpret_cast<std::uint64_t>(net.there.memory),
                          .len = from.iov_len,
                          .key = net.key};
        RVT_OK(net.a->engine.rma({.is_write = true,
                                  .iov = &from,
                                  .iov_count = 1,
                                  .remote = &to,
                                  .remote_count = 1,
                                  .dest = 0,
                                  .flags = RdFlags::kInject}));
        RVT_OK(net.a->access(is_write, 1, buffer.all(), net.key, net.there.memory, RdFlags::kFence,
                             nullptr));
        for (int i = 0; i < 1000 && !net.a->is_done(1); ++i) {
            net.a->poll();
        }
        RVT_EQ(net.end_of(1), WcStatus::kSuccess);
        net.poll_for_a_while();
        const std::string_view left = is_write ? "aaaaaaaa" : "injected";
        RVT_ASSERT(std::string_view(buffer.memory, left.size()) == left);
        RVT_ASSERT(std::string_view(net.there.memory, left.size()) == left);
    }
}

Test(rd_by_nic, the_target_counts_what_it_asks_to_count) {
    Net net(kBoth, {.wants_rma_events = true});
    net.learn_key();
    RVT_EQ(net.b->remote_writes.value(), 2);
    const Pages from('a');
    const Pages to('-');
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    RVT_OK(net.a->read(2, to.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    net.until(
        [&] { return net.b->remote_writes.value() == 3 && net.b->remote_reads.value() == 1; });
    RVT_EQ(net.mock.writes, 1);
    RVT_EQ(net.mock.reads, 1);
}

// ---- what waits for the key ----

Test(rd_by_nic, a_very_large_first_access_waits_for_the_key_and_goes_by_the_nic) {
    VeryLarge net;
    const Pages to('-', kVeryLarge);
    RVT_OK(net.a->write(1, net.from.all(), net.open(net.whole), net.whole.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.whole.is('a'));
    RVT_EQ(net.mock.writes, 1);
    RVT_OK(net.a->read(2, to.all(), net.open(net.whole), net.whole.memory));
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 1);
}

Test(rd_by_nic, what_is_posted_behind_one_that_waits_for_the_key_is_behind_it) {
    VeryLarge net;
    const Pages too('b');
    char word[] = "written";
    char heard[sizeof word] = {};
    const std::uint32_t key = net.open(net.whole);
    RVT_OK(net.b->recv(99, {heard, sizeof heard}));
    RVT_OK(net.a->write(1, net.from.all(), key, net.whole.memory));
    RVT_OK(net.a->write(2, too.all(), key, net.whole.memory));
    RVT_OK(net.a->send(99, {word, sizeof word}));
    net.until([&] { return net.b->is_done(99); });
    RVT_ASSERT(net.whole.is('b', 0, kBytes) && net.whole.is('a', kBytes, kVeryLarge));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    RVT_EQ(net.mock.writes, 2);
}

Test(rd_by_nic, a_very_large_access_where_the_nic_has_no_key_goes_in_frames) {
    VeryLarge net;
    net.mock.reg_mr_error = ENOMEM;
    RVT_OK(net.a->write(1, net.from.all(), net.open(net.whole), net.whole.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.whole.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, a_very_large_access_that_is_not_permitted_is_refused) {
    VeryLarge net;
    const std::uint32_t closed = net.open(net.whole);
    net.b->close(closed);
    RVT_OK(net.a->write(1, net.from.all(), closed, net.whole.memory));
    RVT_EQ(net.end_of(1), WcStatus::kRemAccessErr);
    RVT_OK(net.a->write(2, net.from.all(), net.open(net.whole, Access::kRemoteRead),
                        net.whole.memory));
    RVT_EQ(net.end_of(2), WcStatus::kRemAccessErr);
    RVT_ASSERT(net.whole.is('-'));
    net.talk();
}

Test(rd_by_nic, who_waits_for_the_key_of_a_peer_that_is_gone_is_told_so) {
    VeryLarge net;
    const std::uint32_t key = net.open(net.whole);
    net.talk();  // they are connected
    RVT_OK(net.a->write(1, net.from.all(), key, net.whole.memory));
    RVT_ASSERT(!net.a->is_done(1));
    net.mock.fail_pair(net.mock.connected_pairs()[0]);
    RVT_EQ(net.end_of(1), WcStatus::kPeerDead);
    RVT_EQ(net.mock.writes, 0);
}

// ---- what goes in frames ----

Test(rd_by_nic, small_accesses_go_in_frames) {
    Net net;
    net.learn_key();
    const Pages from('a');
    RVT_OK(net.a->write(1, from.part(0, kMaxOrderedRmaSize), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a', 0, kMaxOrderedRmaSize));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, data_for_the_targets_queue_comes_with_frames) {
    Net net;
    net.learn_key();
    const Pages from('a');
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory, RdFlags::kData));
    net.until([&] { return net.a->is_done(1) && net.b->is_done(0); });
    RVT_EQ(net.b->completion(0)->len, kBytes);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, keys_of_the_applications_choice_go_in_frames) {
    Net net(kBoth, {.has_user_keys = true});
    const Pages from('a');
    constexpr std::uint64_t kOwn = 0x123456789abc;
    RVT_OK(net.b->keys
               ->add_user({.addr = reinterpret_cast<std::uint64_t>(net.there.memory),
                           .length = kBytes,
                           .iova = 0,
                           .access = kBoth,
                           .pd = test::NicEnd::kPd},
                          kOwn)
               .status());
    for (const std::uint64_t number : {1, 2, 3}) {
        RVT_OK(net.a->write(number, from.all(), kOwn, nullptr));
        RVT_EQ(net.end_of(number), WcStatus::kSuccess);
        net.poll_for_a_while();
    }
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, a_region_that_the_targets_nic_does_not_take_is_reached_by_frames) {
    Net net;
    net.mock.reg_mr_error = ENOMEM;
    const Pages from('a');
    for (const std::uint64_t number : {1, 2}) {
        RVT_OK(net.a->write(number, from.all(), net.key, net.there.memory));
        RVT_EQ(net.end_of(number), WcStatus::kSuccess);
        net.poll_for_a_while();
    }
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, a_buffer_that_cannot_be_kept_registered_goes_in_frames) {
    Net net;
    net.learn_key();
    const Pages shared('a', kBytes, MAP_SHARED);
    RVT_OK(net.a->write(1, shared.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    std::fill_n(net.there.memory, kBytes, 'b');
    RVT_OK(net.a->read(2, shared.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    RVT_ASSERT(shared.is('b'));
    RVT_EQ(net.mock.writes, 0);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_by_nic, several_pieces_go_in_frames) {
    Net net;
    net.learn_key();
    const Pages from('a');
    const iovec pieces[] = {from.part(0, 1000), from.part(1000, kBytes - 1000)};
    const RdRemote there{
        .addr = reinterpret_cast<std::uint64_t>(net.there.memory), .len = kBytes, .key = net.key};
    RVT_OK(net.a->engine.rma({.is_write = true,
                              .iov = pieces,
                              .iov_count = 2,
                              .remote = &there,
                              .remote_count = 1,
                              .context = context_of(1),
                              .flags = RdFlags::kCompletion}));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

// ---- what is not permitted ----

Test(rd_by_nic, what_the_region_does_not_permit_is_refused_and_the_connection_stays) {
    Net net(Access::kRemoteRead);
    const Pages to('x');
    RVT_OK(net.a->read(1, to.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    net.poll_for_a_while();
    RVT_OK(net.a->write(2, to.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(2), WcStatus::kRemAccessErr);
    RVT_OK(net.a->read(3, to.all(), net.key, net.there.memory + 1));
    RVT_EQ(net.end_of(3), WcStatus::kRemAccessErr);
    RVT_ASSERT(net.there.is('-'));
    RVT_EQ(net.mock.writes, 0);
    RVT_EQ(net.mock.reads, 0);
    RVT_EQ(net.mock.connected_pairs().size(), 2);
    net.talk();
}

Test(rd_by_nic, the_nic_knows_no_more_than_the_region) {
    Net net(Access::kRemoteRead);
    const Pages to('x');
    for (const std::uint64_t number : {1, 2}) {
        RVT_OK(net.a->read(number, to.all(), net.key, net.there.memory));
        RVT_EQ(net.end_of(number), WcStatus::kSuccess);
    }
    net.poll_for_a_while();
    const auto exposed = std::ranges::find_if(net.mock.regions, [](const auto& region) {
        return region.is_there &&
               (region.access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0;
    });
    RVT_ASSERT(exposed != net.mock.regions.end());
    RVT_EQ(exposed->addr, reinterpret_cast<std::uint64_t>(net.there.memory));
    RVT_EQ(exposed->length, kBytes);
    RVT_EQ(exposed->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE), 0);
}

Test(rd_by_nic, what_is_not_for_peers_is_not_registered_for_them) {
    Net net(Access::kLocalWrite);
    const Pages from('a');
    const std::size_t before = net.mock.registered;
    for (const std::uint64_t number : {1, 2}) {
        RVT_OK(net.a->write(number, from.all(), net.key, net.there.memory));
        RVT_EQ(net.end_of(number), WcStatus::kRemAccessErr);
    }
    net.poll_for_a_while();
    RVT_EQ(net.mock.registered, before);
    RVT_ASSERT(net.there.is('-'));
}

// ---- regions that are closed ----

Test(rd_by_nic, a_closed_region_is_out_of_reach_and_the_connection_stays) {
    Net net;
    net.learn_key();
    const Pages from('a');
    const std::size_t before = net.mock.registered;
    net.b->close(net.key);
    RVT_EQ(net.mock.registered, before - kBytes);
    net.poll_for_a_while();
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kRemAccessErr);
    RVT_ASSERT(net.there.is('-'));
    RVT_EQ(net.mock.connected_pairs().size(), 2);
    net.talk();
}

Test(rd_by_nic, who_accesses_a_region_that_was_just_closed_is_told_so) {
    Stuck net;
    net.b->close(net.key);
    net.mock.is_rdma_stopped = false;
    char word[] = "are you there?";
    RVT_OK(net.a->send(2, {word, sizeof word}));  // which takes the NIC to what waits
    RVT_EQ(net.end_of(1), WcStatus::kRemAccessErr);
    RVT_ASSERT(net.there.is('-'));
    net.talk();
}

Test(rd_by_nic, a_region_that_follows_another_in_its_memory_is_learned_anew) {
    Net net;
    net.learn_key();
    net.b->close(net.key);
    net.key = net.b->open(net.there.all(), kBoth);
    net.learn_key();
    const Pages from('a');
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 1);
}

// ---- what goes wrong ----

Test(rd_by_nic, a_pair_that_fails_ends_the_access_and_another_takes_its_place) {
    for (const std::size_t end : {0, 1}) {
        Stuck net;
        net.mock.fail_pair(net.mock.connected_pairs()[end]);
        RVT_EQ(net.end_of(1), WcStatus::kPeerDead);
        RVT_ASSERT(net.there.is('-'));
        net.mock.is_rdma_stopped = false;
        net.talk();
        net.learn_key();
    }
}

Test(rd_by_nic, a_buffer_is_the_applications_again_when_the_nic_has_let_go) {
    Stuck net;
    net.mock.tells_last_receive = false;
    net.mock.is_rdma_unfinished = true;
    net.mock.fail_pair(net.mock.connected_pairs()[0]);
    net.poll_for_a_while();
    RVT_ASSERT(!net.a->is_done(1));
    net.mock.finish_rdma();
    RVT_EQ(net.end_of(1), WcStatus::kPeerDead);
    net.mock.is_rdma_stopped = false;
    net.talk();
}

Test(rd_by_nic, when_the_nic_is_gone_the_access_ends_and_packets_do) {
    Stuck net;
    net.mock.gone();
    RVT_EQ(net.end_of(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.there.is('-'));
    net.mock.is_rdma_stopped = false;
    net.talk();
    RVT_OK(net.a->write(2, net.from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(2), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
}

Test(rd_by_nic, an_endpoint_that_is_closed_does_nothing_any_more) {
    Stuck net;
    net.a.reset();
    net.mock.is_rdma_stopped = false;
    for (int i = 0; i < 1000; ++i) {
        net.poll();
    }
    RVT_ASSERT(net.there.is('-'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic, a_target_that_is_closed_ends_the_access) {
    Stuck net;
    net.b.reset();
    net.mock.is_rdma_stopped = false;
    RVT_EQ(net.end_of(1), WcStatus::kPeerDead);
    RVT_ASSERT(net.there.is('-'));
}

Test(rd_by_nic, an_answer_that_nobody_asked_for_changes_nothing) {
    Net net;
    net.learn_key();
    Address address = net.nic->address();
    address.port = 6000;
    test::FlowNode liar(net.wire, address, net.nic.get());
    liar.flows->connect(to_address(net.a->own));
    const auto poll_until = [&](auto is) {
        net.until([&] {
            liar.poll();
            return is();
        });
    };
    poll_until([&] { return liar.flow != nullptr; });
    const RdNicKey answer{.key = net.key,
                          .address = 0,
                          .length = ~std::uint64_t{0},
                          .nic_address = 0,
                          .nic_key = 5,
                          .rights = static_cast<std::uint32_t>(kBoth)};
    const auto say = [&](RdOp op, const void* payload, std::size_t bytes) {
        RVT_ASSERT(liar.flow->put({.op = op,
                                   .data = net.key,
                                   .payload = static_cast<const std::byte*>(payload),
                                   .payload_bytes = bytes},
                                  RdFlow::Room::kAny));
    };
    say(RdOp::kNicKey, &answer, sizeof answer);
    say(RdOp::kKeyEnds, nullptr, 0);
    liar.poll();
    net.poll_for_a_while();
    const Pages from('a');
    RVT_OK(net.a->write(1, from.all(), net.key, net.there.memory));
    RVT_EQ(net.end_of(1), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 1);
    RVT_EQ(liar.ends, 0);
    say(RdOp::kNicKey, &answer, sizeof answer - 1);
    poll_until([&] { return liar.ends == 1; });
}

Test(rd_by_nic, an_answer_before_it_is_asked_for_changes_nothing) {
    Net net;
    Address address = net.nic->address();
    address.port = 6000;
    test::FlowNode hasty(net.wire, address, net.nic.get(), net.registrations);
    hasty.flows->connect(to_address(net.a->own));
    const auto poll_for_a_while = [&] {
        for (int i = 0; i < 200; ++i) {
            hasty.poll();
            net.poll();
        }
    };
    net.until([&] {
        hasty.poll();
        return hasty.flow != nullptr;
    });
    const std::uint64_t dest = net.a->av.insert(to_sock_addr(address)).value();
    const Pages from('a');
    const iovec local = from.all();
    const RdRemote remote{.addr = 0, .len = local.iov_len, .key = 77};
    const auto write = [&](std::uint64_t number) {
        RVT_OK(net.a->engine.rma({.is_write = true,
                                  .iov = &local,
                                  .iov_count = 1,
                                  .remote = &remote,
                                  .remote_count = 1,
                                  .dest = dest,
                                  .context = context_of(number),
                                  .flags = RdFlags::kCompletion}));
        poll_for_a_while();
    };
    write(1);
    const RdNicKey answer{.key = remote.key,
                          .address = 0,
                          .length = remote.len,
                          .nic_address = 0,
                          .nic_key = 5,
                          .rights = static_cast<std::uint32_t>(kBoth)};
    RVT_ASSERT(hasty.flow->put({.op = RdOp::kNicKey,
                                .payload = reinterpret_cast<const std::byte*>(&answer),
                                .payload_bytes = sizeof answer},
                               RdFlow::Room::kAny));
    poll_for_a_while();
    write(2);
    RVT_EQ(hasty.ends, 0);
    RVT_EQ(net.mock.writes, 0);
}
