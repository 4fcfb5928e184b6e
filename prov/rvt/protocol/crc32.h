// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The CRC-32 of Ethernet and gzip, of bytes where they lie and of bytes on their way: a packet is
// read once for its copy and its check sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rvt::protocol {

/// Continues `crc`, 0 for the first bytes, with `count` more.
std::uint32_t crc32(std::uint32_t crc, const std::byte* bytes, std::size_t count) noexcept;

/// The same, and copies the bytes to `to`, which does not overlap them. They are read once: the
/// result is that of what stands in `to`, also if somebody changes them meanwhile.
std::uint32_t crc32_copy(std::uint32_t crc, std::byte* to, const std::byte* bytes,
                         std::size_t count) noexcept;

}  // namespace rvt::protocol
