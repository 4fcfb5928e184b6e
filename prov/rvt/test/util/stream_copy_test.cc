// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Streamed copies: every size and alignment arrives whole, and nothing beside it is touched.
#include "util/stream_copy.h"

#include "common/check.h"

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

Test(stream_copy, stream_of_any_size_arrives_at_any_alignment) {
    const std::vector<std::byte> source = pattern(5000);
    for (const std::size_t total : {std::size_t{0}, std::size_t{1} << 40}) {
        for (const std::size_t n : {0, 1, 63, 64, 255, 256, 257, 319, 320, 1000, 4096, 4200}) {
            for (const std::size_t to : {0, 1, 8, 31, 63, 64}) {
                std::vector<std::byte> area(4500, kUntouched);
                copy_stream(area.data() + to, source.data() + to % 7, n, total);
                cr_assert(holds_just(area, to, source.data() + to % 7, n), "%zu bytes to %zu", n,
                          to);
            }
        }
    }
}

Test(stream_copy, short_transfers_stay_in_the_cache) {
    RVT_ASSERT(not(detail::is_streamed(kLeastStreamed - 1)));
}
