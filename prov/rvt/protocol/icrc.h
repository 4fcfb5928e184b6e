// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The invariant CRC at the end of each RoCEv2 packet: CRC-32 over the IP and UDP headers, with what
// routers change set to ones, and over everything behind them.
// RoCEv2 annex A17.3.3; IBTA vol. 1, 7.8.1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

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
bool is_v4(const std::array<std::uint8_t, 16>& address) noexcept;

/// One packet's ICRC, computed as its bytes come by.
/// Cost: about a fifth of a copy of the same bytes.
class Icrc {
  public:
    /// @param packet_bytes    From the base transport header to the padding.
    /// @param headers         How the packet begins: kBthBytes to kMaxHeaderBytes of it.
    /// @param identification  The IPv4 header's; a packet is assumed to say "don't fragment".
    Icrc(const IpPath& path, std::size_t packet_bytes, std::span<const std::byte> headers,
         std::uint16_t identification = 0) noexcept;

    /// What follows.
    void add(std::span<const std::byte> bytes) noexcept;
    /// The same, and copies it to `to`. Returns: the end of the copy.
    std::byte* add_copy(std::byte* to, std::span<const std::byte> bytes) noexcept;

    /// In the host's byte order; on the wire its least significant byte stands first.
    [[nodiscard]] std::uint32_t value() const noexcept { return crc_; }

  private:
    std::uint32_t crc_;
};

/// The ICRC of a packet that lies in one piece.
std::uint32_t icrc_of(const IpPath& path, std::span<const std::byte> packet,
                      std::uint16_t identification = 0) noexcept;

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
