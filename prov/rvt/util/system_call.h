// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A system call without a function of the C library around it: behind the call a return to who
// called before it is one that the processor predicts wrongly, and who polls has no use for errno.
#pragma once

#if !defined(__x86_64__)
#include <cerrno>

#include <unistd.h>
#endif

#include "util/cpu.h"

namespace rvt::util {

/// Returns: what the kernel returns; an error is less than 0.
/// Source:  syscall(2), "Architecture calling conventions".
RVT_ALWAYS_INLINE long system_call(long number, long a, long b, long c, long d, long e,
                                   long f) noexcept {
#if defined(__x86_64__)
    long result = number;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    asm volatile("syscall"
                 : "+a"(result)
                 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
#else
    const long result = syscall(number, a, b, c, d, e, f);
    return result < 0 ? -errno : result;
#endif
}

}  // namespace rvt::util
