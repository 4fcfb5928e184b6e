// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Failed assertions, as Criterion reports its own.
#include "common/check.h"

#include <cinttypes>

#include <criterion/new/assert.h>

namespace rvt::test {

void fail_at(const char* file, unsigned line, const char* text) {
    cr_assert_fail_user(file, line, criterion_abort_test, "%s", text);
}

void fail_at(const char* file, unsigned line, const char* text, std::int64_t value) {
    cr_assert_fail_user(file, line, criterion_abort_test, "%s: it is %" PRId64, text, value);
}

}  // namespace rvt::test
