// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A management datagram as a packet.
#include "core/mad.h"

#include "core/device.h"
#include "core/packet_burst.h"
#include "protocol/headers.h"

namespace rvt::core {

void send_mad(Device& device, const Address& dest,
              std::span<const std::byte, protocol::kMadBytes> mad) noexcept {
    protocol::PacketHeader header{.opcode = protocol::Opcode::kUdSendOnly,
                                  .dest_qpn = protocol::kGsiQpn,
                                  .qkey = protocol::kGsiQkey,
                                  .src_qpn = protocol::kGsiQpn};
    PieceList payload;
    payload.add(const_cast<std::byte*>(mad.data()), mad.size());  // only read
    const AhAttr way{.dest = dest};
    PacketBurst burst(device, way);
    burst.add(header, payload);
    if (burst.send() == 0) {
        device.stats().add(Stat::kDrops);  // whoever waits for the answer sends again
    }
    device.flush();
}

}  // namespace rvt::core
