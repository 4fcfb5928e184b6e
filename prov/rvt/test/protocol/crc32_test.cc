// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The CRC-32 of all lengths and places, by the definition: a bit at a time.
#include "protocol/crc32.h"

#include "common/check.h"

#include <algorithm>
#include <random>
#include <span>
#include <vector>

using namespace rvt::protocol;

namespace {

constexpr std::size_t kMost = 1500;
constexpr std::byte kUntouched{0xa5};

std::uint32_t by_definition(std::uint32_t crc, std::span<const std::byte> bytes) {
    crc = ~crc;
    for (const std::byte byte : bytes) {
        crc ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
        }
    }
    return ~crc;
}

std::vector<std::byte> random_bytes() {
    std::mt19937 random(1);
    std::vector<std::byte> bytes(kMost + 8);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    return bytes;
}

}  // namespace

Test(crc32, has_the_check_value_of_its_definition) {
    const auto digits = std::as_bytes(std::span("123456789").first(9));
    RVT_EQ(crc32(0, digits.data(), digits.size()), 0xcbf43926);
}

Test(crc32, of_any_bytes_is_that_of_the_definition) {
    const std::vector<std::byte> bytes = random_bytes();
    std::uint32_t crc = 0;
    for (std::size_t count = 0; count <= kMost; ++count) {
        const auto part = std::span(bytes).subspan(count % 7, count);
        const std::uint32_t expected = by_definition(crc, part);
        RVT_EQ(crc32(crc, part.data(), count), expected);
        crc = expected;
    }
}

Test(crc32, copies_what_it_counts_and_nothing_else) {
    const std::vector<std::byte> bytes = random_bytes();
    for (std::size_t count = 0; count <= kMost; ++count) {
        const auto part = std::span(bytes).subspan(count % 7, count);
        std::vector<std::byte> to(count + 10, kUntouched);
        const std::size_t at = count % 5;
        RVT_EQ(crc32_copy(7, to.data() + at, part.data(), count), crc32(7, part.data(), count));
        RVT_ASSERT(std::equal(part.begin(), part.end(), to.data() + at));
        to.erase(to.begin() + static_cast<std::ptrdiff_t>(at),
                 to.begin() + static_cast<std::ptrdiff_t>(at + count));
        RVT_ASSERT(to == std::vector<std::byte>(10, kUntouched));
    }
}
