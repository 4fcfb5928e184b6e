// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A packet between the two ends of a wire, in its form on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/icrc.h"

namespace rvt::protocol {

struct WirePacket {
    IpPath path{};
    std::uint16_t identification = 0;    // the IPv4 header's; of one that arrives, as far as known
    std::span<const std::byte> bytes{};  // from the base transport header to the ICRC
};

/// One that owns its bytes. A copy would name those of the original: it moves only.
class KeptPacket {
  public:
    explicit KeptPacket(const WirePacket& packet)
        : bytes_(packet.bytes.begin(), packet.bytes.end()), packet_(packet) {
        packet_.bytes = bytes_;
    }
    KeptPacket(KeptPacket&&) noexcept = default;
    KeptPacket& operator=(KeptPacket&&) noexcept = default;
    KeptPacket(const KeptPacket&) = delete;
    KeptPacket& operator=(const KeptPacket&) = delete;
    ~KeptPacket() = default;

    [[nodiscard]] const WirePacket& packet() const noexcept { return packet_; }
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
    WirePacket packet_;
};

}  // namespace rvt::protocol
