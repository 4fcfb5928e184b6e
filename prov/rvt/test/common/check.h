// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Assertions for values that Criterion's eq() does not take as they are: enumerations, constants,
// errors.
#pragma once

#include <cstdint>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "rvt/status.h"

namespace rvt::test {

template <class T>
constexpr std::int64_t number(const T& value) noexcept {
    return static_cast<std::int64_t>(value);
}
constexpr std::int64_t number(Status status) noexcept {
    return status.error();
}
template <class T>
std::int64_t number(const Result<T>& result) noexcept {
    return result.error();
}

/// Fails the test at that line, and ends it. What the test holds is not released, nor looked for as
/// leaks.
[[noreturn]] void fail_at(const char* file, unsigned line, const char* text);
[[noreturn]] void fail_at(const char* file, unsigned line, const char* text, std::int64_t value);

/// Whether fail_at() has been called in this process.
bool has_failed() noexcept;

inline void check_equal(std::int64_t value, std::int64_t expected, const char* text,
                        const char* file, unsigned line) {
    if (value != expected) {
        fail_at(file, line, text, value);
    }
}

}  // namespace rvt::test

// They stand in place of Criterion's cr_assert(), which takes the compiler longer than all else in
// a test; that one is for assertions with a message of their own.

#define RVT_ASSERT(...)                                                        \
    do {                                                                       \
        if (!(__VA_ARGS__)) {                                                  \
            ::rvt::test::fail_at(__FILE__, __LINE__, "not so: " #__VA_ARGS__); \
        }                                                                      \
    } while (0)

/// Both sides as numbers; a Status or Result stands for its errno, 0 when all is well.
#define RVT_EQ(a, b)                                                                       \
    ::rvt::test::check_equal(::rvt::test::number(a), ::rvt::test::number(b), #a " == " #b, \
                             __FILE__, __LINE__)
#define RVT_NE(a, b) RVT_ASSERT(::rvt::test::number(a) != ::rvt::test::number(b))
#define RVT_OK(a) RVT_EQ(a, 0)
