// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The invariant CRC at the end of each RoCEv2 packet: CRC-32 over the IP and UDP headers, with what
// routers change set to ones, and over everything behind them.
// RoCEv2 annex A17.3.3; IBTA vol. 1, 7.8.1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include <endian.h>
#include <sys/uio.h>

namespace rvt::protocol {

/// Between which addresses and ports a packet travels. Addresses as in Address: IPv6, or IPv4
/// mapped into it; both of one family.
struct IpPath {
    std::array<std::uint8_t, 16> source{};
    std::array<std::uint8_t, 16> dest{};
    std::uint16_t source_port = 0;
    std::uint16_t dest_port = 0;
};

/// Whether the address is an IPv4 one, mapped into IPv6.
[[nodiscard]] inline bool is_v4(const std::array<std::uint8_t, 16>& address) noexcept {
    std::uint64_t zeros = 0;
    std::uint32_t mark = 0;
    std::memcpy(&zeros, address.data(), sizeof zeros);
    std::memcpy(&mark, address.data() + sizeof zeros, sizeof mark);
    return zeros == 0 && mark == htobe32(0xffff);
}

/// A packet before it is one: what it consists of, up to the ICRC.
struct PacketParts {
    std::span<const std::byte> headers;  // kBthBytes to kMaxHeaderBytes
    std::span<const iovec> payload;
    std::uint8_t pad = 0;  // bytes of zeros behind it, at most 3
};

/// One way to compute it. Both functions as those below.
struct IcrcForm {
    std::uint32_t (*of)(const IpPath& path, std::span<const std::byte> packet,
                        std::uint16_t identification) noexcept;
    std::byte* (*write)(std::byte* to, const IpPath& path, const PacketParts& parts,
                        std::uint16_t identification) noexcept;
};
/// The best that this processor can. Set while the library is loaded: not for constructors of other
/// files.
extern const IcrcForm& best_icrc;

/// The ICRC of a packet in one piece, from the base transport header, which is there, to the
/// padding. In the host's byte order; on the wire its least significant byte stands first.
/// @param identification  The IPv4 header's; a packet is assumed to say "don't fragment".
inline std::uint32_t icrc_of(const IpPath& path, std::span<const std::byte> packet,
                             std::uint16_t identification = 0) noexcept {
    return best_icrc.of(path, packet, identification);
}

/// Puts a packet together at `to`, with its ICRC. Each byte is read once: the ICRC is that of what
/// was written, also when somebody changes the payload meanwhile. Returns: the packet's end.
inline std::byte* write_packet(std::byte* to, const IpPath& path, const PacketParts& parts,
                               std::uint16_t identification = 0) noexcept {
    return best_icrc.write(to, path, parts, identification);
}

/// What an IPv4 packet's identification must have been, if it was changed in nothing else. A socket
/// does not show that field, but the CRC is linear: the identification accounts for one part of the
/// difference and no other bit does.
/// @param difference    The ICRC that arrived, exclusive-or the one computed for identification 0.
/// @param packet_bytes  From the base transport header to the padding.
/// Returns: nothing when no identification explains the difference; of wrong packets one in 65536
///          passes.
std::optional<std::uint16_t> identification_of(std::uint32_t difference,
                                               std::size_t packet_bytes) noexcept;

}  // namespace rvt::protocol
