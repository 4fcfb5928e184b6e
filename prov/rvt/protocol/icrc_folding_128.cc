// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC by carry-less multiplication of 128 bits at a time: AVX and PCLMULQDQ.
#include "protocol/icrc_folding.h"
#include "protocol/icrc_form.h"

namespace rvt::protocol {

#if defined(__x86_64__)

namespace {

using Sum = __m128i;

constexpr std::size_t kBlock = 16;
constexpr std::size_t kStride = 4 * kBlock;
constexpr Factors kByStride = factors(8 * kStride);

#define RVT_TARGET [[gnu::target("avx,pclmul")]]
#define RVT_STEP RVT_TARGET [[gnu::always_inline]] inline

/// `value` moved by `factors`, and `next` behind it.
RVT_STEP __m128i fold(__m128i value, __m128i factors, __m128i next) noexcept {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(value, factors, 0x00),
                                       _mm_clmulepi64_si128(value, factors, 0x11)),
                         next);
}
RVT_STEP __m128i fold(__m128i value, const Factors& factors, __m128i next) noexcept {
    return fold(value, _mm_load_si128(reinterpret_cast<const __m128i*>(&factors)), next);
}

/// The sum of the headers, with which a block ends. Zeros before the first bytes count nothing.
template <std::size_t kWords>
RVT_STEP Sum begin(const MaskedHeaders<kWords>& words) noexcept {
    constexpr std::size_t kZeros = -kWords % (kBlock / 4);
    const auto at = [&](std::size_t i) {
        return i < kZeros ? 0 : words[i - kZeros] ^ (i == kZeros ? ~kNoRouteHeader : 0);
    };
    const auto two_at = [&](std::size_t i) {
        return static_cast<long long>(std::uint64_t{at(i + 1)} << 32 | at(i));
    };
    Sum sum = _mm_set_epi64x(two_at(2), two_at(0));
    for (std::size_t i = kBlock / 4; i < kZeros + kWords; i += kBlock / 4) {
        sum = fold(sum, kByBytes[kBlock], _mm_set_epi64x(two_at(i + 2), two_at(i)));
    }
    return sum;
}

/// Reads a block, and copies it if asked to: what counts is what was copied, also when somebody
/// changes the bytes meanwhile.
template <bool kCopies>
RVT_STEP __m128i take(std::byte* to, const std::byte* from, std::size_t at) noexcept {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    if constexpr (kCopies) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), bytes);
    }
    return bytes;
}

/// Adds the bytes of the words, in the order in which they lie in memory.
RVT_STEP Sum add_words(Sum sum, std::size_t bytes, std::uint64_t low, std::uint64_t high) noexcept {
    return fold(sum, kByBytes[bytes],
                _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
}

template <bool kCopies>
RVT_STEP Sum add_in_words(Sum sum, std::byte* to, const std::byte* from,
                          std::size_t count) noexcept;  // in icrc_folding.inl

/// Adds less than a block.
RVT_STEP Sum add_last(Sum sum, const std::byte* from, std::size_t count) noexcept {
    return add_in_words<false>(sum, nullptr, from, count);
}

/// Adds all whole blocks. Returns: the bytes of them.
template <bool kCopies>
RVT_STEP std::size_t add_blocks(Sum& sum, std::byte* to, const std::byte* from,
                                std::size_t count) noexcept {
    std::size_t at = 0;
    if (count >= kStride) {
        __m128i a = fold(sum, kByBytes[kBlock], take<kCopies>(to, from, 0));
        __m128i b = take<kCopies>(to, from, kBlock);
        __m128i c = take<kCopies>(to, from, 2 * kBlock);
        __m128i d = take<kCopies>(to, from, 3 * kBlock);
        for (at = kStride; at + kStride <= count; at += kStride) {
            a = fold(a, kByStride, take<kCopies>(to, from, at));
            b = fold(b, kByStride, take<kCopies>(to, from, at + kBlock));
            c = fold(c, kByStride, take<kCopies>(to, from, at + 2 * kBlock));
            d = fold(d, kByStride, take<kCopies>(to, from, at + 3 * kBlock));
        }
        const __m128i cd = fold(c, kByBytes[kBlock], d);
        sum = fold(a, kByBytes[3 * kBlock], fold(b, kByBytes[2 * kBlock], cd));
    }
    for (; at + kBlock <= count; at += kBlock) {
        sum = fold(sum, kByBytes[kBlock], take<kCopies>(to, from, at));
    }
    return at;
}

RVT_STEP std::uint32_t finish(Sum sum) noexcept {
    return ~reduce(sum);
}

#include "protocol/icrc_folding.inl"

}  // namespace

const IcrcForm* folding_icrc_128() noexcept {
    static constexpr IcrcForm kForm = {.of = sum_of, .write = write};
    static const bool kCanFold =
        __builtin_cpu_supports("avx") != 0 && __builtin_cpu_supports("pclmul") != 0;
    return kCanFold ? &kForm : nullptr;
}

#else

const IcrcForm* folding_icrc_128() noexcept {
    return nullptr;
}

#endif

}  // namespace rvt::protocol
