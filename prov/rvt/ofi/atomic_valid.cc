// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The matrix of atomics: a bit for each datatype, for each operation of each kind of call.
#include "ofi/atomic_valid.h"

#include <array>
#include <complex>

#include "ofi/domain.h"

namespace rvt::ofi {
namespace {

using Kind = core::RdAtomic::Kind;

constexpr std::uint32_t bit(unsigned datatype) noexcept {
    return std::uint32_t{1} << datatype;
}

constexpr std::uint32_t kIntegers = bit(FI_INT8) | bit(FI_UINT8) | bit(FI_INT16) | bit(FI_UINT16) |
                                    bit(FI_INT32) | bit(FI_UINT32) | bit(FI_INT64) |
                                    bit(FI_UINT64) | bit(FI_INT128) | bit(FI_UINT128);
constexpr std::uint32_t kReals = kIntegers | bit(FI_FLOAT) | bit(FI_DOUBLE) | bit(FI_LONG_DOUBLE) |
                                 bit(kFloat16) | bit(kBfloat16) | bit(kFloat8E4m3) |
                                 bit(kFloat8E5m2);
constexpr std::uint32_t kAll =
    kReals | bit(FI_FLOAT_COMPLEX) | bit(FI_DOUBLE_COMPLEX) | bit(FI_LONG_DOUBLE_COMPLEX);

// What every connection's packets hold at least.
constexpr std::size_t kLeastPacketBytes = 256;

struct Row {
    fi_op op;
    std::uint32_t base;
    std::uint32_t fetch;
    std::uint32_t compare;
};

// clang-format off
constexpr std::array<Row, kAtomicOps> kRows{{
    {FI_MIN,          kReals,    kReals,    0},
    {FI_MAX,          kReals,    kReals,    0},
    {FI_SUM,          kAll,      kAll,      0},
    {FI_PROD,         kAll,      kAll,      0},
    {FI_LOR,          kAll,      kAll,      0},
    {FI_LAND,         kAll,      kAll,      0},
    {FI_BOR,          kIntegers, kIntegers, 0},
    {FI_BAND,         kIntegers, kIntegers, 0},
    {FI_LXOR,         kAll,      kAll,      0},
    {FI_BXOR,         kIntegers, kIntegers, 0},
    {FI_ATOMIC_READ,  0,         kAll,      0},
    {FI_ATOMIC_WRITE, kAll,      kAll,      0},
    {FI_CSWAP,        0,         0,         kAll},
    {FI_CSWAP_NE,     0,         0,         kAll},
    {FI_CSWAP_LE,     0,         0,         kReals},
    {FI_CSWAP_LT,     0,         0,         kReals},
    {FI_CSWAP_GE,     0,         0,         kReals},
    {FI_CSWAP_GT,     0,         0,         kReals},
    {FI_MSWAP,        0,         0,         kIntegers},
    {kOpDiff,         kAll,      kAll,      0},
}};
// clang-format on

constexpr bool is_in_order() {
    for (std::size_t i = 0; i < kRows.size(); ++i) {
        if (static_cast<std::size_t>(kRows[i].op) != i) {
            return false;
        }
    }
    return true;
}
static_assert(is_in_order());

int valid(Kind kind, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    if (!is_valid_atomic(kind, datatype, op)) {
        return -FI_EOPNOTSUPP;
    }
    if (count != nullptr) {
        *count = core::kMaxAtomicSize / kDatatypeBytes[datatype];
    }
    return 0;
}

}  // namespace

constexpr std::size_t kDatatypeBytes[kDatatypes] = {
    1,
    1,
    2,
    2,
    4,
    4,
    8,
    8,
    sizeof(float),
    sizeof(double),
    sizeof(std::complex<float>),
    sizeof(std::complex<double>),
    sizeof(long double),
    sizeof(std::complex<long double>),
    16,
    16,
    2,
    2,
    1,
    1,
};
static_assert(FI_UINT64 == 7 && FI_LONG_DOUBLE_COMPLEX == 13 && FI_INT128 == 14 &&
              FI_UINT128 == 15);

bool is_valid_atomic(Kind kind, fi_datatype datatype, fi_op op) noexcept {
    const auto type = static_cast<unsigned>(datatype);
    const auto operation = static_cast<unsigned>(op);
    if (type >= kDatatypes || operation >= kAtomicOps) {
        return false;
    }
    const Row& row = kRows[operation];
    const std::uint32_t types = kind == Kind::kBase    ? row.base
                                : kind == Kind::kFetch ? row.fetch
                                                       : row.compare;
    return (types & bit(type)) != 0;
}

bool is_plain_atomic(Kind kind, fi_datatype datatype, fi_op op) noexcept {
    if (datatype != FI_INT64 && datatype != FI_UINT64) {
        return false;
    }
    switch (kind) {
        case Kind::kBase: return op == FI_SUM;
        case Kind::kFetch: return op == FI_SUM || op == FI_ATOMIC_READ;
        case Kind::kCompare: return op == FI_CSWAP;
    }
    return false;
}

std::size_t msg_atomic_count(Kind kind, fi_datatype datatype, std::size_t packet_bytes) noexcept {
    const std::size_t parts = kind == Kind::kCompare ? 2 : 1;  // of a request
    return packet_bytes / parts / kDatatypeBytes[datatype];
}

int domain_query_atomic(fid_domain* self, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                        std::uint64_t flags) noexcept {
    constexpr std::uint64_t kFlags = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC | FI_TAGGED;
    if ((flags & ~kFlags) != 0 || (flags & FI_TAGGED) != 0) {
        return (flags & FI_TAGGED) != 0 ? -FI_EOPNOTSUPP : -FI_EBADFLAGS;
    }
    const Kind kind = (flags & FI_COMPARE_ATOMIC) != 0 ? Kind::kCompare
                      : (flags & FI_FETCH_ATOMIC) != 0 ? Kind::kFetch
                                                       : Kind::kBase;
    const Domain& domain = Domain::from(self);
    const bool has_plain_alone = domain.nic != nullptr;
    if ((domain.caps & FI_ATOMIC) == 0 ||
        (has_plain_alone && !is_plain_atomic(kind, datatype, op))) {
        return -FI_EOPNOTSUPP;
    }
    // Who only asks whether there is one hands in no attributes.
    const int result = valid(kind, datatype, op, attr != nullptr ? &attr->count : nullptr);
    if (result == 0 && attr != nullptr) {
        attr->size = kDatatypeBytes[datatype];
        if (domain.has_msg_info) {
            attr->count = has_plain_alone ? 1 : msg_atomic_count(kind, datatype, kLeastPacketBytes);
        }
    }
    return result;
}

int atomic_writevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    return valid(Kind::kBase, datatype, op, count);
}
int atomic_readwritevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op,
                          std::size_t* count) noexcept {
    return valid(Kind::kFetch, datatype, op, count);
}
int atomic_compwritevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op,
                          std::size_t* count) noexcept {
    return valid(Kind::kCompare, datatype, op, count);
}

}  // namespace rvt::ofi
