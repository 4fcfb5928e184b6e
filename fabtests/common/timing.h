// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Time and statistics for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <time.h>

namespace fab {

inline double now_s() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// The middle value; the mean of the two in the middle of an even count; 0 of none.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Tells the core that this is a poll loop: cheaper for the sibling thread and for leaving the
/// loop.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace fab
