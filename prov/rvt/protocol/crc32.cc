// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Folding by carry-less multiplication; ISA-L for short runs and for other processors.
//
// The register of a reflected CRC holds a polynomial with the coefficient of its highest power in
// the least significant bit. Bytes that stand d bits before others count x^d times as much: they
// are multiplied by x^d modulo the polynomial, in two halves of 64 bits, and added to the others.
// V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009.
#include "protocol/crc32.h"

#include <cstring>

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rvt::protocol {
namespace {

#if defined(__x86_64__)

constexpr std::uint64_t kPolynomial = 0x104c11db7;  // the highest power in the highest bit
constexpr std::size_t kBlock = 64;
constexpr std::size_t kStride = 4 * kBlock;

constexpr std::uint64_t reflect(std::uint64_t value, int bits) noexcept {
    std::uint64_t reflected = 0;
    for (int i = 0; i < bits; ++i) {
        reflected |= (value >> i & 1) << (bits - 1 - i);
    }
    return reflected;
}

/// x^power modulo the polynomial, as the multiplication of reflected values takes it.
constexpr std::uint64_t factor(int power) noexcept {
    std::uint64_t value = 1;
    for (int i = 0; i < power; ++i) {
        value <<= 1;
        value ^= (value >> 32 & 1) != 0 ? kPolynomial : 0;
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

// What moves 128 bits by so many: the low half stands 32 bits further off, the high half 32 less.
constexpr long long low_factor(int bits) noexcept {
    return static_cast<long long>(factor(bits + 32));
}
constexpr long long high_factor(int bits) noexcept {
    return static_cast<long long>(factor(bits - 32));
}

#define RVT_TARGET [[gnu::target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.1")]]

RVT_TARGET inline __m512i in_each_lane(long long high, long long low) noexcept {
    return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

RVT_TARGET inline __m512i fold(__m512i value, __m512i factors, __m512i next) noexcept {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                     _mm512_clmulepi64_epi128(value, factors, 0x11), next, 0x96);
}

/// The register after the 128 bits, and 32 zeros behind them: IBTA and Ethernet append their check.
RVT_TARGET inline std::uint32_t reduce(__m128i value) noexcept {
    const __m128i by_64 = _mm_set_epi64x(0, high_factor(128));
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

template <bool kCopies>
RVT_TARGET inline __m512i take(std::byte* to, const std::byte* from, std::size_t at) noexcept {
    const __m512i bytes = _mm512_loadu_si512(from + at);
    if constexpr (kCopies) {
        _mm512_storeu_si512(to + at, bytes);
    }
    return bytes;
}

/// Precondition: `count` is a multiple of kBlock, and not 0.
template <bool kCopies>
RVT_TARGET std::uint32_t fold_blocks(std::uint32_t crc, std::byte* to, const std::byte* from,
                                     std::size_t count) noexcept {
    const __m512i by_block = in_each_lane(high_factor(512), low_factor(512));
    const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc)));
    __m512i sum = _mm512_xor_si512(take<kCopies>(to, from, 0), before);
    std::size_t at = kBlock;
    if (count >= kStride) {
        const __m512i by_stride = in_each_lane(high_factor(2048), low_factor(2048));
        __m512i b = take<kCopies>(to, from, kBlock);
        __m512i c = take<kCopies>(to, from, 2 * kBlock);
        __m512i d = take<kCopies>(to, from, 3 * kBlock);
        for (at = kStride; at + kStride <= count; at += kStride) {
            sum = fold(sum, by_stride, take<kCopies>(to, from, at));
            b = fold(b, by_stride, take<kCopies>(to, from, at + kBlock));
            c = fold(c, by_stride, take<kCopies>(to, from, at + 2 * kBlock));
            d = fold(d, by_stride, take<kCopies>(to, from, at + 3 * kBlock));
        }
        sum = fold(sum, by_block, b);
        sum = fold(sum, by_block, c);
        sum = fold(sum, by_block, d);
    }
    for (; at < count; at += kBlock) {
        sum = fold(sum, by_block, take<kCopies>(to, from, at));
    }
    const __m512i by_lane =
        _mm512_set_epi64(0, 0, high_factor(128), low_factor(128), high_factor(256), low_factor(256),
                         high_factor(384), low_factor(384));
    const __m128i last = _mm512_maskz_extracti64x2_epi64(0xff, sum, 3);
    const __m512i moved = fold(sum, by_lane, _mm512_setzero_si512());
    const __m256i half = _mm256_xor_si256(_mm512_maskz_extracti64x4_epi64(0xff, moved, 0),
                                          _mm512_maskz_extracti64x4_epi64(0xff, moved, 1));
    const __m128i all =
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const std::uint32_t reg = reduce(_mm_xor_si128(all, last));
    _mm256_zeroupper();
    return ~reg;
}

/// How much of `count` bytes is worth folding: whole blocks.
std::size_t folded_part(std::size_t count) noexcept {
    static const bool kCanFold =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
    return kCanFold ? count / kBlock * kBlock : 0;
}

#else

constexpr std::size_t folded_part(std::size_t /*count*/) noexcept {
    return 0;
}

template <bool kCopies>
std::uint32_t fold_blocks(std::uint32_t crc, std::byte* /*to*/, const std::byte* /*from*/,
                          std::size_t /*count*/) noexcept {
    return crc;
}

#endif

/// What is too short to fold, or on another processor everything. ISA-L leaves the upper halves of
/// the vector registers in use. Until they are cleared each of the compiler's own vector
/// instructions waits for them, which a stream of packets pays with a third of its rate.
std::uint32_t crc32_of_rest(std::uint32_t crc, const std::byte* bytes, std::size_t count) noexcept {
    crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes), count);
#if defined(__x86_64__)
    static const bool kHasAvx = __builtin_cpu_supports("avx") != 0;
    if (kHasAvx) {
        __asm__ volatile("vzeroupper" ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                               "xmm15");
    }
#endif
    return crc;
}

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const std::byte* bytes, std::size_t count) noexcept {
    const std::size_t folded = folded_part(count);
    if (folded != 0) {
        crc = fold_blocks<false>(crc, nullptr, bytes, folded);
    }
    return folded == count ? crc : crc32_of_rest(crc, bytes + folded, count - folded);
}

std::uint32_t crc32_copy(std::uint32_t crc, std::byte* to, const std::byte* bytes,
                         std::size_t count) noexcept {
    const std::size_t folded = folded_part(count);
    if (folded != 0) {
        crc = fold_blocks<true>(crc, to, bytes, folded);
    }
    if (folded == count) {
        return crc;
    }
    std::memcpy(to + folded, bytes + folded, count - folded);
    return crc32_of_rest(crc, to + folded, count - folded);
}

}  // namespace rvt::protocol
