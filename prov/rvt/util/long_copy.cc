// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "util/long_copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rvt::util::detail {

#if defined(__x86_64__)

namespace {

/// From here on memcpy() has no use for "rep movsb" either, and may go past the cache.
constexpr std::size_t kMostLooped = 1u << 20;

constexpr std::size_t kVector = sizeof(__m256i);

[[gnu::target("avx2")]] inline __m256i get(const std::byte* from) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
[[gnu::target("avx2")]] inline void put(std::byte* to, __m256i vector) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), vector);
}

/// Stores aligned vectors, but for the first and the last, which overlap with their neighbours.
/// Precondition: count > kVector.
[[gnu::target("avx2")]] void copy_in_vectors(std::byte* to, const std::byte* from,
                                             std::size_t count) noexcept {
    std::byte* const end = to + count;
    const __m256i last = get(from + count - kVector);
    put(to, get(from));
    const std::size_t head = kVector - reinterpret_cast<std::uintptr_t>(to) % kVector;
    to += head;
    from += head;
    for (; to + 4 * kVector <= end; to += 4 * kVector, from += 4 * kVector) {
        const __m256i a = get(from);
        const __m256i b = get(from + kVector);
        const __m256i c = get(from + 2 * kVector);
        const __m256i d = get(from + 3 * kVector);
        put(to, a);
        put(to + kVector, b);
        put(to + 2 * kVector, c);
        put(to + 3 * kVector, d);
    }
    for (; to + kVector <= end; to += kVector, from += kVector) {
        put(to, get(from));
    }
    put(end - kVector, last);
}

/// Intel's do without a loop: glibc knows where theirs are slow, and between two cores of a Xeon
/// none beat memcpy().
bool does_loop_pay() noexcept {
    return __builtin_cpu_is("intel") == 0 && __builtin_cpu_supports("avx2") != 0;
}

}  // namespace

void copy_long(void* to, const void* from, std::size_t count) noexcept {
    static const bool kDoesLoopPay = does_loop_pay();
    if (kDoesLoopPay && count < kMostLooped) {
        copy_in_vectors(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), count);
    } else {
        std::memcpy(to, from, count);
    }
}

#else

void copy_long(void* to, const void* from, std::size_t count) noexcept {
    std::memcpy(to, from, count);
}

#endif

}  // namespace rvt::util::detail
