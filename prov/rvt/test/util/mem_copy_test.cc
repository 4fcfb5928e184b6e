// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies: every size and alignment arrives whole, and nothing beside it is touched.
#include "util/mem_copy.h"

#include "common/check.h"
#include "util/copied.h"

#include <algorithm>
#include <vector>

using namespace rvt::test;
using namespace rvt::util;

Test(mem_copy, line_and_less_arrives_at_any_alignment) {
    const std::vector<std::byte> source = pattern(256);
    for (std::size_t n = 0; n <= 64; ++n) {
        for (std::size_t from = 0; from < 16; ++from) {
            for (std::size_t to = 0; to < 16; ++to) {
                std::vector<std::byte> area(128, kUntouched);
                copy_small(area.data() + to, source.data() + from, n);
                cr_assert(holds_just(area, to, source.data() + from, n),
                          "%zu bytes from %zu to %zu", n, from, to);
            }
        }
    }
}

Test(mem_copy, small_source_and_destination_may_overlap) {
    for (std::size_t n = 0; n <= 64; ++n) {
        for (std::size_t shift = 0; shift < 32; ++shift) {
            std::vector<std::byte> area = pattern(160);
            const std::vector<std::byte> before = area;
            copy_small(area.data() + shift, area.data() + 16, n);
            RVT_ASSERT(std::equal(area.begin() + static_cast<std::ptrdiff_t>(shift),
                                  area.begin() + static_cast<std::ptrdiff_t>(shift + n),
                                  before.begin() + 16));
        }
    }
}
