// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What a UDP socket does not show of IPv4 packets, and their ICRC covers: the identification. A raw
// socket beside it gets the beginning of each packet before the other one has the packet; for that
// the process needs CAP_NET_RAW. raw(7), capabilities(7).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/roce/udp_socket.h"
#include "protocol/header_sizes.h"
#include "protocol/wire_packet.h"
#include "util/fork_guard.h"
#include "util/status.h"

namespace rvt::roce {

class IdentificationTap {
  public:
    /// Below that identifications are not looked for: those of packets from devices like this one.
    static constexpr std::uint16_t kLeast = 64;

    /// Of what comes to a socket with an IPv4 address, from now on.
    /// Returns: EPERM without CAP_NET_RAW; errors of socket(2), setsockopt(2) and bind(2); ENOMEM.
    static util::Result<std::unique_ptr<IdentificationTap>> open(const UdpSocket& beside);

    /// Whether such a packet has arrived with this identification, kLeast at least. Packets are
    /// asked about in the order in which they arrived, but for the last few hundred. Threads: one
    /// at a time.
    [[nodiscard]] bool has_come(const protocol::WirePacket& packet,
                                std::uint16_t identification) noexcept;
    /// A packet has arrived that need not be asked about, wrong as it is. Else the headers of many
    /// such would leave no room for others. Threads: as has_come().
    void pass_over() noexcept;

  private:
    static constexpr std::size_t kKept = 512;
    static constexpr std::size_t kCall = 32;
    // Of kCall headers each: more than there is room for. What comes meanwhile is of later packets.
    static constexpr unsigned kMostCalls = 512;

    /// Tells packets apart, but for those that came again.
    struct Header {
        std::array<std::byte, 4> source{};
        std::uint16_t source_port = 0;  // in the host's byte order, like the next
        std::uint16_t identification = 0;
        std::array<std::byte, protocol::kBthBytes> bth{};

        bool operator==(const Header&) const = default;
    };

    explicit IdentificationTap(util::ProcessFd socket) noexcept : socket_(std::move(socket)) {}
    std::size_t receive() noexcept;
    void keep(const std::byte* packet, std::size_t bytes) noexcept;
    [[nodiscard]] bool find(const Header& wanted) noexcept;

    const util::ProcessFd socket_;
    std::array<Header, kKept> kept_{};  // a ring
    std::size_t next_ = 0;              // to be overwritten
    std::size_t likely_ = 0;            // behind the one that was found last
};

}  // namespace rvt::roce
