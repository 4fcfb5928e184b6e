// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the processor offers that C++ does not name: cache lines, the pause hint, prefetch, a cycle
// counter. By builtins: the header of x86's intrinsics is a third of what most sources would
// include.
#pragma once

#include <cstddef>
#include <cstdint>
#if !defined(__x86_64__)
#include <ctime>
#endif

#define RVT_ALWAYS_INLINE [[gnu::always_inline]] inline
// The same behind the parameters of a lambda.
#define RVT_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))

namespace rvt::util {

inline constexpr std::size_t kCacheLine = 64;

/// Tells the core that this is a spin loop. On x86 it also spares the polled line a burst of
/// requests.
RVT_ALWAYS_INLINE void cpu_pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

RVT_ALWAYS_INLINE void prefetch_read(const void* line) noexcept {
    __builtin_prefetch(line, 0, 3);
}
RVT_ALWAYS_INLINE void prefetch_write(const void* line) noexcept {
#if defined(__x86_64__)
    // The builtin would ask for a shared copy here, as if to read: for the first x86-64 processors
    // of Intel this instruction does nothing, but none of them faults.
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1, 3);
#endif
}
/// Lets a line that was just written go to the cache that the cores share, where another core finds
/// it sooner than here. Does nothing on processors that cannot (CLDEMOTE: Intel's since Sapphire
/// Rapids can).
RVT_ALWAYS_INLINE void demote(const void* line) noexcept {
#if defined(__x86_64__)
    asm volatile("cldemote %0" : : "m"(*static_cast<const char*>(line)));
#else
    static_cast<void>(line);
#endif
}

/// Ticks of a steady counter that all processes of the host share; the rate is constant, see
/// ticks_of_ns().
RVT_ALWAYS_INLINE std::uint64_t cpu_ticks() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
           static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

/// How many ticks pass in a microsecond. Of x86 about: 1 to 5 GHz are taken for 3.
#if defined(__x86_64__)
constexpr std::uint64_t ticks_per_us() noexcept {
    return 3000;
}
#elif defined(__aarch64__)
inline std::uint64_t ticks_per_us() noexcept {
    std::uint64_t hz;
    asm("mrs %0, cntfrq_el0" : "=r"(hz));
    // The firmware tells it, and may have forgotten to: then as the architecture has it since 8.6.
    return hz >= 1'000'000 ? hz / 1'000'000 : 1000;
}
#else
constexpr std::uint64_t ticks_per_us() noexcept {
    return 1000;
}
#endif

/// About how many ticks pass in that time; 1 at least. For constants that are `inline const`: known
/// when compiled where the rate is, else computed once.
constexpr std::uint64_t ticks_of_ns(std::uint64_t ns,
                                    std::uint64_t per_us = ticks_per_us()) noexcept {
    const std::uint64_t ticks = ns * per_us / 1000;
    return ticks != 0 ? ticks : 1;
}

/// Keeps the compiler from moving memory accesses across this point; emits nothing.
RVT_ALWAYS_INLINE void compiler_barrier() noexcept {
    asm volatile("" ::: "memory");
}

}  // namespace rvt::util
