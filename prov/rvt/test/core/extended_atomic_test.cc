// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Extended atomics: which there are, how long their parts may be. What they do:
// conform/atomic_test.cc.
#include "core/extended_atomic.h"

#include "common/check.h"
#include "core/atomic_ops.h"
#include "protocol/atomic_word.h"

using namespace rvt;
using namespace rvt::core;

namespace {

constexpr std::size_t kMtu = 1024;

std::optional<AtomicShape> shape(AtomicForm form, AtomicType type, AtomicOp op) {
    return shape_of({.form = form,
                     .datatype = static_cast<std::uint8_t>(type),
                     .op = static_cast<std::uint8_t>(op)});
}

bool exists(AtomicForm form, AtomicType type, AtomicOp op) {
    return shape(form, type, op).has_value();
}

}  // namespace

Test(extended_atomic, lists_are_as_long_as_their_form_says) {
    using enum AtomicForm;
    RVT_EQ(target_bytes(*shape(kWrite, AtomicType::kInt32, AtomicOp::kSum), 12), 12);
    RVT_EQ(target_bytes(*shape(kFetch, AtomicType::kInt32, AtomicOp::kSum), 24), 12);
    RVT_EQ(target_bytes(*shape(kFetch, AtomicType::kInt32, AtomicOp::kRead), 12), 12);
    RVT_EQ(target_bytes(*shape(kCompare, AtomicType::kInt32, AtomicOp::kCswap), 36), 12);
    RVT_EQ(target_bytes(*shape_of({.form = kMaskedCompareSwap}), 40), 8);
    RVT_EQ(target_bytes(*shape_of({.form = kMaskedFetchAdd}), 24), 8);
    RVT_EQ(target_bytes(*shape_of({.form = kMaskedFetchAdd}), 25), 0);
}

Test(extended_atomic, what_does_not_exist_has_no_shape) {
    using enum AtomicForm;
    RVT_ASSERT(not(exists(kWrite, AtomicType::kInt32, AtomicOp::kRead)));
    RVT_ASSERT(not(exists(kFetch, AtomicType::kDouble, AtomicOp::kBxor)));
    RVT_ASSERT(not(exists(kCompare, AtomicType::kInt32, AtomicOp::kSum)));
    for (unsigned form = 5; form < 256; ++form) {
        RVT_ASSERT(not(exists(static_cast<AtomicForm>(form), AtomicType::kInt32, AtomicOp::kSum)));
    }
}

Test(extended_atomic, the_longer_of_request_and_answer_fits_in_a_packet) {
    const AtomicShape fetch = *shape(AtomicForm::kFetch, AtomicType::kInt32, AtomicOp::kSum);
    RVT_ASSERT(fits(fetch, kMtu, kMtu));
    RVT_ASSERT(not(fits(fetch, kMtu + 4, kMtu)));
    RVT_ASSERT(not(fits(fetch, 6, kMtu)));
    RVT_ASSERT(not(fits(fetch, 0, kMtu)));
    RVT_ASSERT(not(fits(fetch, 2 * kMostAtomicBytes, 4 * kMostAtomicBytes)));
    const AtomicShape swap = *shape(AtomicForm::kCompare, AtomicType::kInt32, AtomicOp::kCswap);
    RVT_ASSERT(fits(swap, kMtu / 2, kMtu));
    RVT_ASSERT(not(fits(swap, kMtu / 2 + 4, kMtu)));
    const AtomicShape masked = *shape_of({.form = AtomicForm::kMaskedFetchAdd});
    RVT_ASSERT(fits(masked, 8, kMtu));
    RVT_ASSERT(not(fits(masked, 16, kMtu)));
}

Test(extended_atomic, its_word_survives_the_way_there_and_back) {
    const ExtendedAtomic atomic{.form = AtomicForm::kCompare, .datatype = 9, .op = 12};
    const ExtendedAtomic again = protocol::extended_atomic(protocol::atomic_word(atomic) | 0xff);
    RVT_EQ(again.form, atomic.form);
    RVT_EQ(again.datatype, atomic.datatype);
    RVT_EQ(again.op, atomic.op);
}
