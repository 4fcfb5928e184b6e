// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: extended atomics, which pairs of rvt have with each other.
#include "conform/fixture.h"
#include "core/atomic_ops.h"
#include "core/extended_atomic.h"

#include <random>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::size_t kTarget = 4096;  // in B's memory
constexpr auto kSum = static_cast<std::uint8_t>(AtomicOp::kSum);
constexpr auto kInt32 = static_cast<std::uint8_t>(AtomicType::kInt32);
constexpr ExtendedAtomic kAddInt32{.form = AtomicForm::kFetch, .datatype = kInt32, .op = kSum};

Options extended() {
    return {.extended_atomics = true};
}

template <class T>
void put(Side& side, std::size_t offset, std::initializer_list<T> values) {
    std::memcpy(side.memory.data() + offset, std::data(values), values.size() * sizeof(T));
}
template <class T>
T get(const Side& side, std::size_t offset) {
    T value{};
    std::memcpy(&value, side.memory.data() + offset, sizeof value);
    return value;
}

Op atomic(const ExtendedAtomic& what, std::size_t list_bytes) {
    return {.opcode = WrOpcode::kExtendedAtomic,
            .bytes = list_bytes,
            .remote_offset = kTarget,
            .atomic = what};
}

template <class Backend>
void elements_are_added_and_what_was_there_comes_back() {
    Pair<Backend> pair(extended());
    put<std::int32_t>(pair.a(), 0, {1, -2, 3});
    put<std::int32_t>(pair.b(), kTarget, {10, 20, 30, 40});
    RVT_OK(pair.post_send(atomic(kAddInt32, 24)));
    const Wc wc = pair.sent();
    RVT_EQ(wc.status, WcStatus::kSuccess);
    RVT_EQ(wc.opcode, WcOpcode::kExtendedAtomic);
    for (std::size_t i = 0; i < 3; ++i) {
        RVT_EQ(get<std::int32_t>(pair.a(), 12 + 4 * i), 10 + 10 * static_cast<int>(i));
    }
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget), 11);
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget + 4), 18);
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget + 8), 33);
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget + 12), 40);
}
RVT_CONFORM_RC(elements_are_added_and_what_was_there_comes_back)

/// Does it to a copy, by core/atomic_ops.h directly.
void do_here(const ExtendedAtomic& what, std::byte* target, std::size_t count,
             const std::byte* operands, std::byte* results) {
    const std::size_t bytes = count * atomic_size(what.datatype);
    switch (what.form) {
        case AtomicForm::kWrite:
            atomic_apply(what.datatype, what.op, target, operands, count);
            break;
        case AtomicForm::kFetch:
            atomic_fetch(what.datatype, what.op, target, operands, results, count);
            break;
        default:
            atomic_compare(what.datatype, what.op, target, operands, operands + bytes, results,
                           count);
    }
}

template <class Backend>
void every_type_and_operation_does_what_it_does_here() {
    Pair<Backend> pair(extended());
    std::mt19937_64 random(7);
    constexpr std::size_t kCount = 2;
    int tried = 0;
    for (unsigned number = 0; number < 3 * kAtomicTypes * kAtomicOps; ++number) {
        const ExtendedAtomic what{.form = static_cast<AtomicForm>(number % 3),
                                  .datatype = static_cast<std::uint8_t>(number / 3 % kAtomicTypes),
                                  .op = static_cast<std::uint8_t>(number / 3 / kAtomicTypes)};
        const auto shape = shape_of(what);
        if (!shape) {
            continue;
        }
        const std::size_t bytes = kCount * shape->element_bytes;
        const std::size_t operands = shape->operands * bytes;
        const std::size_t results = shape->results * bytes;
        alignas(16) std::array<std::byte, 2 * 32> expected{};
        std::array<std::byte, 2 * 32> expected_results{};
        // Small numbers in some bytes: no float that is none, and some that compare equal.
        for (std::size_t i = 0; i < operands; ++i) {
            pair.a().memory[i] = static_cast<std::byte>(random() % 3);
        }
        for (std::size_t i = 0; i < bytes; ++i) {
            pair.b().memory[kTarget + i] = expected[i] = static_cast<std::byte>(random() % 3);
        }
        do_here(what, expected.data(), kCount, pair.a().memory.data(), expected_results.data());
        RVT_OK(pair.post_send(atomic(what, operands + results)));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        cr_assert(
            std::memcmp(&pair.b().memory[kTarget], expected.data(), bytes) == 0 &&
                std::memcmp(&pair.a().memory[operands], expected_results.data(), results) == 0,
            "form %d, type %d, operation %d", static_cast<int>(what.form), what.datatype, what.op);
        ++tried;
    }
    RVT_ASSERT(tried > 400);
}
RVT_CONFORM_RC_SEEDS(every_type_and_operation_does_what_it_does_here, 50)

