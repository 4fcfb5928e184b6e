// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "functional/atomic_model.h"

#include <cmath>
#include <compare>
#include <complex>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace fab {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

template <class T>
constexpr bool kReal = !IsComplex<T>::value;
template <class T>
constexpr bool kWhole =
    std::is_integral_v<T> || std::is_same_v<T, Int128> || std::is_same_v<T, Uint128>;

/// A float of 16 or 8 bits, by its codes: without the sign they stand in the order of their values.
/// @tparam kMostFinite  The largest code that is no infinity and no NaN.
template <class Bits, int kMantissaBits, int kBias, int kMostFinite>
class SmallFloat {
  public:
    SmallFloat() = default;
    explicit SmallFloat(double value) {
        const double size = std::fabs(value);
        int code = 0;
        for (int step = (kSign + 1) / 2; step > 0; step /= 2) {
            if (code + step <= kMostFinite && size_of(code + step) <= size) code += step;
        }
        if (code < kMostFinite) {
            const double below = size - size_of(code);
            const double above = size_of(code + 1) - size;
            if (above < below || (above == below && code % 2 != 0)) ++code;
        }
        code_ = static_cast<Bits>(value < 0 ? code + kSign : code);
    }
    double value() const { return code_ >= kSign ? -size_of(code_ - kSign) : size_of(code_); }

    friend SmallFloat operator+(SmallFloat a, SmallFloat b) {
        return SmallFloat(a.value() + b.value());
    }
    friend SmallFloat operator-(SmallFloat a, SmallFloat b) {
        return SmallFloat(a.value() - b.value());
    }
    friend SmallFloat operator*(SmallFloat a, SmallFloat b) {
        return SmallFloat(a.value() * b.value());
    }
    friend bool operator==(SmallFloat a, SmallFloat b) { return a.value() == b.value(); }
    friend auto operator<=>(SmallFloat a, SmallFloat b) { return a.value() <=> b.value(); }

  private:
    static constexpr int kSign = 1 << (8 * static_cast<int>(sizeof(Bits)) - 1);

    static double size_of(int code) {
        const int exponent = code >> kMantissaBits;
        const int mantissa = code & ((1 << kMantissaBits) - 1);
        return exponent == 0
                   ? std::ldexp(mantissa, 1 - kBias - kMantissaBits)
                   : std::ldexp((1 << kMantissaBits) + mantissa, exponent - kBias - kMantissaBits);
    }

    Bits code_;
};
using Float16 = SmallFloat<std::uint16_t, 10, 15, 0x7bff>;
using Bfloat16 = SmallFloat<std::uint16_t, 7, 127, 0x7f7f>;
using Float8E4m3 = SmallFloat<std::uint8_t, 3, 7, 0x7e>;
using Float8E5m2 = SmallFloat<std::uint8_t, 2, 15, 0x7b>;

// Numbers that the headers of libfabric 1.17 have no names for.
constexpr auto kDiff = static_cast<fi_op>(19);
constexpr auto datatype(int number) {
    return static_cast<fi_datatype>(number);
}

