// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What tests of copies compare: a pattern, and an area that holds it and is untouched elsewhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rvt::test {

inline constexpr std::byte kUntouched{0xee};

inline std::vector<std::byte> pattern(std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
    }
    return bytes;
}

/// Whether `area` holds the n bytes of `source` from `at` on, and is untouched elsewhere.
inline bool holds_just(const std::vector<std::byte>& area, std::size_t at, const std::byte* source,
                       std::size_t n) {
    const auto begin = area.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(n);
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    return std::all_of(area.begin(), begin, is_untouched) && std::equal(begin, end, source) &&
           std::all_of(end, area.end(), is_untouched);
}

}  // namespace rvt::test
