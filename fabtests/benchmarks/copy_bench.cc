// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The provider's copy routines beside memcpy(): nanoseconds for a few bytes, GB/s for many, within
// the cache, where the destination lies as rings and memory of malloc() lie to each other.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <time.h>

#include "util/cpu.h"
#include "util/long_copy.h"
#include "util/mem_copy.h"

namespace {

// Of this thread: what others do on the processor does not count.
double now_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Nanoseconds for one copy of each of `sizes` in turn.
template <class Copy>
double measure_small(const std::vector<std::size_t>& sizes, Copy copy) {
    alignas(64) static std::byte from[64 * 16];
    alignas(64) static std::byte to[64 * 16];
    double best = 1e30;
    for (int repeat = 0; repeat < 20; ++repeat) {
        const double start = now_ns();
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            copy(to + i % 16 * 64, from + i % 16 * 64, sizes[i]);
            rvt::util::compiler_barrier();
        }
        best = std::min(best, now_ns() - start);
    }
    return best / static_cast<double>(sizes.size());
}

void report_small(const char* name, std::size_t least, std::size_t most) {
    std::mt19937 random(1);
    std::vector<std::size_t> sizes(50000);
    std::generate(sizes.begin(), sizes.end(),
                  [&] { return least + random() % (most - least + 1); });
    const double plain = measure_small(sizes, [](void* to, const void* from, std::size_t n) {
        // Not known to be small: as a caller of the library would have it.
        asm volatile("" : "+r"(n));
        std::memcpy(to, from, n);
    });
    const double ours = measure_small(sizes, [](void* to, const void* from, std::size_t n) {
        asm volatile("" : "+r"(n));
        rvt::util::copy_small(to, from, n);
    });
    std::printf("%-24s %8.2f %8.2f\n", name, plain, ours);
}

// GB/s of copying `bytes` from the begin of a page to `offset` bytes behind that of another one.
template <class Copy>
double measure_long(std::byte* to, const std::byte* from, std::size_t bytes, Copy copy) {
    const std::size_t count = (std::size_t{16} << 20) / bytes;
    double best = 1e30;
    for (int repeat = 0; repeat < 10; ++repeat) {
        const double start = now_ns();
        for (std::size_t i = 0; i < count; ++i) {
            copy(to, from, bytes);
            rvt::util::compiler_barrier();
        }
        best = std::min(best, now_ns() - start);
    }
    return static_cast<double>(count * bytes) / best;
}

void report_long(std::size_t bytes, std::size_t offset) {
    constexpr std::size_t kPage = 4096;
    constexpr std::size_t kMost = 1u << 20;
    alignas(kPage) static std::byte from[kMost];
    alignas(kPage) static std::byte to[kMost + kPage];
    std::memset(from, 1, bytes);  // memory that is not written is one page of zeros for all
    const double plain =
        measure_long(to + offset, from, bytes,
                     [](void* a, const void* b, std::size_t n) { std::memcpy(a, b, n); });
    const double ours =
        measure_long(to + offset, from, bytes,
                     [](void* a, const void* b, std::size_t n) { rvt::util::copy_bytes(a, b, n); });
    std::printf("%-12zu %11zu %8.1f %8.1f\n", bytes, offset, plain, ours);
}

}  // namespace

int main() {
    std::printf("%-24s %8s %8s   ns\n", "small, bytes", "memcpy", "ours");
    report_small("8", 8, 8);
    report_small("40", 40, 40);
    report_small("56", 56, 56);
    report_small("0 to 56 in any order", 0, 56);
    report_small("16 to 56 in any order", 16, 56);
    std::printf("%-12s %11s %8s %8s   GB/s\n", "long, bytes", "in page at", "memcpy", "ours");
    for (const std::size_t bytes : {2048u, 4096u, 16u << 10, 64u << 10, 256u << 10, 1u << 20}) {
        for (const std::size_t offset : {0, 16, 64}) {
            report_long(bytes, offset);
        }
    }
    return 0;
}
