// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided operations that wait for others, and those of several pieces: each goes where it is
// meant to, and none passes what it must not pass.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kAll = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr std::size_t kLong = 1u << 20;

std::uint64_t written(const Pair& pair) {
    return fi_cntr_read(pair.a.cntrs[3].get());
}

std::uint64_t fetched(const Pair& pair) {
    return fi_cntr_read(pair.a.cntrs[2].get());
}

std::uint64_t failed(const Pair& pair) {
    return fi_cntr_readerr(pair.a.cntrs[3].get());
}

void send_one(Pair& pair) {
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, in));
    pair.post([&] { return fi_send(pair.a.ep.get(), "go", 3, nullptr, pair.a.peer, nullptr); });
    pair.until([&] { return std::strcmp(in, "go") == 0; });
}

ssize_t write_to(Pair& pair, const void* from, std::size_t bytes, std::uint64_t key,
                 std::uint64_t offset = 0) {
    return fi_write(pair.a.ep.get(), from, bytes, nullptr, pair.a.peer, offset, key, nullptr);
}

/// An operation on values of 64 bits.
/// @param operand  nullptr: it has none.
fi_msg_atomic atomic_of(const Pair& pair, const fi_ioc* operand, std::span<const fi_rma_ioc> remote,
                        fi_op operation) {
    return {.msg_iov = operand,
            .desc = nullptr,
            .iov_count = operand != nullptr ? 1u : 0u,
            .addr = pair.a.peer,
            .rma_iov = remote.data(),
            .rma_iov_count = remote.size(),
            .datatype = FI_UINT64,
            .op = operation,
            .context = nullptr,
            .data = 0};
}

/// An operation of which pieces go to two regions; afterwards each of them is found by its own key.
template <class Post>
void expect_own_regions(Post post_to) {
    Pair pair;
    std::uint64_t one[2] = {};
    std::uint64_t two[2] = {};
    const auto mr_one = pair.b.reg(one, sizeof one, kAll, 1);
    const auto mr_two = pair.b.reg(two, sizeof two, kAll, 2);
    post_to(pair);
    pair.until([&] { return written(pair) == 1; });
    const std::uint64_t value = 0x4711;
    pair.post([&] { return write_to(pair, &value, sizeof value, 1, 8); });
    pair.until([&] { return written(pair) == 2; });
    pair.until([&] { return one[1] == value; });
    RVT_EQ(two[1], 0u);
}

}  // namespace

Test(access_order, a_write_to_several_regions_teaches_the_key_of_each) {
    expect_own_regions([](Pair& pair) {
        const std::uint64_t values[2] = {1, 2};
        const iovec part{const_cast<std::uint64_t*>(values), sizeof values};
        const fi_rma_iov remote[] = {{0, 8, 1}, {0, 8, 2}};
        const fi_msg_rma msg{&part, nullptr, 1, pair.a.peer, remote, 2, nullptr, 0};
        pair.post([&] { return fi_writemsg(pair.a.ep.get(), &msg, FI_INJECT); });
    });
}

Test(access_order, an_atomic_on_several_regions_teaches_the_key_of_each) {
    expect_own_regions([](Pair& pair) {
        std::uint64_t values[2] = {1, 2};
        const fi_ioc part{values, 2};
        const fi_rma_ioc remote[] = {{0, 1, 1}, {0, 1, 2}};
        const fi_msg_atomic msg = atomic_of(pair, &part, {remote, 2}, FI_SUM);
        pair.post([&] { return fi_atomicmsg(pair.a.ep.get(), &msg, FI_INJECT); });
    });
}

