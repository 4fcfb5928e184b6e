// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC over a masked copy of the headers.
#include "protocol/icrc.h"

#include "protocol/crc32.h"
#include "protocol/header_sizes.h"
#include "protocol/wire.h"

#include <algorithm>

#include <netinet/in.h>

namespace rvt::protocol {
namespace {

// CRC-32 of the eight bytes of ones that stand for the local route header RoCE does not have.
constexpr std::uint32_t kNoRouteHeader = ~0xdebb20e3u;

constexpr std::size_t kV4Bytes = 20;
constexpr std::size_t kV6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;
constexpr std::size_t kV4IdAt = 4;
constexpr std::size_t kReservedAt = 4;  // in the base transport header
constexpr std::byte kOnes{0xff};

/// Writes the masked headers. Returns: their length.
std::size_t mask_v4(const IpPath& path, std::size_t udp_bytes, std::uint16_t identification,
                    std::byte* to) noexcept {
    WireWriter out(to);
    out.u8(0x45);  // version, and a header without options
    out.u8(0xff);  // type of service
    out.u16(static_cast<std::uint16_t>(kV4Bytes + udp_bytes));
    out.u16(identification);
    out.u16(0x4000);  // don't fragment
    out.u8(0xff);     // time to live
    out.u8(IPPROTO_UDP);
    out.u16(0xffff);  // header checksum
    std::memcpy(to + 12, path.source.data() + 12, 4);
    std::memcpy(to + 16, path.dest.data() + 12, 4);
    return kV4Bytes;
}

std::size_t mask_v6(const IpPath& path, std::size_t udp_bytes, std::byte* to) noexcept {
    WireWriter out(to);
    out.u32(0x6fffffff);  // version; traffic class and flow label
    out.u16(static_cast<std::uint16_t>(udp_bytes));
    out.u8(IPPROTO_UDP);
    out.u8(0xff);  // hop limit
    std::memcpy(to + 8, path.source.data(), 16);
    std::memcpy(to + 24, path.dest.data(), 16);
    return kV6Bytes;
}

// ---- arithmetic modulo the polynomial ----
//
// As in the register of a reflected CRC: the most significant bit is the coefficient of x^0.

constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::uint32_t kOne = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t a) noexcept {
    return (a & 1) != 0 ? a >> 1 ^ kPolynomial : a >> 1;
}
constexpr std::uint32_t over_x(std::uint32_t a) noexcept {
    return (a & kOne) != 0 ? (a ^ kPolynomial) << 1 | 1 : a << 1;
}
constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) noexcept {
    std::uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        product ^= (a & kOne) != 0 ? b : 0;
        b = times_x(b);
    }
    return product;
}

// x to the power -8, -16, -32 ...: what takes back one, two, four ... bytes.
constexpr auto kTakesBack = [] {
    std::array<std::uint32_t, 17> powers{};
    powers[0] = kOne;
    for (int bit = 0; bit < 8; ++bit) {
        powers[0] = over_x(powers[0]);
    }
    for (std::size_t i = 1; i < powers.size(); ++i) {
        powers[i] = times(powers[i - 1], powers[i - 1]);
    }
    return powers;
}();

}  // namespace

bool is_v4(const std::array<std::uint8_t, 16>& address) noexcept {
    static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::equal(std::begin(kMapped), std::end(kMapped), address.begin());
}

Icrc::Icrc(const IpPath& path, std::size_t packet_bytes, std::span<const std::byte> headers,
           std::uint16_t identification) noexcept {
    std::byte masked[kV6Bytes + kUdpBytes + kMaxHeaderBytes];
    const std::size_t udp_bytes = kUdpBytes + packet_bytes + kIcrcBytes;
    const std::size_t ip_bytes = is_v4(path.source)
                                     ? mask_v4(path, udp_bytes, identification, masked)
                                     : mask_v6(path, udp_bytes, masked);
    WireWriter udp(masked + ip_bytes);
    udp.u16(path.source_port);
    udp.u16(path.dest_port);
    udp.u16(static_cast<std::uint16_t>(udp_bytes));
    udp.u16(0xffff);  // checksum
    std::byte* base = masked + ip_bytes + kUdpBytes;
    std::memcpy(base, headers.data(), headers.size());
    base[kReservedAt] = kOnes;
    // In one go: a call costs as much as its first hundred bytes.
    crc_ = crc32(kNoRouteHeader, masked, ip_bytes + kUdpBytes + headers.size());
}

void Icrc::add(std::span<const std::byte> bytes) noexcept {
    crc_ = crc32(crc_, bytes.data(), bytes.size());
}

std::byte* Icrc::add_copy(std::byte* to, std::span<const std::byte> bytes) noexcept {
    crc_ = crc32_copy(crc_, to, bytes.data(), bytes.size());
    return to + bytes.size();
}

std::uint32_t icrc_of(const IpPath& path, std::span<const std::byte> packet,
                      std::uint16_t identification) noexcept {
    Icrc icrc(path, packet.size(), packet.first(kBthBytes), identification);
    icrc.add(packet.subspan(kBthBytes));
    return icrc.value();
}

std::optional<std::uint16_t> identification_of(std::uint32_t difference,
                                               std::size_t packet_bytes) noexcept {
    // From the field on, its own two bytes included.
    const std::size_t behind = kV4Bytes - kV4IdAt + kUdpBytes + packet_bytes;
    std::uint32_t image = difference;
    for (std::size_t i = 0; i < kTakesBack.size(); ++i) {
        image = (behind >> i & 1) != 0 ? times(kTakesBack[i], image) : image;
    }
    // The register takes its first byte into its least significant bits.
    return image >> 16 == 0
               ? std::optional(static_cast<std::uint16_t>((image & 0xff) << 8 | image >> 8))
               : std::nullopt;
}

}  // namespace rvt::protocol
