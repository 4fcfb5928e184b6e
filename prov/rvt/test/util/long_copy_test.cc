// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of any length: every size and alignment arrives whole, and nothing beside it is touched.
#include "util/long_copy.h"

#include "common/check.h"
#include "util/copied.h"

#include <algorithm>
#include <vector>

using namespace rvt::test;
using namespace rvt::util;

namespace {

constexpr std::size_t kPage = 4096;

// Whether a copy of `bytes` arrives whole, and alone.
bool is_exact(const std::vector<std::byte>& source, std::size_t from, std::size_t to,
              std::size_t bytes) {
    std::vector<std::byte> area(to + bytes + 64, kUntouched);
    copy_bytes(area.data() + to, source.data() + from, bytes);
    return holds_just(area, to, source.data() + from, bytes);
}

}  // namespace

Test(long_copy, data_of_any_length_arrives_at_any_alignment) {
    const std::vector<std::byte> source = pattern(3 * kPage);
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, kMostShort - 1, kMostShort, kMostShort + 1,
          kMostShort + 31, kMostShort + 32, kMostShort + 33, kMostShort + 127, kMostShort + 129,
          kPage + 1, 2 * kPage + 97}) {
        for (std::size_t from = 0; from < 40; from += 3) {
            for (std::size_t to = 0; to < 66; ++to) {
                cr_assert(is_exact(source, from, to, bytes), "%zu bytes from %zu to %zu", bytes,
                          from, to);
            }
        }
    }
}

Test(long_copy, data_past_the_cache_arrives) {
    const std::vector<std::byte> source = pattern((2u << 20) + 3);
    for (const std::size_t bytes : {(1u << 20) - 1, 1u << 20, (1u << 20) + 1, 2u << 20}) {
        cr_assert(is_exact(source, 3, 16, bytes), "%zu bytes", bytes);
    }
}

Test(long_copy, areas_that_overlap_are_moved) {
    const std::vector<std::byte> before = pattern(4 * kPage);
    for (const std::size_t bytes : {std::size_t{100}, kMostShort + 1, 2 * kPage}) {
        for (const std::size_t to :
             {kPage - 1, kPage, kPage + 1, kPage + 64, kPage + 100, std::size_t{0}}) {
            std::vector<std::byte> area = before;
            move_bytes(area.data() + to, area.data() + kPage, bytes);
            cr_assert(std::equal(before.begin() + kPage,
                                 before.begin() + kPage + static_cast<std::ptrdiff_t>(bytes),
                                 area.begin() + static_cast<std::ptrdiff_t>(to)),
                      "%zu bytes to %zu", bytes, to);
        }
    }
}
