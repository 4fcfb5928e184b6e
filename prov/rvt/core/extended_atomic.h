// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Atomics beyond IBTA's two, which only pairs of rvt have with each other: those of fi_atomic(3),
// on as many elements as fit in a packet, and masked ones on a word. A request names its target and
// carries operands; its answer carries what the target held before. Their lengths are multiples of
// the target's, and fixed by the form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rvt/types.h"

namespace rvt::core {

/// At most as many bytes of operands, and of results: those of the largest packet.
inline constexpr std::size_t kMostAtomicBytes = 4096;

/// How long the parts are, in lengths of the target.
struct AtomicShape {
    std::uint8_t operands = 0;
    std::uint8_t results = 0;
    std::uint8_t element_bytes = 0;  // the target has one or more
    bool is_masked = false;          // exactly one, aligned
};

/// Returns: nothing for a form, datatype and operation that do not exist together.
std::optional<AtomicShape> shape_of(const ExtendedAtomic& atomic) noexcept;

/// The target's length, if the operands and results of a request are `list_bytes` in all; 0: they
/// cannot be.
std::size_t target_bytes(const AtomicShape& shape, std::uint64_t list_bytes) noexcept;

/// Whether a target may be so long where `most_bytes` fit in a packet.
bool fits(const AtomicShape& shape, std::uint64_t target_bytes, std::size_t most_bytes) noexcept;

/// Carries it out, on all elements of the target or on some behind one another. Operands and
/// results lie behind one another as the form's have to:
///     kWrite: operand.  kFetch: operand (of a read: none); result.
///     kCompare: operand, compare; result.
///     kMaskedCompareSwap: compare, its mask, swap, its mask; result.
///     kMaskedFetchAdd: operand, the bits that carry into no other; result.
/// @param operands  The first of them for these bytes of the target; the others, `apart` bytes each
///                  from the one before.
/// Precondition: the atomic has a shape, and the length of the target, which is `apart`, fits it.
void apply(const ExtendedAtomic& atomic, std::byte* target, std::size_t bytes,
           const std::byte* operands, std::byte* results, std::size_t apart) noexcept;

}  // namespace rvt::core
