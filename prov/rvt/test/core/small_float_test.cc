// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Floats of 16 and 8 bits: every code, and what lies between each and the next.
#include "core/small_float.h"

#include "common/check.h"

using namespace rvt::core;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Calls `visit(code)` for each value of a format that is not negative, in their order.
template <class T, class Visit>
void for_each_finite(Visit visit) {
    using Bits = typename T::Bits;
    for (Bits code = 0; std::isfinite(T::of_bits(code).value()); ++code) {
        visit(code);
    }
}

template <class T>
T of(unsigned bits) {
    return T::of_bits(static_cast<typename T::Bits>(bits));
}
template <class T>
constexpr unsigned kSignOf = 1u << (T::kBits - 1);

template <class T>
void keeps_values() {
    for_each_finite<T>([](unsigned code) {
        RVT_EQ(T(of<T>(code).value()).bits(), code);
        RVT_EQ(T(-of<T>(code).value()).bits(), code | kSignOf<T>);
    });
}

/// Between one code and the next what is nearer to either becomes that one; what is between both,
/// the even one.
template <class T>
void rounds_to_nearest() {
    for_each_finite<T>([](unsigned code) {
        const double low = of<T>(code).value();
        const double high = of<T>(code + 1).value();
        if (!std::isfinite(high)) {
            return;
        }
        const double middle = (low + high) / 2;
        RVT_EQ(T(middle).bits(), code + code % 2);
        RVT_EQ(T(std::nextafter(middle, low)).bits(), code);
        RVT_EQ(T(std::nextafter(middle, high)).bits(), code + 1);
    });
}

/// As the nearest of all codes, looked for one after the other.
template <class T>
unsigned nearest(double value) {
    unsigned best = 0;
    for_each_finite<T>([&](unsigned code) {
        const double distance = std::fabs(of<T>(code).value() - std::fabs(value));
        const double least = std::fabs(of<T>(best).value() - std::fabs(value));
        if (distance < least || (distance == least && code % 2 == 0)) {
            best = code;
        }
    });
    return std::signbit(value) ? best | kSignOf<T> : best;
}

template <class T>
void computes_exactly() {
    const double most = T::kBits == 8 ? (std::is_same_v<T, Float8E4m3> ? 448 : 57344) : 0;
    for (unsigned a = 0; a < 256; ++a) {
        for (unsigned b = 0; b < 256; ++b) {
            // Of numbers with four digits at most double has the exact sum, product, difference.
            const double x = of<T>(a).value();
            const double y = of<T>(b).value();
            if (!std::isfinite(x) || !std::isfinite(y)) {
                continue;
            }
            if (std::fabs(x + y) <= most) {
                RVT_EQ((of<T>(a) + of<T>(b)).bits(), nearest<T>(x + y));
            }
            if (std::fabs(x * y) <= most) {
                RVT_EQ((of<T>(a) * of<T>(b)).bits(), nearest<T>(x * y));
            }
        }
    }
}

}  // namespace

Test(small_float, every_value_is_kept) {
    keeps_values<Float16>();
    keeps_values<Bfloat16>();
    keeps_values<Float8E4m3>();
    keeps_values<Float8E5m2>();
}

Test(small_float, what_lies_between_two_values_becomes_the_nearer_or_the_even_one) {
    rounds_to_nearest<Float16>();
    rounds_to_nearest<Bfloat16>();
    rounds_to_nearest<Float8E4m3>();
    rounds_to_nearest<Float8E5m2>();
}

Test(small_float, sums_and_products_are_rounded_once) {
    computes_exactly<Float8E4m3>();
    computes_exactly<Float8E5m2>();
}

Test(small_float, a_bfloat16_is_the_upper_half_of_a_float) {
    for (unsigned code = 0; code < 0x7f80; ++code) {
        const std::uint32_t bits = code << 16;
        float whole = 0;
        std::memcpy(&whole, &bits, sizeof whole);
        RVT_ASSERT(of<Bfloat16>(code).value() == static_cast<double>(whole));
    }
}

Test(small_float, known_values_have_their_codes) {
    RVT_EQ(Float16(1).bits(), 0x3c00);
    RVT_EQ(Float16(65504).bits(), 0x7bff);
    RVT_EQ(Float16(0x1p-24).bits(), 0x0001);
    RVT_EQ(Bfloat16(-2).bits(), 0xc000);
    RVT_EQ(Float8E4m3(448).bits(), 0x7e);
    RVT_EQ(Float8E4m3(0x1p-9).bits(), 0x01);
    RVT_EQ(Float8E5m2(57344).bits(), 0x7b);
    RVT_EQ(Float8E5m2(0x1p-16).bits(), 0x01);
}

Test(small_float, what_is_too_large_is_infinity_or_where_there_is_none_nan) {
    RVT_EQ(Float16(65519.9).bits(), 0x7bff);
    RVT_EQ(Float16(65520).bits(), 0x7c00);
    RVT_EQ(Float16(-1e300).bits(), 0xfc00);
    RVT_EQ(Bfloat16(kInfinity).bits(), 0x7f80);
    RVT_EQ(Float8E5m2(61440).bits(), 0x7c);
    RVT_EQ(Float8E4m3(464).bits(), 0x7e);
    RVT_EQ(Float8E4m3(465).bits(), 0x7f);
    RVT_EQ(Float8E4m3(-kInfinity).bits(), 0xff);
}

Test(small_float, no_nan_is_equal_to_anything) {
    const Float16 nan(kInfinity - kInfinity);
    RVT_ASSERT(!(nan == nan) && !(nan < nan) && !(nan >= nan));
    RVT_ASSERT(std::isnan(of<Float8E4m3>(0x7f).value()) &&
               std::isnan(of<Float8E4m3>(0xff).value()));
    RVT_ASSERT(std::isnan(of<Float8E5m2>(0x7d).value()));
}

Test(small_float, zero_has_two_signs_and_one_value) {
    RVT_ASSERT(Float16(0.0) == Float16(-0.0));
    RVT_EQ(Float16(-0.0).bits(), 0x8000);
}
