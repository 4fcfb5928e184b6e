// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lets tests that Criterion runs be watched by ThreadSanitizer and LeakSanitizer.
#if defined(__SANITIZE_THREAD__)

#include <cstdint>

namespace {

constexpr std::uint64_t kArenaBase = 0x200000000000;  // where a draw of 0 ends up
constexpr std::uint64_t kArenaStep = 1U << 24;        // bytes between two draws
constexpr std::uint64_t kAppBegin = 0x550000000000;   // what the sanitizer leaves to programs
constexpr std::uint64_t kAppEnd = 0x568000000000;
constexpr std::uint64_t kFirst = (kAppBegin - kArenaBase) / kArenaStep;
constexpr std::uint64_t kDraws = (kAppEnd - kAppBegin) / kArenaStep;

}  // namespace

/// Tests fork peers from a process that has threads, and the peers start threads of their own.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() {
    return "die_after_fork=0";
}

/// Criterion maps the memory that it shares with each test at a place drawn with rand_r() from
/// 64 TiB, most of which the sanitizer keeps for itself, and gives up after a few draws. Here the
/// draw falls where programs may have memory.
extern "C" [[gnu::visibility("default")]] int rand_r(unsigned* seed) {
    *seed = *seed * 1103515245U + 12345U;
    return static_cast<int>(kFirst + (*seed >> 8) % kDraws);
}

#endif

#if defined(__SANITIZE_ADDRESS__)

#include <cstdlib>

#include "common/check.h"

/// Criterion's runner keeps a few of its own objects until the end. Each test is a process of its
/// own, started with this variable, and is looked at unless it failed: its stack is not unwound,
/// and reports of leaks would hide what failed.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() {
    static const bool is_test = getenv("BXFI_MAP") != nullptr;
    return is_test && !rvt::test::has_failed() ? 0 : 1;
}

#endif
