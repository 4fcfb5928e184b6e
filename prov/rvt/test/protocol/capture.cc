// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads pcapng as far as captures of RoCEv2 need it: little-endian, enhanced packet blocks,
// Ethernet or IP alone.
#include "protocol/capture.h"

#include "common/check.h"
#include "protocol/header_sizes.h"
#include "protocol/wire.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

namespace rvt::test {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kInterface = 1;
constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::uint16_t kEthernet = 1;
constexpr std::uint16_t kRawIp = 101;
constexpr std::size_t kEthernetBytes = 14;
constexpr std::size_t kUdpBytes = 8;
constexpr std::uint16_t kRocePort = 4791;

std::vector<std::byte> read_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    cr_assert(file.is_open(), "%s is missing", name.c_str());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const Bytes bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

template <class T>
T little(Bytes from, std::size_t at) {
    T value{};
    std::memcpy(&value, from.subspan(at, sizeof value).data(), sizeof value);
    return value;
}

std::uint16_t u16_at(const std::byte* at) {
    return protocol::WireReader(at).u16();
}

std::size_t padded(std::size_t bytes) {
    return (bytes + 3) / 4 * 4;
}

/// Calls `visit(code, value)` for each option from `at` to the end of the block.
template <class Visit>
void for_each_option(Bytes block, std::size_t at, Visit visit) {
    while (at + 8 <= block.size() && little<std::uint16_t>(block, at) != 0) {
        const std::size_t bytes = little<std::uint16_t>(block, at + 2);
        visit(little<std::uint16_t>(block, at), block.subspan(at + 4, bytes));
        at += 4 + padded(bytes);
    }
}

std::string text_of(Bytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void copy_v4(const std::byte* from, std::array<std::uint8_t, 16>& to) {
    to[10] = to[11] = 0xff;
    std::memcpy(to.data() + 12, from, 4);
}

/// Takes an IP packet apart. Returns: whether it is UDP.
bool parse(Bytes all, CapturedPacket& to) {
    const std::byte* ip = all.data();
    std::size_t ip_header = 0;
    std::size_t ip_bytes = 0;
    std::byte protocol{};
    if ((ip[0] >> 4) == std::byte{4}) {
        ip_header = (static_cast<std::size_t>(ip[0]) & 15) * 4;
        ip_bytes = u16_at(ip + 2);
        protocol = ip[9];
        to.is_v4 = true;
        to.identification = u16_at(ip + 4);
        copy_v4(ip + 12, to.path.source);
        copy_v4(ip + 16, to.path.dest);
    } else if ((ip[0] >> 4) == std::byte{6}) {
        ip_header = 40;
        ip_bytes = ip_header + u16_at(ip + 4);
        protocol = ip[6];
        std::memcpy(to.path.source.data(), ip + 8, 16);
        std::memcpy(to.path.dest.data(), ip + 24, 16);
    }
    const std::size_t before = ip_header + kUdpBytes;
    if (protocol != std::byte{17} || ip_bytes > all.size() ||
        ip_bytes < before + protocol::kIcrcBytes) {
        return false;
    }
    to.path.source_port = u16_at(ip + ip_header);
    to.path.dest_port = u16_at(ip + ip_header + 2);
    to.headers.assign(ip, ip + before);
    to.packet.assign(ip + before, ip + ip_bytes - protocol::kIcrcBytes);
    std::memcpy(&to.icrc, ip + ip_bytes - protocol::kIcrcBytes, sizeof to.icrc);
    return true;
}

/// Where the IP packet stands in a frame; nowhere in other frames.
Bytes ip_of(Bytes frame, std::uint16_t link_type) {
    if (link_type == kRawIp) {
        return frame;
    }
    const std::uint16_t type = u16_at(frame.data() + kEthernetBytes - 2);
    return type == 0x0800 || type == 0x86dd ? frame.subspan(kEthernetBytes) : Bytes{};
}

void read_interface(Bytes block, Capture& to, std::vector<std::uint16_t>& link_types) {
    link_types.push_back(little<std::uint16_t>(block, 8));
    RVT_ASSERT(link_types.back() == kEthernet || link_types.back() == kRawIp);
    to.interfaces.emplace_back();
    for_each_option(block, 16, [&](std::uint16_t code, Bytes value) {
        if (code == 2) {
            to.interfaces.back() = text_of(value);
        }
    });
}

void read_packet(Bytes block, Capture& to, const std::vector<std::uint16_t>& link_types) {
    CapturedPacket packet{.interface = little<std::uint32_t>(block, 8),
                          .at = std::uint64_t{little<std::uint32_t>(block, 12)} << 32 |
                                little<std::uint32_t>(block, 16)};
    const std::size_t bytes = little<std::uint32_t>(block, 20);
    for_each_option(block, 28 + padded(bytes), [&](std::uint16_t code, Bytes value) {
        if (code == 1) {
            packet.comment = text_of(value);
        } else if (code == 2) {
            packet.flags = little<std::uint32_t>(value, 0);
        }
    });
    const Bytes ip = ip_of(block.subspan(28, bytes), link_types.at(packet.interface));
    if (!ip.empty() && parse(ip, packet)) {
        to.packets.push_back(std::move(packet));
    }
}

}  // namespace

Capture read_capture(const std::string& file) {
    const std::vector<std::byte> all = read_file(file);
    Capture capture;
    std::vector<std::uint16_t> link_types;
    std::size_t bytes = 0;
    for (std::size_t at = 0; at < all.size(); at += bytes) {
        const Bytes rest = Bytes(all).subspan(at);
        bytes = rest.size() < 12 ? 0 : little<std::uint32_t>(rest, 4);
        cr_assert(bytes >= 12 && bytes <= rest.size(), "%s ends within a block", file.c_str());
        const Bytes block = rest.first(bytes);
        if (little<std::uint32_t>(block, 0) == kInterface) {
            read_interface(block, capture, link_types);
        } else if (little<std::uint32_t>(block, 0) == kEnhancedPacket) {
            read_packet(block, capture, link_types);
        }
    }
    return capture;
}

std::vector<CapturedPacket> reference_capture() {
    const char* source = std::getenv("RVT_SRCDIR");
    cr_assert(source != nullptr, "RVT_SRCDIR is not set: run the tests by make check");
    std::vector<CapturedPacket> packets =
        read_capture(std::string(source) + "/fabtests/vm/rxe-reference.pcapng").packets;
    std::erase_if(packets,
                  [](const CapturedPacket& packet) { return packet.path.dest_port != kRocePort; });
    RVT_ASSERT(packets.size() >= 50);
    return packets;
}

}  // namespace rvt::test
