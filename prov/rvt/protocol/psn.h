// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packet sequence numbers: 24 bits that count on for ever. IBTA vol. 1, 9.7.2.
#pragma once

#include <cstdint>

namespace rvt::protocol {

class Psn {
  public:
    static constexpr std::uint32_t kMask = 0xffffff;

    constexpr Psn() noexcept = default;
    constexpr explicit Psn(std::uint32_t value) noexcept : value_(value & kMask) {}

    [[nodiscard]] constexpr std::uint32_t value() const noexcept { return value_; }

    friend constexpr bool operator==(Psn, Psn) noexcept = default;
    friend constexpr Psn operator+(Psn psn, std::uint32_t packets) noexcept {
        return Psn(psn.value_ + packets);
    }
    friend constexpr Psn operator-(Psn psn, std::uint32_t packets) noexcept {
        return Psn(psn.value_ - packets);
    }
    constexpr Psn& operator++() noexcept { return *this = *this + 1; }

    /// How many packets `a` lies ahead of `b`; negative when it lies behind. Numbers more than half
    /// the range apart count as behind: the responder's valid region is as large as its
    /// duplicates'.
    friend constexpr std::int32_t distance(Psn a, Psn b) noexcept {
        // The difference in the upper bits of a word has the sign of the shorter way.
        return static_cast<std::int32_t>((a.value_ - b.value_) << 8) >> 8;
    }

  private:
    std::uint32_t value_ = 0;
};

}  // namespace rvt::protocol