/// What comes behind a fence stays in order when the fence has gone and other access follows.
Test(access_order, access_behind_a_fence_is_not_overtaken_by_later_access, .timeout = 60) {
    Pair pair;
    std::vector<char> target(3 * kLong);
    const auto first = pair.b.reg(target.data(), 8, kAll, 1);
    const auto second = pair.b.reg(target.data() + kLong, kLong, kAll, 2);
    const auto third = pair.b.reg(target.data() + 2 * kLong, kLong, kAll, 3);
    const std::vector<char> a_lot(kLong, 'a');
    const std::vector<char> more(kLong, 'b');
    send_one(pair);
    pair.post([&] { return write_to(pair, "before..", 8, 1); });
    const iovec part{const_cast<char*>("fenced.."), 8};
    const fi_rma_iov remote{0, 8, 1};
    const fi_msg_rma fenced{&part, nullptr, 1, pair.a.peer, &remote, 1, nullptr, 0};
    RVT_OK(fi_writemsg(pair.a.ep.get(), &fenced, FI_FENCE));
    RVT_OK(write_to(pair, a_lot.data(), kLong, 2));
    pair.drive();                         // the first is done
    fi_cntr_read(pair.a.cntrs[0].get());  // the fence goes, and a part of what is behind it
    RVT_OK(write_to(pair, more.data(), kLong, 3));
    pair.until([&] { return written(pair) + failed(pair) == 4; });
    RVT_EQ(failed(pair), 0u);
    RVT_ASSERT(std::memcmp(target.data(), "fenced..", 8) == 0);
    RVT_ASSERT(std::memcmp(target.data() + kLong, a_lot.data(), kLong) == 0);
    RVT_ASSERT(std::memcmp(target.data() + 2 * kLong, more.data(), kLong) == 0);
}

/// The same when the fenced operation is cancelled before it has left.
Test(access_order, access_behind_a_cancelled_fence_is_not_overtaken, .timeout = 60) {
    Pair pair({}, {.is_enabled = false});  // nothing leaves before the peer can be met
    std::vector<char> target(kLong);
    const auto region = pair.b.reg(target.data(), kLong, kAll, 1);
    const std::vector<char> a_lot(kLong, 'a');
    const iovec part{const_cast<char*>("fenced.."), 8};
    const fi_rma_iov remote{0, 8, 1};
    int context = 0;
    const fi_msg_rma fenced{&part, nullptr, 1, pair.a.peer, &remote, 1, &context, 0};
    RVT_OK(fi_writemsg(pair.a.ep.get(), &fenced, FI_FENCE));
    RVT_OK(write_to(pair, a_lot.data(), kLong, 1));
    RVT_OK(fi_cancel(&pair.a.ep->fid, &context));
    RVT_OK(fi_enable(pair.b.ep.get()));
    RVT_OK(write_to(pair, "last", 4, 1));
    pair.until([&] { return written(pair) == 2; });
    RVT_ASSERT(std::memcmp(target.data(), "last", 4) == 0);
    RVT_ASSERT(std::memcmp(target.data() + 4, a_lot.data(), kLong - 4) == 0);
    RVT_EQ(pair.a.next_error().err, FI_ECANCELED);
}

/// A large read, which this process could do at once, after an atomic that waits for the target.
Test(access_order, a_large_read_waits_for_the_read_before_it_where_that_order_was_asked) {
    Pair pair({.order = FI_ORDER_RAR});
    std::vector<std::uint64_t> target(kLong / 8);
    const auto region = pair.b.reg(target.data(), kLong, kAll, 1);
    std::uint64_t one = 1;
    std::uint64_t before = 0;
    std::vector<std::uint64_t> all(kLong / 8);
    pair.post([&] { return write_to(pair, &before, sizeof before, 1); });
    pair.until([&] { return written(pair) == 1; });  // by now a knows how to go without b
    pair.post([&] {
        return fi_fetch_atomic(pair.a.ep.get(), &one, 1, nullptr, &before, nullptr, pair.a.peer, 0,
                               1, FI_UINT64, FI_SUM, nullptr);
    });
    pair.post([&] {
        return fi_read(pair.a.ep.get(), all.data(), kLong, nullptr, pair.a.peer, 0, 1, nullptr);
    });
    pair.until([&] { return fetched(pair) == 2; });
    RVT_EQ(before, 0u);
    RVT_EQ(all[0], 1u);
}

