// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A probe as a packet: a datagram of zeros.
#include "core/path_probe.h"

#include <array>
#include <cstddef>

#include "core/packet_burst.h"
#include "protocol/headers.h"

namespace rvt::core {
namespace {

constexpr std::array<std::byte, kMaxPayload> kZeros{};

}  // namespace

void send_path_probe(Device& device, const Address& dest, std::uint32_t payload_bytes) noexcept {
    protocol::PacketHeader header{.opcode = protocol::Opcode::kUdSendOnly, .dest_qpn = kProbeQpn};
    PieceList payload;
    payload.add(const_cast<std::byte*>(kZeros.data()), payload_bytes);  // only read
    const AhAttr way{.dest = dest};
    PacketBurst burst(device, way);
    burst.add(header, payload);
    [[maybe_unused]] const std::size_t taken = burst.send();
    device.flush();
}

}  // namespace rvt::core
