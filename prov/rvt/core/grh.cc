// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reading the headers of either family.
#include "core/grh.h"

#include <cstring>

namespace rvt::core {
namespace {

constexpr std::size_t kSource6At = 8;
constexpr std::size_t kDest6At = 24;
constexpr std::size_t kIpv4At = 20;
constexpr std::size_t kSource4At = kIpv4At + 12;
constexpr std::size_t kDest4At = kIpv4At + 16;
constexpr std::byte kNoOptions{0x45};  // version 4, five words

/// As a header is summed: RFC 791, 3.1.
bool has_right_checksum(std::span<const std::byte, kGrhBytes> grh) noexcept {
    std::uint32_t sum = 0;
    for (std::size_t i = kIpv4At; i < kGrhBytes; i += 2) {
        sum += std::to_integer<std::uint32_t>(grh[i]) << 8 |
               std::to_integer<std::uint32_t>(grh[i + 1]);
    }
    return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

/// Of an IPv6 header the same bytes are part of its addresses, so that chance could make them look
/// like the other; what is in front of an IPv4 header is no header.
bool is_ipv4(std::span<const std::byte, kGrhBytes> grh) noexcept {
    const bool may_be_ipv6 = std::to_integer<unsigned>(grh[0]) >> 4 == 6;
    return grh[kIpv4At] == kNoOptions && (!may_be_ipv6 || has_right_checksum(grh));
}

/// @param at6, at4  Where the address is in a header of either version.
std::array<std::uint8_t, 16> gid_in(std::span<const std::byte, kGrhBytes> grh, std::size_t at6,
                                    std::size_t at4) noexcept {
    std::array<std::uint8_t, 16> gid{};
    if (!is_ipv4(grh)) {
        std::memcpy(gid.data(), &grh[at6], gid.size());
        return gid;
    }
    gid[10] = gid[11] = 0xff;  // IPv4-mapped
    std::memcpy(&gid[12], &grh[at4], 4);
    return gid;
}

}  // namespace

std::array<std::uint8_t, 16> grh_source(std::span<const std::byte, kGrhBytes> grh) noexcept {
    return gid_in(grh, kSource6At, kSource4At);
}

std::array<std::uint8_t, 16> grh_dest(std::span<const std::byte, kGrhBytes> grh) noexcept {
    return gid_in(grh, kDest6At, kDest4At);
}

}  // namespace rvt::core
