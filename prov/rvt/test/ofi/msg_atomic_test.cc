// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Atomics through a connection, and which of them there are.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <vector>

#include "ofi/msg_pair.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

bool is(std::span<const float> found, std::initializer_list<float> expected) {
    return std::ranges::equal(found, expected);
}

}  // namespace

RVT_MSG_TEST(msg, atomics_of_the_wire) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    alignas(8) std::uint64_t memory = 40;
    const Owned<fid_mr> mr = pair.server.reg(&memory, sizeof memory, kRemote);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t at = address_of(memory);
    fid_ep* const ep = pair.client.end.ep.get();
    const std::uint64_t two = 2;
    const std::uint64_t forty_two = 42;
    const std::uint64_t seven = 7;
    std::uint64_t found = 0;
    RVT_OK(fi_fetch_atomic(ep, &two, 1, nullptr, &found, nullptr, 0, at, key, FI_UINT64, FI_SUM,
                           nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_READ);
    RVT_EQ(found, 40);
    RVT_OK(fi_compare_atomic(ep, &seven, 1, nullptr, &forty_two, nullptr, &found, nullptr, 0, at,
                             key, FI_UINT64, FI_CSWAP, nullptr));
    pair.client.end.next();
    RVT_EQ(found, 42);
    RVT_OK(fi_atomic(ep, &two, 1, nullptr, 0, at, key, FI_INT64, FI_SUM, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_WRITE);
    RVT_OK(fi_fetch_atomic(ep, nullptr, 1, nullptr, &found, nullptr, 0, at, key, FI_UINT64,
                           FI_ATOMIC_READ, nullptr));
    pair.client.end.next();
    RVT_EQ(found, 9);
}

/// What comes in lists goes as one request.
RVT_MSG_TEST(msg, atomics_of_other_types_in_lists) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::array<float, 4> memory{1, 2, 3, 4};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), sizeof memory, kRemote);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t at = address_of(memory[0]);
    fid_ep* const ep = pair.client.end.ep.get();
    std::array<float, 3> operand{10, 20, 30};
    std::array<float, 3> compare{11, 0, 33};
    std::array<float, 3> found{};
    const std::array<fi_ioc, 2> operands{{{operand.data(), 2}, {&operand[2], 1}}};
    std::array<fi_ioc, 3> results{{{&found[0], 1}, {&found[1], 1}, {&found[2], 1}}};
    RVT_OK(fi_fetch_atomicv(ep, operands.data(), nullptr, 2, results.data(), nullptr, 3, 0, at, key,
                            FI_FLOAT, FI_SUM, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_READ);
    RVT_ASSERT(is(found, {1, 2, 3}));
    RVT_ASSERT(is(memory, {11, 22, 33, 4}));
    RVT_OK(fi_compare_atomic(ep, operand.data(), 3, nullptr, compare.data(), nullptr, found.data(),
                             nullptr, 0, at, key, FI_FLOAT, FI_CSWAP, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_READ);
    RVT_ASSERT(is(found, {11, 22, 33}));
    RVT_ASSERT(is(memory, {10, 22, 30, 4}));
    RVT_OK(fi_atomic(ep, compare.data(), 3, nullptr, 0, at, key, FI_FLOAT, FI_MAX, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_WRITE);
    RVT_ASSERT(is(memory, {11, 22, 33, 4}));
}

RVT_MSG_TEST(msg, an_injected_atomic_has_taken_its_operands) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::array<std::uint8_t, 8> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), kRemote);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t at = address_of(memory[0]);
    fid_ep* const ep = pair.client.end.ep.get();
    std::array<std::uint8_t, 8> operand{1, 2, 3, 4, 5, 6, 7, 8};
    RVT_OK(fi_inject_atomic(ep, operand.data(), operand.size(), 0, at, key, FI_UINT8, FI_SUM));
    const std::array<std::uint8_t, 8> sent = operand;
    operand = {};
    std::array<std::uint8_t, 8> found{};
    RVT_OK(fi_fetch_atomic(ep, nullptr, 8, nullptr, found.data(), nullptr, 0, at, key, FI_UINT8,
                           FI_ATOMIC_READ, nullptr));
    pair.client.end.next();
    RVT_ASSERT(found == sent);
}

