// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets that find out whether the way to a peer takes them: they are as large as any and go to
// queue pair 0, which no device of RoCE has, so that who gets one drops it. A router behind which
// the way is narrower says so to the sender's host (RFC 1191, RFC 8201), whose Device::payload_to()
// is less from then on.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace rvt::core {

inline constexpr std::uint32_t kProbeQpn = 0;

/// Sends one with so much payload, at most kMaxPayload; it may be lost like any packet.
/// Precondition: a packet-grade device. Threads: any.
void send_path_probe(Device& device, const Address& dest, std::uint32_t payload_bytes) noexcept;

}  // namespace rvt::core
