// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What libFuzzer gives a target, as numbers and bytes. scripts/fuzz builds and runs the targets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace rvt::fuzz {

/// What holds whatever comes in.
inline void must(bool holds) noexcept {
    if (!holds) {
        std::abort();
    }
}

class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) noexcept
        : bytes_(reinterpret_cast<const std::byte*>(data), size) {}

    [[nodiscard]] bool is_empty() const noexcept { return bytes_.empty(); }
    [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_; }

    /// The next byte; 0 when there is none.
    std::uint8_t u8() noexcept {
        const auto taken = take(1);
        return taken.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(taken[0]);
    }
    std::uint16_t u16() noexcept {
        const unsigned high = u8();
        return static_cast<std::uint16_t>(high << 8 | u8());
    }
    /// The next bytes, as far as there are any.
    std::span<const std::byte> take(std::size_t most) noexcept {
        const auto taken = bytes_.first(std::min(most, bytes_.size()));
        bytes_ = bytes_.subspan(taken.size());
        return taken;
    }

  private:
    std::span<const std::byte> bytes_;
};

/// Takes steps in a new world for as long as there is input.
template <class World>
int explore(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    World world;
    while (!input.is_empty()) {
        world.step(input);
    }
    return 0;
}

/// A read of every byte, which AddressSanitizer looks at.
inline unsigned touch(std::span<const std::byte> bytes) noexcept {
    unsigned sum = 0;
    for (const std::byte byte : bytes) {
        sum += std::to_integer<unsigned>(byte);
    }
    return sum;
}

}  // namespace rvt::fuzz