RVT_MSG_TEST(msg, atomics_take_as_many_elements_as_they_say) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::vector<std::uint16_t> memory(4096);
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size() * 2, kRemote);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t at = address_of(memory[0]);
    fid_ep* const ep = pair.client.end.ep.get();
    std::size_t count = 0;
    RVT_OK(fi_fetch_atomicvalid(ep, FI_UINT16, FI_BXOR, &count));
    RVT_ASSERT(count >= std::size_t{128});
    std::vector<std::uint16_t> operand(count + 1, 3);
    std::vector<std::uint16_t> found(count + 1, 9);
    const auto fetch = [&](std::size_t elements) {
        return fi_fetch_atomic(ep, operand.data(), elements, nullptr, found.data(), nullptr, 0, at,
                               key, FI_UINT16, FI_BXOR, nullptr);
    };
    RVT_EQ(fetch(count + 1), -FI_EMSGSIZE);
    RVT_OK(fetch(count));
    pair.client.end.next();
    RVT_EQ(found[count - 1], 0);
    RVT_EQ(found[count], 9);
    RVT_EQ(memory[count - 1], 3);
    RVT_EQ(memory[count], 0);
    std::size_t compared = 0;
    RVT_OK(fi_compare_atomicvalid(ep, FI_UINT16, FI_MSWAP, &compared));
    RVT_EQ(compared, count / 2);
}

RVT_MSG_TEST(msg, an_atomic_goes_from_one_buffer_of_a_region_into_the_next) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::array<float, 10> memory{1, 2, 3, 4, 9, 9, 5, 6, 7, 8};
    const std::span<float> one = std::span(memory).first<4>();
    const std::span<float> two = std::span(memory).last<4>();
    const std::array<iovec, 2> buffers{
        {{two.data(), two.size_bytes()}, {one.data(), one.size_bytes()}}};
    const Owned<fid_mr> mr = opened<fid_mr>([&](fid_mr** made) {
        return fi_mr_regv(pair.server.domain.get(), buffers.data(), buffers.size(), kRemote, 0, 0,
                          0, made, nullptr);
    });
    const std::array<float, 3> operand{10, 20, 30};
    const std::array<float, 3> compare{18, 21, 32};
    std::array<float, 3> found{};
    const std::uint64_t at = address_of(two[3]);
    fid_ep* const ep = pair.client.end.ep.get();
    RVT_OK(fi_fetch_atomic(ep, operand.data(), 3, nullptr, found.data(), nullptr, 0, at,
                           fi_mr_key(mr.get()), FI_FLOAT, FI_SUM, nullptr));
    pair.client.end.next();
    RVT_ASSERT(is(found, {8, 1, 2}));
    RVT_ASSERT(is(memory, {21, 32, 3, 4, 9, 9, 5, 6, 7, 18}));
    RVT_OK(fi_compare_atomic(ep, operand.data(), 3, nullptr, compare.data(), nullptr, found.data(),
                             nullptr, 0, at, fi_mr_key(mr.get()), FI_FLOAT, FI_CSWAP, nullptr));
    pair.client.end.next();
    RVT_ASSERT(is(found, {18, 21, 32}));
    RVT_ASSERT(is(memory, {20, 30, 3, 4, 9, 9, 5, 6, 7, 10}));
}

RVT_MSG_TEST(msg, an_atomic_that_the_region_does_not_allow_ends_the_connection) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::array<std::uint32_t, 2> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), sizeof memory, kRemote);
    const std::uint32_t one = 1;
    RVT_OK(fi_atomic(pair.client.end.ep.get(), &one, 1, nullptr, 0, address_of(memory[0]) + 8,
                     fi_mr_key(mr.get()), FI_UINT32, FI_SUM, nullptr));
    RVT_EQ(pair.client.end.next_error().err, FI_EACCES);
    RVT_EQ(memory[1], 0);
}

