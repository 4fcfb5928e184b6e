// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What forms of the ICRC by carry-less multiplication share.
//
// The register of a reflected CRC holds a polynomial with the coefficient of its highest power in
// the least significant bit. Bytes that stand d bits before others count x^d times as much: they
// are multiplied by x^d modulo the polynomial, in two halves of 64 bits, and added to the others.
// V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009.
//
// Here the sum stays in a vector register from the headers to the end, whatever the parts' lengths
// are, and is reduced to 32 bits once: for a small packet that is most of the work.
#pragma once

#if defined(__x86_64__)

#include <array>
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace rvt::protocol {

inline constexpr std::uint64_t kPolynomial = 0x104c11db7;  // the highest power in the highest bit

constexpr std::uint64_t reflect(std::uint64_t value, int bits) noexcept {
    std::uint64_t reflected = 0;
    for (int i = 0; i < bits; ++i) {
        reflected |= (value >> i & 1) << (bits - 1 - i);
    }
    return reflected;
}

/// x^power modulo the polynomial, as the multiplication of reflected values takes it. The power may
/// be negative.
constexpr std::uint64_t factor(int power) noexcept {
    std::uint64_t value = 1;
    for (int i = 0; i < power; ++i) {
        value <<= 1;
        value ^= (value >> 32 & 1) != 0 ? kPolynomial : 0;
    }
    for (int i = 0; i > power; --i) {
        value = ((value & 1) != 0 ? value ^ kPolynomial : value) >> 1;
    }
    return reflect(value, 32) << 1;
}

/// x^64 divided by the polynomial.
constexpr std::uint64_t reciprocal() noexcept {
    std::uint64_t rest = 0;
    std::uint64_t quotient = 0;
    for (int bit = 64; bit >= 0; --bit) {
        rest = rest << 1 | (bit == 64 ? 1 : 0);
        quotient <<= 1;
        if ((rest >> 32 & 1) != 0) {
            rest ^= kPolynomial;
            quotient |= 1;
        }
    }
    return reflect(quotient, 33);
}

/// What moves 128 bits by so many: the low half stands 32 bits further off, the high half 32 less.
struct alignas(16) Factors {
    std::uint64_t low;
    std::uint64_t high;
};
constexpr Factors factors(int bits) noexcept {
    return {factor(bits + 32), factor(bits - 32)};
}

/// By so many bytes, less than 64.
inline constexpr auto kByBytes = [] {
    std::array<Factors, 64> by{};
    for (std::size_t i = 0; i < by.size(); ++i) {
        by[i] = factors(8 * static_cast<int>(i));
    }
    return by;
}();

/// The register after the 128 bits, and 32 zeros behind them: IBTA and Ethernet append their check.
[[gnu::target("pclmul,sse4.1"), gnu::always_inline]] inline std::uint32_t reduce(
    __m128i value) noexcept {
    const __m128i by_64 = _mm_set_epi64x(0, static_cast<long long>(factor(128 - 32)));
    const __m128i by_32 = _mm_set_epi64x(0, static_cast<long long>(factor(64)));
    const __m128i divide = _mm_set_epi64x(static_cast<long long>(reciprocal()),
                                          static_cast<long long>(reflect(kPolynomial, 33)));
    const __m128i low_32 = _mm_set_epi32(0, 0, 0, -1);
    // 128 bits to 96, to 64, to 32.
    value = _mm_xor_si128(_mm_clmulepi64_si128(value, by_64, 0x00), _mm_srli_si128(value, 8));
    value = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(value, low_32), by_32, 0x00),
                          _mm_srli_si128(value, 4));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_32), divide, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), divide, 0x00);
    return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(value, quotient), 1));
}

}  // namespace rvt::protocol

#endif