template <class Backend>
void a_masked_swap_compares_and_changes_bits_of_its_masks() {
    Pair<Backend> pair(extended());
    const ExtendedAtomic swap{.form = AtomicForm::kMaskedCompareSwap};
    pair.b().set_word(kTarget, 0x1111222233334444);
    // compare, its mask, swap, its mask
    put<std::uint64_t>(pair.a(), 0, {0x0000222200000000, 0x0000ffff00000000, ~0ull, 0xffff});
    RVT_OK(pair.post_send(atomic(swap, 40)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.a().word(32), 0x1111222233334444);
    RVT_EQ(pair.b().word(kTarget), 0x111122223333ffff);
    put<std::uint64_t>(pair.a(), 0, {0, 0x0000ffff00000000, 0, ~0ull});
    RVT_OK(pair.post_send(atomic(swap, 40)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.b().word(kTarget), 0x111122223333ffff);
}
RVT_CONFORM_RC(a_masked_swap_compares_and_changes_bits_of_its_masks)

template <class Backend>
void a_masked_sum_carries_into_no_other_field() {
    Pair<Backend> pair(extended());
    pair.b().set_word(kTarget, 0x00ff'ffff'7fff'ffff);
    put<std::uint64_t>(pair.a(), 0, {0x0001'0001'8001'0001, 0x8000'8000'8000'8000});
    RVT_OK(pair.post_send(atomic({.form = AtomicForm::kMaskedFetchAdd}, 24)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.a().word(16), 0x00ff'ffff'7fff'ffff);
    RVT_EQ(pair.b().word(kTarget), 0x0100'0000'0000'0000);
}
RVT_CONFORM_RC(a_masked_sum_carries_into_no_other_field)

template <class Backend>
void as_many_elements_as_a_packet_holds_and_no_more() {
    Pair<Backend> pair(extended());
    const std::size_t most = pair.a().qp->most_atomic_bytes();
    RVT_OK(pair.post_send(atomic(kAddInt32, 2 * most)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.post_send(atomic(kAddInt32, 2 * most + 8)), EINVAL);
    const ExtendedAtomic swap{.form = AtomicForm::kCompare,
                              .datatype = kInt32,
                              .op = static_cast<std::uint8_t>(AtomicOp::kCswap)};
    RVT_OK(pair.post_send(atomic(swap, 3 * most / 2)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.post_send(atomic(swap, 3 * most / 2 + 12)), EINVAL);
}
RVT_CONFORM_RC(as_many_elements_as_a_packet_holds_and_no_more)

template <class Backend>
void what_is_no_atomic_is_refused() {
    Pair<Backend> pair(extended());
    const auto post = [&](AtomicForm form, unsigned type, AtomicOp op, std::size_t bytes) {
        return pair.post_send(atomic({.form = form,
                                      .datatype = static_cast<std::uint8_t>(type),
                                      .op = static_cast<std::uint8_t>(op)},
                                     bytes));
    };
    RVT_EQ(post(AtomicForm::kFetch, kInt32, AtomicOp::kSum, 0), EINVAL);
    RVT_EQ(post(AtomicForm::kFetch, kInt32, AtomicOp::kSum, 12), EINVAL);
    RVT_EQ(post(AtomicForm::kFetch, kInt32, AtomicOp::kCswap, 8), EINVAL);
    RVT_EQ(post(AtomicForm::kCompare, kInt32, AtomicOp::kSum, 12), EINVAL);
    RVT_EQ(post(AtomicForm::kFetch, kAtomicTypes, AtomicOp::kSum, 8), EINVAL);
    RVT_EQ(post(static_cast<AtomicForm>(9), kInt32, AtomicOp::kSum, 8), EINVAL);
    RVT_EQ(post(AtomicForm::kMaskedFetchAdd, kInt32, AtomicOp::kSum, 48), EINVAL);
}
RVT_CONFORM(what_is_no_atomic_is_refused)

template <class Backend>
void a_pair_whose_peer_has_none_does_not_ask() {
    Pair<Backend> pair;
    RVT_EQ(pair.post_send(atomic(kAddInt32, 8)), EINVAL);
}
RVT_CONFORM(a_pair_whose_peer_has_none_does_not_ask)

template <class Backend>
void a_pair_that_has_none_does_not_answer() {
    const Options options{.connect = false};
    Pair<Backend> pair(options);
    Options of_a = options;
    of_a.extended_atomics = true;
    for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
        RVT_OK(pair.a().qp->modify(attr_for(state, pair.a(), pair.b(), of_a),
                                   mask_for(state, QpType::kRc)));
        RVT_OK(pair.go(kB, state));
    }
    RVT_OK(pair.post_send(atomic(kAddInt32, 8)));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
}
RVT_CONFORM(a_pair_that_has_none_does_not_answer)

template <class Backend>
void it_needs_the_right_to_atomics() {
    Options options = extended();
    options.memory_access = Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteWrite;
    Pair<Backend> pair(options);
    RVT_OK(pair.post_send(atomic(kAddInt32, 8)));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}
RVT_CONFORM(it_needs_the_right_to_atomics)

template <class Backend>
void what_brings_back_what_was_there_needs_the_right_to_read_too() {
    Options options = extended();
    options.memory_access = Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteAtomic;
    Pair<Backend> pair(options);
    RVT_OK(pair.post_send(atomic({.form = AtomicForm::kWrite, .datatype = kInt32, .op = kSum}, 4)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_OK(pair.post_send(atomic(kAddInt32, 8)));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}
RVT_CONFORM_RC(what_brings_back_what_was_there_needs_the_right_to_read_too)

template <class Backend>
void a_read_needs_the_right_to_read_alone() {
    Options options = extended();
    options.memory_access = Access::kLocalWrite | Access::kRemoteRead;
    Pair<Backend> pair(options);
    put<std::int32_t>(pair.b(), kTarget, {10});
    const ExtendedAtomic read{.form = AtomicForm::kFetch, .datatype = kInt32, .op = kAtomicOpRead};
    RVT_OK(pair.post_send(atomic(read, 4)));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(get<std::int32_t>(pair.a(), 0), 10);
}
RVT_CONFORM_RC(a_read_needs_the_right_to_read_alone)

template <class Backend>
void a_masked_one_at_an_odd_address_is_an_invalid_request() {
    Pair<Backend> pair(extended());
    Op op = atomic({.form = AtomicForm::kMaskedFetchAdd}, 24);
    op.remote_offset += 4;
    RVT_OK(pair.post_send(op));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
}
RVT_CONFORM(a_masked_one_at_an_odd_address_is_an_invalid_request)

template <class Backend>
void operands_may_be_inline() {
    Pair<Backend> pair(extended());
    put<std::int32_t>(pair.a(), 0, {5, 6});
    put<std::int32_t>(pair.b(), kTarget, {1, 2});
    Op op = atomic(kAddInt32, 16);
    op.flags = SendFlags::kInline;
    RVT_OK(pair.post_send(op));
    put<std::int32_t>(pair.a(), 0, {0, 0});
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget), 6);
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget + 4), 8);
    RVT_EQ(get<std::int32_t>(pair.a(), 8), 1);
    RVT_EQ(get<std::int32_t>(pair.a(), 12), 2);
}
RVT_CONFORM_RC(operands_may_be_inline)

/// What comes again is answered with what it found the first time.
template <class Backend>
void each_is_done_once_and_in_order() {
    Pair<Backend> pair(extended());
    constexpr int kTimes = 40;
    for (int i = 0; i < kTimes; ++i) {
        put<std::int32_t>(pair.a(), 8 * i, {1});
        Op op = atomic(kAddInt32, 8);
        op.wr_id = i;
        op.offset = 8 * i;
        RVT_OK(pair.post_send(op));
    }
    for (int i = 0; i < kTimes; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.status, WcStatus::kSuccess);
        RVT_EQ(wc.wr_id, i);
        RVT_EQ(get<std::int32_t>(pair.a(), 8 * i + 4), i);
    }
    RVT_EQ(get<std::int32_t>(pair.b(), kTarget), kTimes);
}
RVT_CONFORM_RC(each_is_done_once_and_in_order)

}  // namespace
