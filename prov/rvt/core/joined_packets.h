// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How many packets leave in one system call, where the kernel cuts what it is given (UDP_SEGMENT).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rvt::core {

/// As a kernel of any age cuts them.
/// @param payload_bytes  Of each packet; a header and the ICRC come with it.
constexpr std::uint32_t most_joined(std::size_t payload_bytes) noexcept {
    constexpr std::size_t kMost = 64;
    constexpr std::size_t kMostBytes = 65'000;
    constexpr std::size_t kOfPacket = 16;
    return static_cast<std::uint32_t>(std::min(kMostBytes / (payload_bytes + kOfPacket), kMost));
}

}  // namespace rvt::core
