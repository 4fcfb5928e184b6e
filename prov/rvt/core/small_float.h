// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Floats of 16 and 8 bits, for which neither C++ nor each processor has arithmetic. It is that of
// double, rounded once to the nearest value of the format, to the even one of two: double is exact
// for products, and for sums more than twice as precise, so that the result is the one of exact
// arithmetic.
//
// Sources: IEEE 754 (binary16); bfloat16 is the upper half of a binary32; OCP 8-bit Floating Point
// Specification 1.0, 5 (E4M3 has no infinities, and one NaN of each sign).
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace rvt::core {

/// @tparam kHasInfinity  The largest exponent is that of infinity and NaN. Without: it has values,
///                       but for the largest code, which is NaN.
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
class SmallFloat {
  public:
    static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
    static_assert(kBits == 8 || kBits == 16);
    using Bits = std::conditional_t<kBits == 8, std::uint8_t, std::uint16_t>;

    constexpr SmallFloat() noexcept = default;
    /// Rounds. What is too large is infinity or, where there is none, NaN.
    explicit SmallFloat(double value) noexcept : bits_(encode(value)) {}
    static constexpr SmallFloat of_bits(Bits bits) noexcept {
        SmallFloat made;
        made.bits_ = bits;
        return made;
    }

    [[nodiscard]] constexpr Bits bits() const noexcept { return bits_; }
    [[nodiscard]] double value() const noexcept {
        const int code = bits_ & kMostCode;
        const double size = code > kMostFinite ? beyond(code) : finite(code);
        return (bits_ & kSign) != 0 ? -size : size;
    }

    friend SmallFloat operator+(SmallFloat a, SmallFloat b) noexcept {
        return SmallFloat(a.value() + b.value());
    }
    friend SmallFloat operator-(SmallFloat a, SmallFloat b) noexcept {
        return SmallFloat(a.value() - b.value());
    }
    friend SmallFloat operator*(SmallFloat a, SmallFloat b) noexcept {
        return SmallFloat(a.value() * b.value());
    }
    friend bool operator==(SmallFloat a, SmallFloat b) noexcept { return a.value() == b.value(); }
    friend std::partial_ordering operator<=>(SmallFloat a, SmallFloat b) noexcept {
        return a.value() <=> b.value();
    }

  private:
    // Codes are bits without the sign; their values grow with them.
    static constexpr int kSign = 1 << (kBits - 1);
    static constexpr int kMostCode = kSign - 1;
    static constexpr int kOne = 1 << kMantissaBits;  // of the mantissa: what is not written
    static constexpr int kMostExponent = (1 << kExponentBits) - 1;
    static constexpr int kInfinity = kMostExponent * kOne;
    static constexpr int kMostFinite = kHasInfinity ? kInfinity - 1 : kMostCode - 1;
    static constexpr int kQuiet = kHasInfinity ? kInfinity + kOne / 2 : kMostCode;
    static constexpr int kLeastExponent = 2 - (1 << (kExponentBits - 1));  // of a normal number

    static double beyond(int code) noexcept {
        return kHasInfinity && code == kInfinity ? std::numeric_limits<double>::infinity()
                                                 : std::numeric_limits<double>::quiet_NaN();
    }
    static double finite(int code) noexcept {
        const int exponent = code / kOne;
        const int mantissa = code % kOne;
        return exponent == 0
                   ? std::ldexp(mantissa, kLeastExponent - kMantissaBits)
                   : std::ldexp(kOne + mantissa, kLeastExponent + exponent - 1 - kMantissaBits);
    }
    static Bits encode(double value) noexcept {
        const int code = std::isnan(value) ? kQuiet : encode_size(std::fabs(value));
        return static_cast<Bits>(code | (std::signbit(value) ? kSign : 0));
    }
    static int encode_size(double size) noexcept {
        constexpr int kTooLarge = kHasInfinity ? kInfinity : kQuiet;
        int exponent = 0;
        if (std::isinf(size)) {
            return kTooLarge;
        }
        std::frexp(size, &exponent);  // size < 2^exponent
        const int normal =
            size == 0 || exponent - 1 < kLeastExponent ? 0 : exponent - 1 - kLeastExponent;
        if (normal >= kMostExponent) {
            return kTooLarge;
        }
        // In units of the last place; a mantissa that is rounded up to its end is the next
        // exponent.
        const double units = std::ldexp(size, kMantissaBits - kLeastExponent - normal);
        const int code = normal * kOne + round(units);
        return code > kMostFinite ? kTooLarge : code;
    }
    /// To the nearest, whatever this thread's rounding is. Precondition: 0 <= `units` < 2^30.
    static int round(double units) noexcept {
        const int below = static_cast<int>(units);
        const double rest = units - below;
        const bool is_up = rest > 0.5 || (rest == 0.5 && below % 2 != 0);
        return below + (is_up ? 1 : 0);
    }

    Bits bits_ = 0;
};

using Float16 = SmallFloat<5, 10, true>;
using Bfloat16 = SmallFloat<8, 7, true>;
using Float8E4m3 = SmallFloat<4, 3, false>;
using Float8E5m2 = SmallFloat<5, 2, true>;

template <class T>
inline constexpr bool kIsSmallFloat = false;
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
inline constexpr bool kIsSmallFloat<SmallFloat<kExponentBits, kMantissaBits, kHasInfinity>> = true;

}  // namespace rvt::core