template <class T>
T load(const void* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

template <class T>
T truth(bool value) {
    return T(value ? 1 : 0);
}

template <class T>
T arithmetic(fi_op op, T old, T operand) {
    if constexpr (kReal<T>) {
        if (op == FI_MIN) return operand < old ? operand : old;
        if (op == FI_MAX) return operand > old ? operand : old;
    }
    if (op == kDiff) return static_cast<T>(old - operand);
    return op == FI_SUM ? static_cast<T>(old + operand) : static_cast<T>(old * operand);
}

template <class T>
T logical(fi_op op, T old, T operand) {
    const bool a = old != T(0);
    const bool b = operand != T(0);
    if (op == FI_LOR) return truth<T>(a || b);
    if (op == FI_LAND) return truth<T>(a && b);
    return truth<T>(a != b);
}

template <class T>
T bitwise(fi_op op, T old, T operand) {
    if constexpr (kWhole<T>) {
        if (op == FI_BOR) return static_cast<T>(old | operand);
        if (op == FI_BAND) return static_cast<T>(old & operand);
        return static_cast<T>(old ^ operand);
    }
    return old;
}

template <class T>
bool swaps(fi_op op, T old, T compare) {
    if constexpr (kReal<T>) {
        switch (op) {
            case FI_CSWAP_LE: return compare <= old;
            case FI_CSWAP_LT: return compare < old;
            case FI_CSWAP_GE: return compare >= old;
            case FI_CSWAP_GT: return compare > old;
            default: break;
        }
    }
    return (compare == old) == (op == FI_CSWAP);
}

template <class T>
T result_of(fi_op op, T old, T operand, T compare) {
    if (op == kDiff) return arithmetic(op, old, operand);
    switch (op) {
        case FI_MIN:
        case FI_MAX:
        case FI_SUM:
        case FI_PROD: return arithmetic(op, old, operand);
        case FI_LOR:
        case FI_LAND:
        case FI_LXOR: return logical(op, old, operand);
        case FI_BOR:
        case FI_BAND:
        case FI_BXOR: return bitwise(op, old, operand);
        case FI_ATOMIC_READ: return old;
        case FI_ATOMIC_WRITE: return operand;
        case FI_MSWAP:
            if constexpr (kWhole<T>) {
                return static_cast<T>((operand & compare) | (old & ~compare));
            }
            return old;
        default: return swaps(op, old, compare) ? operand : old;
    }
}

template <class T>
T from_int(int value) {
    if constexpr (kReal<T>) {
        return static_cast<T>(value);
    } else {
        return T(static_cast<typename T::value_type>(value));
    }
}

template <class T>
void set(void* at, int value) {
    const T typed = from_int<T>(value);
    std::memset(at, 0, sizeof(T));
    std::memcpy(at, &typed, sizeof typed);
}

template <class T>
void apply(fi_op op, void* target, const void* operand, const void* compare) {
    const T value = result_of(op, load<T>(target), load<T>(operand), load<T>(compare));
    std::memcpy(target, &value, sizeof value);
}

template <class T>
bool equal(const void* a, const void* b) {
    return load<T>(a) == load<T>(b);
}

template <class T>
bool defines(fi_op op) {
    switch (op) {
        case FI_BOR:
        case FI_BAND:
        case FI_BXOR:
        case FI_MSWAP: return kWhole<T>;
        case FI_MIN:
        case FI_MAX:
        case FI_CSWAP_LE:
        case FI_CSWAP_LT:
        case FI_CSWAP_GE:
        case FI_CSWAP_GT: return kReal<T>;
        default: return true;
    }
}

template <class T>
constexpr AtomicType row(fi_datatype type, const char* name) {
    return {type, name, sizeof(T), set<T>, apply<T>, equal<T>, defines<T>};
}

const AtomicType kTypes[] = {
    row<std::int8_t>(FI_INT8, "int8"),
    row<std::uint8_t>(FI_UINT8, "uint8"),
    row<std::int16_t>(FI_INT16, "int16"),
    row<std::uint16_t>(FI_UINT16, "uint16"),
    row<std::int32_t>(FI_INT32, "int32"),
    row<std::uint32_t>(FI_UINT32, "uint32"),
    row<std::int64_t>(FI_INT64, "int64"),
    row<std::uint64_t>(FI_UINT64, "uint64"),
    row<float>(FI_FLOAT, "float"),
    row<double>(FI_DOUBLE, "double"),
    row<std::complex<float>>(FI_FLOAT_COMPLEX, "float complex"),
    row<std::complex<double>>(FI_DOUBLE_COMPLEX, "double complex"),
    row<long double>(FI_LONG_DOUBLE, "long double"),
    row<std::complex<long double>>(FI_LONG_DOUBLE_COMPLEX, "long double complex"),
    row<Int128>(FI_INT128, "int128"),
    row<Uint128>(FI_UINT128, "uint128"),
    row<Float16>(datatype(16), "float16"),
    row<Bfloat16>(datatype(17), "bfloat16"),
    row<Float8E4m3>(datatype(18), "float8 e4m3"),
    row<Float8E5m2>(datatype(19), "float8 e5m2"),
};

constexpr fi_op kFetchOps[] = {FI_MIN,  FI_MAX,          FI_SUM,        FI_PROD, FI_LOR,
                               FI_LAND, FI_BOR,          FI_BAND,       FI_LXOR, FI_BXOR,
                               kDiff,   FI_ATOMIC_WRITE, FI_ATOMIC_READ};
constexpr fi_op kCompareOps[] = {FI_CSWAP,    FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT,
                                 FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP};

}  // namespace

std::span<const AtomicType> atomic_types() {
    return kTypes;
}

std::span<const fi_op> atomic_ops(AtomicForm form) {
    switch (form) {
        case AtomicForm::kBase: return std::span(kFetchOps).first(std::size(kFetchOps) - 1);
        case AtomicForm::kFetch: return kFetchOps;
        case AtomicForm::kCompare: return kCompareOps;
    }
    return {};
}

}  // namespace fab
