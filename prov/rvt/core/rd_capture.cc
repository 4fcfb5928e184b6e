// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A message cut into the packets of a frame.
#include "core/rd_capture.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <endian.h>

#include "protocol/headers.h"

namespace rvt::core {
namespace {

constexpr std::size_t kMtuBytes = 4096;
// Endpoints of one host have no pairs. Those below are for management.
constexpr std::uint32_t kShownQpn = 2;

std::vector<std::byte> frame_of(const RdMessage& message) {
    const std::uint32_t run_bytes = message.run != nullptr ? message.length : 0;
    std::vector<std::byte> frame(record_bytes(message));
    encode_record(message, run_bytes, frame.data());
    frame.insert(frame.end(), message.run, message.run + run_bytes);
    return frame;
}

/// From the base transport header to the ICRC.
std::vector<std::byte> packet_of(const protocol::IpPath& path, protocol::PacketHeader header,
                                 std::span<const std::byte> payload) {
    header.pad = static_cast<std::uint8_t>(-payload.size() & 3);
    std::vector<std::byte> packet(protocol::kMaxHeaderBytes);
    packet.resize(protocol::encode(header, packet.data()));
    packet.insert(packet.end(), payload.begin(), payload.end());
    packet.resize(packet.size() + header.pad);
    const std::uint32_t icrc = htole32(protocol::icrc_of(path, packet));
    packet.resize(packet.size() + sizeof icrc);
    std::memcpy(&packet[packet.size() - sizeof icrc], &icrc, sizeof icrc);
    return packet;
}

}  // namespace

void RdCapture::received(const Address& source, const RdMessage& message) noexcept {
    const std::vector<std::byte> frame = frame_of(message);
    const protocol::IpPath path{
        .source = source.gid, .dest = own_.gid, .source_port = source.port, .dest_port = own_.port};
    std::span<const std::byte> left(frame);
    for (bool starts = true; starts || !left.empty(); starts = false) {
        const auto part = left.first(std::min(left.size(), kMtuBytes));
        left = left.subspan(part.size());
        const auto place = protocol::part_of(starts, left.empty());
        const protocol::PacketHeader header{
            .opcode = protocol::opcode_of(QpType::kRc, protocol::Kind::kSend, place),
            .dest_qpn = kShownQpn,
            .psn = protocol::Psn(psn_++ & kQpnMask)};
        const std::vector<std::byte> packet = packet_of(path, header, part);
        capture_.received({.path = path, .bytes = packet}, true);
    }
}

}  // namespace rvt::core
