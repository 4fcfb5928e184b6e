// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A management datagram as a packet.
#include "core/mad.h"

#include <algorithm>

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

Status send_mad(Device& device, Channel& channel,
                std::span<const std::byte, protocol::kMadBytes> mad) noexcept {
    SegmentHeader header{};
    header.version = SegmentHeader::kVersion;
    header.kind = SegmentKind::kMad;
    const Address& own = device.address();
    std::copy(own.gid.begin(), own.gid.end(), header.source_gid);
    header.source_port = own.port;
    const iovec payload{const_cast<std::byte*>(mad.data()), mad.size()};  // only read
    return device.ops().send_segment(device, channel, std::as_bytes(std::span(&header, 1)),
                                     {&payload, 1});
}

}  // namespace rvt::core
