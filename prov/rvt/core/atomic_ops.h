// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Arithmetic on memory that others use at the same time: what fi_atomic(3) defines, done by this
// processor.
//
// Elements of 1, 2, 4, 8 and (where the processor can, see atomic_is_cpu()) 16 bytes are changed by
// atomic instructions, so that they are atomic for all processes that map the memory. All others,
// and elements that are not aligned to their size, are changed under a lock of this process: they
// are atomic only for those who come through here, so such operations must be done where the memory
// is registered. Each element is atomic by itself; arrays are not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rd_types.h"

namespace rvt::core {

/// Numbers of libfabric's fi_datatype and fi_op, which ofi/ asserts.
enum class AtomicType : std::uint8_t {
    kInt8,
    kUint8,
    kInt16,
    kUint16,
    kInt32,
    kUint32,
    kInt64,
    kUint64,
    kFloat,
    kDouble,
    kFloatComplex,
    kDoubleComplex,
    kLongDouble,
    kLongDoubleComplex,
    kInt128,
    kUint128,
    kFloat16,  // these four: core/small_float.h
    kBfloat16,
    kFloat8E4m3,
    kFloat8E5m2,
};
inline constexpr std::size_t kAtomicTypes = 20;

enum class AtomicOp : std::uint8_t {
    kMin,
    kMax,
    kSum,
    kProd,
    kLor,
    kLand,
    kBor,
    kBand,
    kLxor,
    kBxor,
    kRead,
    kWrite,
    kCswap,
    kCswapNe,
    kCswapLe,
    kCswapLt,
    kCswapGe,
    kCswapGt,
    kMswap,
    kDiff,
};
inline constexpr std::size_t kAtomicOps = 20;
inline constexpr std::uint8_t kAtomicOpRead = static_cast<std::uint8_t>(AtomicOp::kRead);

/// Whether the operation comes in this form for this type. Any numbers may be asked for.
bool atomic_is_valid(RdAtomic::Kind kind, std::uint8_t datatype, std::uint8_t op) noexcept;

/// Bytes of an element; 0 for a type that is not offered.
std::size_t atomic_size(std::uint8_t datatype) noexcept;

/// Whether elements at `target` are changed by atomic instructions, and so by any process that maps
/// them.
bool atomic_is_cpu(std::uint8_t datatype, const void* target) noexcept;

/// Changes `count` elements at `target`. The operations below read their operands and write
/// `result` (what the target held before) at any alignment; `result` may be the same memory as
/// `operand` or `compare`. Precondition (all): atomic_is_valid().
void atomic_apply(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                  std::size_t count) noexcept;
/// @param operand  Not looked at when `op` is kAtomicOpRead; the target is then only read.
void atomic_fetch(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                  void* result, std::size_t count) noexcept;
void atomic_compare(std::uint8_t datatype, std::uint8_t op, void* target, const void* operand,
                    const void* compare, void* result, std::size_t count) noexcept;

}  // namespace rvt::core
