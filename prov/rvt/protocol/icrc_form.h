// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ways in which processors compute an ICRC, for protocol/icrc.h and its test.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <endian.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include "protocol/header_sizes.h"
#include "protocol/icrc.h"

namespace rvt::protocol {

/// ISA-L's, for any processor.
const IcrcForm& library_icrc() noexcept;

/// By carry-less multiplication of so many bits. Returns: null where the processor has none.
const IcrcForm* folding_icrc_128() noexcept;
const IcrcForm* folding_icrc_512() noexcept;

// ---- what stands before a packet's bytes, as the ICRC sees it ----

/// What routers change is ones. As words that lie in memory one after the other; the base transport
/// header is the end of it. They come by value, and not as bytes: what is written in small parts
/// and read at once as a whole waits until all earlier stores have left the processor.
template <std::size_t kWords>
using MaskedHeaders = std::array<std::uint32_t, kWords>;

inline constexpr std::size_t kV4Bytes = 20;
inline constexpr std::size_t kV6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kV4HeaderWords = (kV4Bytes + kUdpBytes + kBthBytes) / 4;
inline constexpr std::size_t kV6HeaderWords = (kV6Bytes + kUdpBytes + kBthBytes) / 4;

/// CRC-32 of the eight bytes of ones that stand for the local route header RoCE does not have.
inline constexpr std::uint32_t kNoRouteHeader = ~0xdebb20e3u;

[[nodiscard]] inline std::uint32_t word_at(const void* bytes, std::size_t word) noexcept {
    std::uint32_t value = 0;
    std::memcpy(&value, static_cast<const std::byte*>(bytes) + 4 * word, sizeof value);
    return value;
}

/// From four bytes that are read as two numbers in network byte order.
[[nodiscard]] inline std::uint32_t word_of(std::size_t first, std::size_t second) noexcept {
    return htobe32(static_cast<std::uint32_t>(first << 16 | second));
}

/// Of UDP and above, behind either IP.
struct MaskedTransport {
    std::uint32_t ports;
    std::uint32_t udp;
    std::uint32_t bth[3];
};

[[nodiscard]] inline MaskedTransport mask_transport(const IpPath& path, std::size_t udp_bytes,
                                                    const std::byte* bth) noexcept {
    return {.ports = word_of(path.source_port, path.dest_port),
            .udp = word_of(udp_bytes, 0xffff),                               // checksum
            .bth = {word_at(bth, 0), word_at(bth, 1) | htobe32(0xff000000),  // congestion bits
                    word_at(bth, 2)}};
}

/// @param packet_bytes  From the base transport header to the padding.
/// @param bth           kBthBytes.
[[nodiscard]] inline MaskedHeaders<kV4HeaderWords> mask_v4(const IpPath& path,
                                                           std::size_t packet_bytes,
                                                           const std::byte* bth,
                                                           std::uint16_t identification) noexcept {
    const std::size_t udp_bytes = kUdpBytes + packet_bytes + kIcrcBytes;
    const MaskedTransport rest = mask_transport(path, udp_bytes, bth);
    return {word_of(0x45ff, kV4Bytes + udp_bytes),  // version, no options; type of service; length
            word_of(identification, 0x4000),        // don't fragment
            word_of(0xff00 | IPPROTO_UDP, 0xffff),  // time to live; checksum
            word_at(path.source.data(), 3),
            word_at(path.dest.data(), 3),
            rest.ports,
            rest.udp,
            rest.bth[0],
            rest.bth[1],
            rest.bth[2]};
}

/// The same for IPv6, which has no identification.
[[nodiscard]] inline MaskedHeaders<kV6HeaderWords> mask_v6(const IpPath& path,
                                                           std::size_t packet_bytes,
                                                           const std::byte* bth) noexcept {
    const std::size_t udp_bytes = kUdpBytes + packet_bytes + kIcrcBytes;
    const MaskedTransport rest = mask_transport(path, udp_bytes, bth);
    const std::uint8_t* const source = path.source.data();
    const std::uint8_t* const dest = path.dest.data();
    return {word_of(0x6fff, 0xffff),                      // version; traffic class, flow label
            word_of(udp_bytes, IPPROTO_UDP << 8 | 0xff),  // hop limit
            word_at(source, 0),
            word_at(source, 1),
            word_at(source, 2),
            word_at(source, 3),
            word_at(dest, 0),
            word_at(dest, 1),
            word_at(dest, 2),
            word_at(dest, 3),
            rest.ports,
            rest.udp,
            rest.bth[0],
            rest.bth[1],
            rest.bth[2]};
}

/// From the base transport header to the padding.
[[nodiscard]] inline std::size_t packet_bytes(const PacketParts& parts) noexcept {
    std::size_t bytes = parts.headers.size() + parts.pad;
    for (const iovec& piece : parts.payload) {
        bytes += piece.iov_len;
    }
    return bytes;
}

inline constexpr std::array<std::byte, 3> kPadding{};

}  // namespace rvt::protocol
