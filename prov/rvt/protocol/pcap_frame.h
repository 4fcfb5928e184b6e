// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The IP and UDP headers that a packet has on the wire, for captures: a socket shows none.
#pragma once

#include <cstddef>

#include "protocol/wire_packet.h"

namespace rvt::protocol {

inline constexpr std::size_t kMaxFrameHeaderBytes = 48;

/// Writes the headers that stand in front of the packet: addresses, ports and identification are
/// the packet's, lengths and checksums fit, the rest is what a kernel writes that was told nothing.
/// Returns: their length.
/// Precondition: `to` has room for kMaxFrameHeaderBytes.
std::size_t write_frame_headers(const WirePacket& packet, std::byte* to) noexcept;

}  // namespace rvt::protocol
