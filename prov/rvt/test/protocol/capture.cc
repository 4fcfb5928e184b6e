// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads pcapng as far as the reference capture needs it: little-endian, enhanced packet blocks,
// Ethernet.
#include "protocol/capture.h"

#include "common/check.h"
#include "protocol/header_sizes.h"
#include "protocol/wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace rvt::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::size_t kEthernetBytes = 14;
constexpr std::size_t kUdpBytes = 8;
constexpr std::uint16_t kRocePort = 4791;

Bytes read_file() {
    const char* source = std::getenv("RVT_SRCDIR");
    cr_assert(source != nullptr, "RVT_SRCDIR is not set: run the tests by make check");
    std::ifstream file(std::string(source) + "/fabtests/vm/rxe-reference.pcapng", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    Bytes bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

std::uint32_t little_u32(const Bytes& from, std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
}

std::uint16_t u16_at(const std::byte* at) {
    return protocol::WireReader(at).u16();
}

void copy_v4(const std::byte* from, std::array<std::uint8_t, 16>& to) {
    to[10] = to[11] = 0xff;
    std::memcpy(to.data() + 12, from, 4);
}

/// Takes one Ethernet frame apart. Returns: whether it is RoCEv2.
bool parse(const std::byte* frame, std::size_t bytes, CapturedPacket& to) {
    const std::byte* ip = frame + kEthernetBytes;
    const std::uint16_t type = u16_at(frame + 12);
    std::size_t ip_header = 0;
    std::size_t ip_bytes = 0;
    std::byte protocol{};
    if (type == 0x0800) {
        ip_header = (static_cast<std::size_t>(ip[0]) & 15) * 4;
        ip_bytes = u16_at(ip + 2);
        protocol = ip[9];
        to.is_v4 = true;
        to.identification = u16_at(ip + 4);
        copy_v4(ip + 12, to.path.source);
        copy_v4(ip + 16, to.path.dest);
    } else if (type == 0x86dd) {
        ip_header = 40;
        ip_bytes = ip_header + u16_at(ip + 4);
        protocol = ip[6];
        std::memcpy(to.path.source.data(), ip + 8, 16);
        std::memcpy(to.path.dest.data(), ip + 24, 16);
    }
    const std::byte* udp = ip + ip_header;
    if (protocol != std::byte{17} || ip_bytes + kEthernetBytes > bytes ||
        u16_at(udp + 2) != kRocePort) {
        return false;
    }
    to.path.source_port = u16_at(udp);
    to.path.dest_port = kRocePort;
    to.packet.assign(udp + kUdpBytes, ip + ip_bytes - protocol::kIcrcBytes);
    std::memcpy(&to.icrc, ip + ip_bytes - protocol::kIcrcBytes, sizeof to.icrc);
    return true;
}

}  // namespace

std::vector<CapturedPacket> reference_capture() {
    const Bytes file = read_file();
    std::vector<CapturedPacket> packets;
    for (std::size_t at = 0; at + 12 <= file.size(); at += little_u32(file, at + 4)) {
        if (little_u32(file, at) != kEnhancedPacket) {
            continue;
        }
        CapturedPacket packet;
        if (parse(file.data() + at + 28, little_u32(file, at + 20), packet)) {
            packets.push_back(packet);
        }
    }
    cr_assert(ge(sz, packets.size(), 50));
    return packets;
}

}  // namespace rvt::test
