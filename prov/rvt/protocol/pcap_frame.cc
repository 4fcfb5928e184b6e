// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// IPv4: RFC 791; IPv6: RFC 8200; UDP and its checksum: RFC 768; the checksum itself: RFC 1071.
#include "protocol/pcap_frame.h"

#include <cstring>

#include <netinet/in.h>

#include "protocol/wire.h"

namespace rvt::protocol {
namespace {

constexpr std::size_t kV4Bytes = 20;
constexpr std::size_t kV6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;
static_assert(kV6Bytes + kUdpBytes == kMaxFrameHeaderBytes);
constexpr std::size_t kV4ChecksumAt = 10;
constexpr std::size_t kUdpChecksumAt = 6;
constexpr std::uint8_t kHops = 64;

/// The one's complement sum of 16-bit words that IP and UDP use.
class Checksum {
  public:
    void add(std::uint64_t word) noexcept { sum_ += word; }
    /// Precondition: what came before had an even length.
    void add(std::span<const std::byte> bytes) noexcept {
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            sum_ += std::to_integer<std::uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
        }
    }
    [[nodiscard]] std::uint16_t value() const noexcept {
        std::uint64_t folded = sum_;
        while (folded >> 16 != 0) {
            folded = (folded & 0xffff) + (folded >> 16);
        }
        return static_cast<std::uint16_t>(~folded);
    }

  private:
    std::uint64_t sum_ = 0;
};

std::size_t write_v4(const WirePacket& packet, std::size_t udp_bytes, std::byte* to) noexcept {
    WireWriter out(to);
    out.u16(0x4500);  // version, a header without options, type of service
    out.u16(static_cast<std::uint16_t>(kV4Bytes + udp_bytes));
    out.u16(packet.identification);
    out.u16(0x4000);  // don't fragment
    out.u8(kHops);
    out.u8(IPPROTO_UDP);
    out.u16(0);  // checksum
    std::memcpy(to + 12, packet.path.source.data() + 12, 4);
    std::memcpy(to + 16, packet.path.dest.data() + 12, 4);
    Checksum checksum;
    checksum.add(std::span(to, kV4Bytes));
    WireWriter(to + kV4ChecksumAt).u16(checksum.value());
    return kV4Bytes;
}

std::size_t write_v6(const WirePacket& packet, std::size_t udp_bytes, std::byte* to) noexcept {
    WireWriter out(to);
    out.u32(0x60000000);  // version, traffic class, flow label
    out.u16(static_cast<std::uint16_t>(udp_bytes));
    out.u8(IPPROTO_UDP);
    out.u8(kHops);
    std::memcpy(to + 8, packet.path.source.data(), 16);
    std::memcpy(to + 24, packet.path.dest.data(), 16);
    return kV6Bytes;
}

}  // namespace

std::size_t write_frame_headers(const WirePacket& packet, std::byte* to) noexcept {
    const bool v4 = is_v4(packet.path.source);
    const std::size_t udp_bytes = kUdpBytes + packet.bytes.size();
    const std::size_t ip_bytes =
        v4 ? write_v4(packet, udp_bytes, to) : write_v6(packet, udp_bytes, to);
    std::byte* udp = to + ip_bytes;
    WireWriter out(udp);
    out.u16(packet.path.source_port);
    out.u16(packet.path.dest_port);
    out.u16(static_cast<std::uint16_t>(udp_bytes));
    out.u16(0);  // checksum
    Checksum checksum;
    const std::size_t address_bytes = v4 ? 4 : 16;
    checksum.add(std::as_bytes(std::span(packet.path.source)).last(address_bytes));
    checksum.add(std::as_bytes(std::span(packet.path.dest)).last(address_bytes));
    checksum.add(IPPROTO_UDP + udp_bytes);
    checksum.add(std::span(udp, kUdpBytes));
    checksum.add(packet.bytes);
    // 0 would mean that there is none.
    WireWriter(udp + kUdpChecksumAt).u16(checksum.value() != 0 ? checksum.value() : 0xffff);
    return ip_bytes + kUdpBytes;
}

}  // namespace rvt::protocol
