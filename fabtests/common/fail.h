// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How a rank of a test or benchmark ends before its time: with a failure, or with a reason to skip.
// Called by rank processes only (see team.h); the parent prints what they leave behind.
#pragma once

#include <cstdint>

namespace fab {

inline constexpr int kExitFail = 1;
inline constexpr int kExitSkip = 77;
inline constexpr int kExitPeerGone = 78;  ///< A symptom, never the cause: another rank ended first.

/// Where this process writes its last words; null: only on stderr. `size` bytes, zero-terminated.
void set_last_words(char* text, std::size_t size);

/// Ends this rank as failed, with the place and a reason in the form of printf.
[[noreturn, gnu::cold, gnu::format(printf, 3, 4)]] void fail_at(const char* file, int line,
                                                                const char* format, ...);

/// Ends this rank: what it is about does not exist here, with a reason in the form of printf.
[[noreturn, gnu::cold, gnu::format(printf, 1, 2)]] void skip(const char* format, ...);

/// Ends this rank because another one closed its side.
[[noreturn, gnu::cold]] void peer_gone();

[[noreturn, gnu::cold]] void fail_fi(const char* file, int line, const char* what, long rc);
[[noreturn, gnu::cold]] void fail_equal(const char* file, int line, const char* what,
                                        std::int64_t got, std::int64_t expected);

}  // namespace fab

// Macros, because each names the place and the text of what was checked.
#define FAB_FAIL(...) fab::fail_at(__FILE__, __LINE__, __VA_ARGS__)

#define FAB_CHECK(condition)                                           \
    do {                                                               \
        if (!(condition)) FAB_FAIL("this does not hold: " #condition); \
    } while (false)

/// A libfabric call that must not return a negative value.
#define FAB_OK(call)                                                       \
    do {                                                                   \
        const long fab_rc_ = static_cast<long>(call);                      \
        if (fab_rc_ < 0) fab::fail_fi(__FILE__, __LINE__, #call, fab_rc_); \
    } while (false)

#define FAB_EQUAL(got, expected)                                                                 \
    do {                                                                                         \
        const auto fab_got_ = static_cast<std::int64_t>(got);                                    \
        const auto fab_expected_ = static_cast<std::int64_t>(expected);                          \
        if (fab_got_ != fab_expected_) {                                                         \
            fab::fail_equal(__FILE__, __LINE__, #got " == " #expected, fab_got_, fab_expected_); \
        }                                                                                        \
    } while (false)
