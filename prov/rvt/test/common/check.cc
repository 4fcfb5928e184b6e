// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Failed assertions, as Criterion reports its own.
#include "common/check.h"

#include <atomic>
#include <cinttypes>
#include <string>

#include <criterion/new/assert.h>

#include "common/seeds.h"

namespace rvt::test {
namespace {

std::atomic<bool> failed{false};

std::string named(const char* text) {
    return seed_in_play == 0 ? text : text + (" (RVT_SEED=" + std::to_string(seed_in_play) + ")");
}

}  // namespace

bool has_failed() noexcept {
    return failed.load(std::memory_order_relaxed);  // relaxed: asked when the process ends
}

void fail_at(const char* file, unsigned line, const char* text) {
    failed.store(true, std::memory_order_relaxed);  // relaxed: as above
    cr_assert_fail_user(file, line, criterion_abort_test, "%s", named(text).c_str());
}

void fail_at(const char* file, unsigned line, const char* text, std::int64_t value) {
    failed.store(true, std::memory_order_relaxed);  // relaxed: as above
    cr_assert_fail_user(file, line, criterion_abort_test, "%s: it is %" PRId64, named(text).c_str(),
                        value);
}

}  // namespace rvt::test
