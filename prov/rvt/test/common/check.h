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

}  // namespace rvt::test

/// Both sides as numbers; a Status or Result stands for its errno, 0 when all is well.
#define RVT_EQ(a, b) cr_assert(eq(i64, ::rvt::test::number(a), ::rvt::test::number(b)))
#define RVT_NE(a, b) cr_assert(ne(i64, ::rvt::test::number(a), ::rvt::test::number(b)))
#define RVT_OK(a) RVT_EQ(a, 0)
