// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Where the packets end of a message that the kernel may have joined (UDP_GRO), for who has not
// asked the kernel: a call that asks takes a third longer. All are of one size but the last, which
// may be shorter, and where a packet ends its ICRC stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include <endian.h>

#include "protocol/header_sizes.h"
#include "protocol/icrc.h"
#include "util/cpu.h"

namespace rvt::roce {

/// Threads: one at a time.
class PacketCut {
  public:
    /// How many bytes the first packet of a message has, and each but the last. It is whole, and
    /// has the IPv4 identification 0, as the first one that a device like this one sends at once,
    /// or one above it, and the one behind it is whole, too, and has the next: where a wrong guess
    /// may be in question no other is believed. Returns: 0 when no packet like that begins the
    /// message.
    RVT_ALWAYS_INLINE std::size_t first_packet(const protocol::IpPath& path,
                                               std::span<const std::byte> message) noexcept {
        const std::size_t likely = message.size() < each_ ? message.size() : each_;
        return is_packet(path, message.first(likely)) ? likely : search(path, message, likely);
    }

  private:
    // Not more are tried of a message that somebody has made for it.
    static constexpr unsigned kMostTries = 16;

    static bool is_packet(const protocol::IpPath& path, std::span<const std::byte> bytes) noexcept {
        if (bytes.size() < protocol::kBthBytes + protocol::kIcrcBytes) {
            return false;
        }
        const auto body = bytes.first(bytes.size() - protocol::kIcrcBytes);
        std::uint32_t icrc = 0;
        std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
        return protocol::icrc_of(path, body) == le32toh(icrc);
    }
    std::size_t search(const protocol::IpPath& path, std::span<const std::byte> message,
                       std::size_t tried) noexcept;

    // As that of the last one that was not as expected: mostly the next one is like it, or is one
    // packet that is smaller.
    std::size_t each_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace rvt::roce
