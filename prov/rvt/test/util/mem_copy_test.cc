// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies: every size and alignment arrives whole, and nothing beside it is touched.
#include "util/mem_copy.h"

#include "common/check.h"

#include <algorithm>
#include <vector>

using namespace rvt::util;

namespace {

constexpr std::byte kUntouched{0xee};

std::vector<std::byte> pattern(std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
    }
    return bytes;
}

// Whether `area` holds the n bytes of `source` from `at` on, and is untouched elsewhere.
bool holds_just(const std::vector<std::byte>& area, std::size_t at, const std::byte* source,
                std::size_t n) {
    for (std::size_t i = 0; i < area.size(); ++i) {
        const bool is_inside = i >= at && i < at + n;
        if (area[i] != (is_inside ? source[i - at] : kUntouched)) {
            return false;
        }
    }
    return true;
}

}  // namespace

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
