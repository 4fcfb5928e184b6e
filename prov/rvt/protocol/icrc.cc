// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way this processor computes an ICRC, and what a difference of two says.
#include "protocol/icrc.h"

#include "protocol/icrc_form.h"

namespace rvt::protocol {
namespace {

constexpr std::size_t kV4IdAt = 4;

// ---- arithmetic modulo the polynomial ----
//
// As in the register of a reflected CRC: the most significant bit is the coefficient of x^0.

constexpr std::uint32_t kReflected = 0xedb88320;
constexpr std::uint32_t kOne = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t a) noexcept {
    return (a & 1) != 0 ? a >> 1 ^ kReflected : a >> 1;
}
constexpr std::uint32_t over_x(std::uint32_t a) noexcept {
    return (a & kOne) != 0 ? (a ^ kReflected) << 1 | 1 : a << 1;
}
constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) noexcept {
    std::uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        product ^= (a & kOne) != 0 ? b : 0;
        b = times_x(b);
    }
    return product;
}

// x to the power -8, -16, -32 ...: what takes back one, two, four ... bytes.
constexpr auto kTakesBack = [] {
    std::array<std::uint32_t, 17> powers{};
    powers[0] = kOne;
    for (int bit = 0; bit < 8; ++bit) {
        powers[0] = over_x(powers[0]);
    }
    for (std::size_t i = 1; i < powers.size(); ++i) {
        powers[i] = times(powers[i - 1], powers[i - 1]);
    }
    return powers;
}();

}  // namespace

const IcrcForm& best_icrc = folding_icrc_512() != nullptr   ? *folding_icrc_512()
                            : folding_icrc_128() != nullptr ? *folding_icrc_128()
                                                            : library_icrc();

std::optional<std::uint16_t> identification_of(std::uint32_t difference,
                                               std::size_t packet_bytes) noexcept {
    // From the field on, its own two bytes included.
    const std::size_t behind = kV4Bytes - kV4IdAt + kUdpBytes + packet_bytes;
    std::uint32_t image = difference;
    for (std::size_t i = 0; i < kTakesBack.size(); ++i) {
        image = (behind >> i & 1) != 0 ? times(kTakesBack[i], image) : image;
    }
    // The register takes its first byte into its least significant bits.
    return image >> 16 == 0
               ? std::optional(static_cast<std::uint16_t>((image & 0xff) << 8 | image >> 8))
               : std::nullopt;
}

}  // namespace rvt::protocol
