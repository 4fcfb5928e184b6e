// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "util/long_copy.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace rvt::util::detail {

#if defined(__x86_64__)

namespace {

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

/// The processor's, with the extended part: 0x19 is AMD's Zen 3 and Zen 4, 0x1a is Zen 5.
unsigned family() noexcept {
    unsigned signature = 0;
    unsigned rest[3];
    if (__get_cpuid(1, &signature, &rest[0], &rest[1], &rest[2]) == 0) {
        return 0;
    }
    return ((signature >> 8) & 0xfu) + ((signature >> 20) & 0xffu);
}

/// From which length on memcpy() is to be preferred to the loop, that is "rep movsb".
/// * Intel's: always. glibc knows where theirs is slow, and between two cores of a Xeon no loop
///   beat it.
/// * AMD's from Zen 5 on: from 8 KiB. Theirs minds no place in a page, and writes many lines
///   without reading them first: five times as fast as a loop where another core complex has them.
/// * AMD's before: from 1 MiB, where it has no use for "rep movsb" either, and may go past the
///   cache.
std::size_t least_not_looped() noexcept {
    constexpr unsigned kZen5 = 0x1a;
    if (__builtin_cpu_is("intel") != 0 || __builtin_cpu_supports("avx2") == 0) {
        return 0;
    }
    return __builtin_cpu_is("amd") != 0 && family() >= kZen5 ? 8u << 10 : 1u << 20;
}

}  // namespace

void copy_long(void* to, const void* from, std::size_t count) noexcept {
    static const std::size_t kLeastNotLooped = least_not_looped();
    if (count < kLeastNotLooped) {
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