RVT_MSG_TEST(msg, atomics_that_do_not_exist_are_refused) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    fid_ep* const ep = pair.client.end.ep.get();
    std::size_t count = 0;
    RVT_OK(fi_atomicvalid(ep, FI_LONG_DOUBLE_COMPLEX, FI_SUM, &count));
    RVT_OK(fi_compare_atomicvalid(ep, FI_INT128, FI_MSWAP, &count));
    RVT_EQ(fi_atomicvalid(ep, FI_DOUBLE, FI_BXOR, &count), -FI_EOPNOTSUPP);
    RVT_EQ(fi_atomicvalid(ep, FI_UINT64, FI_CSWAP, &count), -FI_EOPNOTSUPP);
    std::array<std::uint32_t, 4> operand{};
    const auto write = [&](std::size_t elements, fi_op op) {
        return fi_atomic(ep, operand.data(), elements, nullptr, 0, 0, 0, FI_UINT32, op, nullptr);
    };
    RVT_EQ(write(1, FI_CSWAP), -FI_EOPNOTSUPP);
    RVT_EQ(write(0, FI_SUM), -FI_EINVAL);
    fi_ioc short_result{operand.data(), 1};
    const fi_ioc two{operand.data(), 2};
    const fi_rma_ioc remote{0, 2, 0};
    fi_msg_atomic message{};
    message.msg_iov = &two;
    message.iov_count = 1;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.datatype = FI_UINT32;
    message.op = FI_SUM;
    RVT_EQ(fi_fetch_atomicmsg(ep, &message, &short_result, nullptr, 1, 0), -FI_EINVAL);
}

/// Before a connection nobody knows who the peer will be.
RVT_MSG_TEST(msg, without_a_peer_only_what_every_peer_has_is_offered) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    const MsgOptions options{.caps = FI_MSG | FI_ATOMIC};
    const Answer answer = ask_msg(options);
    const Owned<fid_ep> lone = pair.client.end.add(answer.info.get(), options);
    std::size_t count = 0;
    RVT_OK(fi_atomicvalid(lone.get(), FI_UINT64, FI_SUM, &count));
    RVT_EQ(count, 1);
    RVT_OK(fi_compare_atomicvalid(lone.get(), FI_INT64, FI_CSWAP, &count));
    RVT_EQ(fi_atomicvalid(lone.get(), FI_UINT64, FI_MAX, &count), -FI_EOPNOTSUPP);
    RVT_EQ(fi_fetch_atomicvalid(lone.get(), FI_DOUBLE, FI_SUM, &count), -FI_EOPNOTSUPP);
    fi_atomic_attr attr{};
    RVT_OK(
        fi_query_atomic(pair.client.end.domain.get(), FI_DOUBLE, FI_SUM, &attr, FI_FETCH_ATOMIC));
    RVT_EQ(attr.count, 32);
    RVT_EQ(attr.size, 8);
}

/// As between RDM endpoints.
RVT_MSG_TEST(msg, what_brings_something_back_needs_the_right_to_read_and_a_read_no_other) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::array<std::uint64_t, 2> memory{7, 8};
    const Owned<fid_mr> readable = pair.server.reg(&memory[0], 8, FI_REMOTE_READ);
    const Owned<fid_mr> writable = pair.server.reg(&memory[1], 8, FI_REMOTE_WRITE);
    const std::uint64_t none = 0;
    std::uint64_t found = 0;
    const auto fetch = [&](std::size_t which, fid_mr* mr, fi_datatype type, fi_op op) {
        RVT_OK(fi_fetch_atomic(pair.client.end.ep.get(), &none, 1, nullptr, &found, nullptr, 0,
                               address_of(memory[which]), fi_mr_key(mr), type, op, nullptr));
    };
    for (const fi_datatype type : {FI_UINT32, FI_UINT64}) {
        found = 0;
        fetch(0, readable.get(), type, FI_ATOMIC_READ);
        RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_READ);
        RVT_EQ(found, 7);
    }
    fetch(1, writable.get(), FI_UINT64, FI_SUM);
    RVT_EQ(pair.client.end.next_error().err, FI_EACCES);
    RVT_EQ(found, 7);
}

RVT_MSG_TEST(msg, an_atomic_write_needs_the_right_to_write_alone) {
    const MsgPair pair({.caps = FI_MSG | FI_ATOMIC});
    std::uint64_t memory = 7;
    const Owned<fid_mr> mr = pair.server.reg(&memory, 8, FI_REMOTE_WRITE);
    const std::uint64_t one = 1;
    for (const fi_op op : {FI_SUM, FI_BOR}) {
        RVT_OK(fi_atomic(pair.client.end.ep.get(), &one, 1, nullptr, 0, address_of(memory),
                         fi_mr_key(mr.get()), FI_UINT64, op, nullptr));
        RVT_EQ(pair.client.end.next().flags, FI_ATOMIC | FI_WRITE);
    }
    RVT_EQ(memory, 9);
}
