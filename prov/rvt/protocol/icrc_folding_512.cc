// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC by carry-less multiplication of 512 bits at a time: AVX-512 and VPCLMULQDQ.
#include "protocol/icrc_folding.h"
#include "protocol/icrc_form.h"

namespace rvt::protocol {

#if defined(__x86_64__)

namespace {

using Sum = __m512i;

constexpr std::size_t kBlock = 64;
constexpr std::size_t kStride = 4 * kBlock;

// By so many blocks.
constexpr std::array<Factors, 5> kByBlocks = {factors(0), factors(512), factors(1024),
                                              factors(1536), factors(2048)};
// Each quarter of a block to the end of it.
alignas(64) constexpr std::array<Factors, 4> kToEnd = {factors(384), factors(256), factors(128),
                                                       Factors{0, 0}};

#define RVT_TARGET [[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,vpclmulqdq,pclmul,sse4.1")]]
#define RVT_STEP RVT_TARGET [[gnu::always_inline]] inline

RVT_STEP __m512i in_each_quarter(const Factors& factors) noexcept {
    return _mm512_maskz_broadcast_i64x2(0xff,
                                        _mm_load_si128(reinterpret_cast<const __m128i*>(&factors)));
}

/// `value` moved by `factors`, and `next` behind it.
RVT_STEP __m512i fold(__m512i value, __m512i factors, __m512i next) noexcept {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                     _mm512_clmulepi64_epi128(value, factors, 0x11), next, 0x96);
}

/// The sum of the headers, with which a block ends. Zeros before the first bytes count nothing.
template <std::size_t kWords>
RVT_STEP Sum begin(const MaskedHeaders<kWords>& words) noexcept {
    const auto at = [&](std::size_t i) {
        constexpr std::size_t kZeros = kBlock / 4 - kWords;
        return i < kZeros ? 0 : words[i - kZeros] ^ (i == kZeros ? ~kNoRouteHeader : 0);
    };
    const auto two_at = [&](std::size_t i) {
        return static_cast<long long>(std::uint64_t{at(i + 1)} << 32 | at(i));
    };
    return _mm512_set_epi64(two_at(14), two_at(12), two_at(10), two_at(8), two_at(6), two_at(4),
                            two_at(2), two_at(0));
}

/// Reads a block, and copies it if asked to: what counts is what was copied, also when somebody
/// changes the bytes meanwhile.
template <bool kCopies>
RVT_STEP __m512i take(std::byte* to, const std::byte* from, std::size_t at) noexcept {
    const __m512i bytes = _mm512_loadu_si512(from + at);
    if constexpr (kCopies) {
        _mm512_storeu_si512(to + at, bytes);
    }
    return bytes;
}

/// Adds less than a block.
RVT_STEP Sum add_last(Sum sum, const std::byte* from, std::size_t count) noexcept {
    // What the mask leaves out is not touched, so that it does not matter whose it is.
    const __mmask64 mask = ~std::uint64_t{0} << (kBlock - count);
    return fold(sum, in_each_quarter(kByBytes[count]),
                _mm512_maskz_loadu_epi8(mask, from + count - kBlock));
}

/// Adds the bytes of the words, in the order in which they lie in memory.
RVT_STEP Sum add_words(Sum sum, std::size_t bytes, std::uint64_t low, std::uint64_t high) noexcept {
    return fold(sum, in_each_quarter(kByBytes[bytes]),
                _mm512_set_epi64(static_cast<long long>(high), static_cast<long long>(low), 0, 0, 0,
                                 0, 0, 0));
}

/// Adds all whole blocks. Returns: the bytes of them.
template <bool kCopies>
RVT_STEP std::size_t add_blocks(Sum& sum, std::byte* to, const std::byte* from,
                                std::size_t count) noexcept {
    const __m512i by_block = in_each_quarter(kByBlocks[1]);
    std::size_t at = 0;
    if (count >= kStride) {
        const __m512i by_stride = in_each_quarter(kByBlocks[4]);
        __m512i a = fold(sum, by_block, take<kCopies>(to, from, 0));
        __m512i b = take<kCopies>(to, from, kBlock);
        __m512i c = take<kCopies>(to, from, 2 * kBlock);
        __m512i d = take<kCopies>(to, from, 3 * kBlock);
        for (at = kStride; at + kStride <= count; at += kStride) {
            a = fold(a, by_stride, take<kCopies>(to, from, at));
            b = fold(b, by_stride, take<kCopies>(to, from, at + kBlock));
            c = fold(c, by_stride, take<kCopies>(to, from, at + 2 * kBlock));
            d = fold(d, by_stride, take<kCopies>(to, from, at + 3 * kBlock));
        }
        const __m512i ab =
            fold(a, in_each_quarter(kByBlocks[3]), fold(b, in_each_quarter(kByBlocks[2]), d));
        sum = fold(c, by_block, ab);
    }
    for (; at + kBlock <= count; at += kBlock) {
        sum = fold(sum, by_block, take<kCopies>(to, from, at));
    }
    return at;
}

RVT_STEP std::uint32_t finish(Sum sum) noexcept {
    const __m128i last = _mm512_maskz_extracti64x2_epi64(0xff, sum, 3);
    const __m512i moved = fold(sum, _mm512_load_si512(kToEnd.data()), _mm512_setzero_si512());
    const __m256i half = _mm256_xor_si256(_mm512_maskz_extracti64x4_epi64(0xff, moved, 0),
                                          _mm512_maskz_extracti64x4_epi64(0xff, moved, 1));
    const __m128i all =
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const std::uint32_t reg = reduce(_mm_xor_si128(all, last));
    _mm256_zeroupper();
    return ~reg;
}

#include "protocol/icrc_folding.inl"

}  // namespace

const IcrcForm* folding_icrc_512() noexcept {
    static constexpr IcrcForm kForm = {.of = sum_of, .write = write};
    static const bool kCanFold =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("vpclmulqdq") != 0;
    return kCanFold ? &kForm : nullptr;
}

#else

const IcrcForm* folding_icrc_512() noexcept {
    return nullptr;
}

#endif

}  // namespace rvt::protocol
