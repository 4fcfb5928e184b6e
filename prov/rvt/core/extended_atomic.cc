// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The forms, and the two that work on a word. All others are core/atomic_ops.h's.
#include "core/extended_atomic.h"

#include "core/atomic_ops.h"

#include <array>
#include <cstring>

namespace rvt::core {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

std::uint64_t word_at(const std::byte* operands, std::size_t index) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, operands + index * kWordBytes, sizeof word);
    return word;
}

/// What the word becomes; `held` is what it holds.
std::uint64_t masked_swap(std::uint64_t held, const std::byte* operands) noexcept {
    const std::uint64_t compare = word_at(operands, 0);
    const std::uint64_t compare_mask = word_at(operands, 1);
    const std::uint64_t swap = word_at(operands, 2);
    const std::uint64_t swap_mask = word_at(operands, 3);
    return ((held ^ compare) & compare_mask) == 0 ? (held & ~swap_mask) | (swap & swap_mask) : held;
}

/// Each set bit of the boundary is the highest of a field: what it carries is lost.
std::uint64_t masked_sum(std::uint64_t held, const std::byte* operands) noexcept {
    const std::uint64_t add = word_at(operands, 0);
    const std::uint64_t boundary = word_at(operands, 1);
    return ((held & ~boundary) + (add & ~boundary)) ^ ((held ^ add) & boundary);
}

void apply_masked(AtomicForm form, std::byte* target, const std::byte* operands,
                  std::byte* results) noexcept {
    auto* const word = reinterpret_cast<std::uint64_t*>(target);
    // relaxed: the exchange below orders, and fails if this is not what it finds.
    std::uint64_t held = __atomic_load_n(word, __ATOMIC_RELAXED);
    std::uint64_t wanted = 0;
    do {
        wanted = form == AtomicForm::kMaskedFetchAdd ? masked_sum(held, operands)
                                                     : masked_swap(held, operands);
        // acq_rel: pairs with the same operation of other peers, and with what the application
        // synchronises by it. relaxed: on failure `held` is only tried again.
    } while (!__atomic_compare_exchange_n(word, &held, wanted, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
    std::memcpy(results, &held, sizeof held);
}

}  // namespace

std::optional<AtomicShape> shape_of(const ExtendedAtomic& atomic) noexcept {
    using Kind = RdAtomic::Kind;
    const auto of_kind = [&](Kind kind, std::uint8_t operands,
                             std::uint8_t results) -> std::optional<AtomicShape> {
        if (!atomic_is_valid(kind, atomic.datatype, atomic.op)) {
            return std::nullopt;
        }
        return AtomicShape{
            .operands = operands,
            .results = results,
            .element_bytes = static_cast<std::uint8_t>(atomic_size(atomic.datatype))};
    };
    constexpr AtomicShape kOnAWord{.results = 1, .element_bytes = kWordBytes, .is_masked = true};
    AtomicShape masked = kOnAWord;
    switch (atomic.form) {
        case AtomicForm::kWrite: return of_kind(Kind::kBase, 1, 0);
        case AtomicForm::kFetch:
            return of_kind(Kind::kFetch, atomic.op == kAtomicOpRead ? 0 : 1, 1);
        case AtomicForm::kCompare: return of_kind(Kind::kCompare, 2, 1);
        case AtomicForm::kMaskedCompareSwap: masked.operands = 4; return masked;
        case AtomicForm::kMaskedFetchAdd: masked.operands = 2; return masked;
    }
    return std::nullopt;
}

std::size_t target_bytes(const AtomicShape& shape, std::uint64_t list_bytes) noexcept {
    const std::uint64_t parts = std::uint64_t{shape.operands} + shape.results;
    return list_bytes % parts == 0 ? list_bytes / parts : 0;
}

bool fits(const AtomicShape& shape, std::uint64_t target_bytes, std::size_t most_bytes) noexcept {
    const std::uint64_t longest = shape.operands > shape.results ? shape.operands : shape.results;
    const std::size_t most = most_bytes < kMostAtomicBytes ? most_bytes : kMostAtomicBytes;
    return target_bytes != 0 && target_bytes <= most / longest &&
           target_bytes % shape.element_bytes == 0 &&
           (!shape.is_masked || target_bytes == shape.element_bytes);
}

void apply(const ExtendedAtomic& atomic, std::byte* target, std::size_t bytes,
           const std::byte* operands, std::byte* results, std::size_t apart) noexcept {
    const auto count = [&] { return bytes / atomic_size(atomic.datatype); };
    switch (atomic.form) {
        case AtomicForm::kWrite:
            atomic_apply(atomic.datatype, atomic.op, target, operands, count());
            return;
        case AtomicForm::kFetch:
            atomic_fetch(atomic.datatype, atomic.op, target, operands, results, count());
            return;
        case AtomicForm::kCompare:
            atomic_compare(atomic.datatype, atomic.op, target, operands, operands + apart, results,
                           count());
            return;
        case AtomicForm::kMaskedCompareSwap:
        case AtomicForm::kMaskedFetchAdd:
            apply_masked(atomic.form, target, operands, results);
            return;
    }
}

}  // namespace rvt::core
