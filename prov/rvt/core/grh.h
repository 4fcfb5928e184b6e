// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What stands in front of a datagram in its receive: a global route header, which has the form of
// an IPv6 header, or from NICs that took the datagram in over IPv4 that header, in the last 20 of
// the 40 bytes. IBTA vol. 1, annex A17, 17.4.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "rvt/types.h"

namespace rvt::core {

/// Who has sent the datagram, as the gid of an Address.
std::array<std::uint8_t, 16> grh_source(std::span<const std::byte, kGrhBytes> grh) noexcept;

/// Where it was sent to: an address of the endpoint's, or a group's.
std::array<std::uint8_t, 16> grh_dest(std::span<const std::byte, kGrhBytes> grh) noexcept;

}  // namespace rvt::core
