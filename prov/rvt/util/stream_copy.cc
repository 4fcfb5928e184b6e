// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "util/stream_copy.h"

#include <algorithm>
#include <cstdint>

#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rvt::util::detail {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kBlock = 256;

// Measured on a Xeon with 105 MiB of L3: a receiver that reads what it got gains from 64 MiB on,
// and loses a quarter below 16 MiB, because it fetches from memory what would have been in the
// cache.
std::size_t stream_limit() noexcept {
    if (!__builtin_cpu_supports("avx512f")) {
        return ~std::size_t{0};
    }
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return std::max(kLeastStreamed, cache > 0 ? static_cast<std::size_t>(cache) / 4 : 0);
}

// Precondition: `to` is aligned to 64, `blocks` are of kBlock bytes.
[[gnu::target("avx512f")]] void stream_blocks(std::byte* to, const std::byte* from,
                                              std::size_t blocks) noexcept {
    for (; blocks != 0; --blocks, to += kBlock, from += kBlock) {
        const __m512i a = _mm512_loadu_si512(from);
        const __m512i b = _mm512_loadu_si512(from + 64);
        const __m512i c = _mm512_loadu_si512(from + 128);
        const __m512i d = _mm512_loadu_si512(from + 192);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64), b);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 128), c);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 192), d);
    }
}

}  // namespace

bool is_streamed(std::size_t total) noexcept {
    static const std::size_t kLimit = stream_limit();
    return total >= kLimit;
}

void copy_past_cache(void* to, const void* from, std::size_t n) noexcept {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const std::size_t past_line = reinterpret_cast<std::uintptr_t>(out) % kCacheLine;
    const std::size_t head = std::min(n, (kCacheLine - past_line) % kCacheLine);
    const std::size_t blocks = (n - head) / kBlock;
    const std::size_t body = blocks * kBlock;
    std::memcpy(out, in, head);
    stream_blocks(out + head, in + head, blocks);
    std::memcpy(out + head + body, in + head + body, n - head - body);
    _mm_sfence();  // such stores are not ordered with others
}

#else

bool is_streamed(std::size_t) noexcept {
    return false;
}

void copy_past_cache(void* to, const void* from, std::size_t n) noexcept {
    std::memcpy(to, from, n);
}

#endif

}  // namespace rvt::util::detail
