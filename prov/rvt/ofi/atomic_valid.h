// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which datatypes and operations of fi_atomic(3) exist in which kind of call, and how many elements
// one call takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rd_types.h"
#include "ofi/compat.h"

namespace rvt::ofi {

inline constexpr unsigned kDatatypes = static_cast<unsigned>(kFloat8E5m2) + 1;
inline constexpr unsigned kAtomicOps = static_cast<unsigned>(kOpDiff) + 1;

/// Bytes of each datatype; 0 for numbers that are none.
extern const std::size_t kDatatypeBytes[kDatatypes];

/// Whether a call of this kind may combine them.
bool is_valid_atomic(core::RdAtomic::Kind kind, fi_datatype datatype, fi_op op) noexcept;

/// Whether every peer of a connection has it, and NICs that have atomics at all: what IBTA defines.
bool is_plain_atomic(core::RdAtomic::Kind kind, fi_datatype datatype, fi_op op) noexcept;

/// How many elements one call takes of a connection that carries so many bytes in a packet.
std::size_t msg_atomic_count(core::RdAtomic::Kind kind, fi_datatype datatype,
                             std::size_t packet_bytes) noexcept;

/// fi_ops_domain.query_atomic. Where the domain's endpoints are connected ones: what they have with
/// each other, and as many elements as every such connection takes. Of a NIC: what it has.
int domain_query_atomic(fid_domain* domain, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                        std::uint64_t flags) noexcept;

// fi_ops_atomic.*valid: the elements of one call, or -FI_EOPNOTSUPP.
int atomic_writevalid(fid_ep* ep, fi_datatype datatype, fi_op op, std::size_t* count) noexcept;
int atomic_readwritevalid(fid_ep* ep, fi_datatype datatype, fi_op op, std::size_t* count) noexcept;
int atomic_compwritevalid(fid_ep* ep, fi_datatype datatype, fi_op op, std::size_t* count) noexcept;

}  // namespace rvt::ofi
