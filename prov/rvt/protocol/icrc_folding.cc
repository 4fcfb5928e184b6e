// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC by carry-less multiplication.
//
// The register of a reflected CRC holds a polynomial with the coefficient of its highest power in
// the least significant bit. Bytes that stand d bits before others count x^d times as much: they
// are multiplied by x^d modulo the polynomial, in two halves of 64 bits, and added to the others.
// V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009.
//
// Here the sum stays in a vector register from the headers to the end, whatever the parts' lengths
// are, and is reduced to 32 bits once: for a small packet that is most of the work.
#include "protocol/icrc_form.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rvt::protocol {

#if defined(__x86_64__)

namespace {

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

// By so many bytes.
constexpr auto kByBytes = [] {
    std::array<Factors, kBlock> by{};
    for (std::size_t i = 0; i < by.size(); ++i) {
        by[i] = factors(8 * static_cast<int>(i));
    }
    return by;
}();
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

/// The register after the 128 bits, and 32 zeros behind them: IBTA and Ethernet append their check.
RVT_STEP std::uint32_t reduce(__m128i value) noexcept {
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

/// A block that ends with the headers. Zeros before the first bytes count nothing.
template <std::size_t kWords>
RVT_STEP __m512i block_of(const MaskedHeaders<kWords>& words) noexcept {
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

RVT_STEP __m512i start(const IpPath& path, std::size_t packet_bytes, const std::byte* bth,
                       std::uint16_t identification) noexcept {
    return is_v4(path.source) ? block_of(mask_v4(path, packet_bytes, bth, identification))
                              : block_of(mask_v6(path, packet_bytes, bth));
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
RVT_STEP __m512i add_last(__m512i sum, const std::byte* from, std::size_t count) noexcept {
    // What the mask leaves out is not touched, so that it does not matter whose it is.
    const __mmask64 mask = ~std::uint64_t{0} << (kBlock - count);
    return fold(sum, in_each_quarter(kByBytes[count]),
                _mm512_maskz_loadu_epi8(mask, from + count - kBlock));
}

template <class Word>
RVT_STEP Word take_word(std::byte*& to, const std::byte*& from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof word);
    std::memcpy(to, &word, sizeof word);
    from += sizeof word;
    to += sizeof word;
    return word;
}

/// Adds the bytes of the words, in the order in which they lie in memory.
RVT_STEP __m512i add_words(__m512i sum, std::size_t bytes, std::uint64_t low,
                           std::uint64_t high) noexcept {
    return fold(sum, in_each_quarter(kByBytes[bytes]),
                _mm512_set_epi64(static_cast<long long>(high), static_cast<long long>(low), 0, 0, 0,
                                 0, 0, 0));
}

/// Copies and adds less than a block, which has often just been written, and in words: a load of
/// more would wait for all stores before it.
RVT_STEP __m512i add_last_copy(__m512i sum, std::byte* to, const std::byte* from,
                               std::size_t count) noexcept {
    for (; count >= 16; count -= 16) {
        const auto low = take_word<std::uint64_t>(to, from);
        const auto high = take_word<std::uint64_t>(to, from);
        sum = add_words(sum, 16, low, high);
    }
    if ((count & 8) != 0) {
        sum = add_words(sum, 8, 0, take_word<std::uint64_t>(to, from));
    }
    if ((count & 4) != 0) {
        sum = add_words(sum, 4, 0, std::uint64_t{take_word<std::uint32_t>(to, from)} << 32);
    }
    if ((count & 2) != 0) {
        sum = add_words(sum, 2, 0, std::uint64_t{take_word<std::uint16_t>(to, from)} << 48);
    }
    if ((count & 1) != 0) {
        sum = add_words(sum, 1, 0, std::uint64_t{take_word<std::uint8_t>(to, from)} << 56);
    }
    return sum;
}

template <bool kCopies>
RVT_STEP __m512i add(__m512i sum, std::byte* to, const std::byte* from,
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
    if constexpr (kCopies) {
        return add_last_copy(sum, to + at, from + at, count - at);
    }
    return at == count ? sum : add_last(sum, from + at, count - at);
}

RVT_STEP std::uint32_t finish(__m512i sum) noexcept {
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

RVT_TARGET std::uint32_t sum_of(const IpPath& path, std::span<const std::byte> packet,
                                std::uint16_t identification) noexcept {
    const __m512i sum = start(path, packet.size(), packet.data(), identification);
    return finish(add<false>(sum, nullptr, packet.data() + kBthBytes, packet.size() - kBthBytes));
}

RVT_TARGET std::byte* write(std::byte* to, const IpPath& path, const PacketParts& parts,
                            std::uint16_t identification) noexcept {
    const std::byte* const headers = parts.headers.data();
    __m512i sum = start(path, packet_bytes(parts), headers, identification);
    for (std::size_t at = 0; at < kBthBytes; at += sizeof(std::uint32_t)) {
        std::memcpy(to + at, headers + at, sizeof(std::uint32_t));
    }
    sum = add<true>(sum, to + kBthBytes, headers + kBthBytes, parts.headers.size() - kBthBytes);
    to += parts.headers.size();
    for (const iovec& piece : parts.payload) {
        sum = add<true>(sum, to, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
        to += piece.iov_len;
    }
    sum = add<true>(sum, to, kPadding.data(), parts.pad);
    to += parts.pad;
    const std::uint32_t icrc = htole32(finish(sum));
    std::memcpy(to, &icrc, sizeof icrc);
    return to + sizeof icrc;
}

}  // namespace

const IcrcForm* folding_icrc() noexcept {
    static constexpr IcrcForm kForm = {.of = sum_of, .write = write};
    static const bool kCanFold =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("vpclmulqdq") != 0;
    return kCanFold ? &kForm : nullptr;
}

#else

const IcrcForm* folding_icrc() noexcept {
    return nullptr;
}

#endif

}  // namespace rvt::protocol