/// Both the operand and what it is compared with are the application's again at once.
Test(access_order, an_injected_compare_keeps_what_it_compares_with) {
    Pair pair;
    std::uint64_t target = 5;
    const auto region = pair.b.reg(&target, sizeof target, kAll, 1);
    std::uint64_t operand = 7;
    std::uint64_t compare = 5;
    std::uint64_t result = 0;
    const fi_ioc part{&operand, 1};
    const fi_ioc compared{&compare, 1};
    fi_ioc results{&result, 1};
    const fi_rma_ioc remote{0, 1, 1};
    const fi_msg_atomic msg = atomic_of(pair, &part, {&remote, 1}, FI_CSWAP);
    // The first operation to a peer waits until that has been met.
    RVT_OK(fi_compare_atomicmsg(pair.a.ep.get(), &msg, &compared, nullptr, 1, &results, nullptr, 1,
                                FI_INJECT));
    operand = 88;
    compare = 99;
    pair.until([&] { return fetched(pair) == 1; });
    RVT_EQ(target, 7u);
    RVT_EQ(result, 5u);
}

Test(access_order, an_injected_fetch_reads_several_values) {
    Pair pair;
    std::uint64_t target[8];
    std::iota(std::begin(target), std::end(target), 1);
    const auto region = pair.b.reg(target, sizeof target, kAll, 1);
    std::uint64_t result[8] = {};
    fi_ioc results{result, 8};
    const fi_rma_ioc remote{0, 8, 1};
    const fi_msg_atomic msg = atomic_of(pair, nullptr, {&remote, 1}, FI_ATOMIC_READ);
    pair.post(
        [&] { return fi_fetch_atomicmsg(pair.a.ep.get(), &msg, &results, nullptr, 1, FI_INJECT); });
    pair.until([&] { return fetched(pair) == 1; });
    RVT_EQ(std::memcmp(result, target, sizeof target), 0);
}

/// The results of a fetch of several pieces come back in the order of the pieces, also where the
/// first of them finds no room at once.
Test(access_order, results_of_several_pieces_keep_their_order, .timeout = 60) {
    Pair pair;
    std::uint64_t counted = 0;
    std::uint64_t target[9];
    std::iota(std::begin(target), std::end(target), 1);
    const auto counter = pair.b.reg(&counted, sizeof counted, kAll, 1);
    const auto region = pair.b.reg(target, sizeof target, kAll, 2);
    send_one(pair);
    constexpr std::uint64_t kRounds = 4;
    constexpr std::uint64_t kAdds = 30;
    const std::uint64_t one = 1;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
        for (std::uint64_t i = 0; i < kAdds; ++i) {
            RVT_OK(fi_atomic(pair.a.ep.get(), &one, 1, nullptr, pair.a.peer, 0, 1, FI_UINT64,
                             FI_SUM, nullptr));
        }
        fi_cntr_read(pair.b.cntrs[0].get());  // answers more than the ring of answers holds
    }
    fi_cntr_read(pair.a.cntrs[0].get());
    std::uint64_t result[9] = {};
    fi_ioc results{result, 9};
    const fi_rma_ioc remote[] = {{0, 1, 2}, {8, 8, 2}};
    const fi_msg_atomic msg = atomic_of(pair, nullptr, {remote, 2}, FI_ATOMIC_READ);
    RVT_OK(fi_fetch_atomicmsg(pair.a.ep.get(), &msg, &results, nullptr, 1, 0));
    pair.until([&] { return fetched(pair) == 1; });
    RVT_EQ(std::memcmp(result, target, sizeof target), 0);
    pair.until([&] { return written(pair) == kRounds * kAdds; });
    RVT_EQ(counted, kRounds * kAdds);
}
