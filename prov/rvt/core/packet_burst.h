// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets to one destination on their way to the backend, which is asked once for all of them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <sys/uio.h>

#include "core/device.h"
#include "core/pieces.h"
#include "protocol/headers.h"
#include "rvt/backend.h"

namespace rvt::core {

/// 10 KiB on the stack of who sends. Payload is named, not copied: it stays where it is until
/// send().
class PacketBurst {
  public:
    static constexpr std::size_t kMaxPackets = 64;

    PacketBurst(Device& device, const AhAttr& dest) noexcept : device_(device), dest_(dest) {}
    ~PacketBurst() = default;
    PacketBurst(const PacketBurst&) = delete;
    PacketBurst& operator=(const PacketBurst&) = delete;

    [[nodiscard]] std::size_t count() const noexcept { return count_; }
    /// The number of the i-th packet added since the last send(), also just after it.
    [[nodiscard]] protocol::Psn psn(std::size_t i) const noexcept {
        return protocol::Psn(psns_[i]);
    }
    /// Whether there is for a packet with so many pieces of payload.
    [[nodiscard]] bool has_room_for(std::size_t pieces) const noexcept {
        return count_ < kMaxPackets && pieces_used_ + pieces <= pieces_.size();
    }
    [[nodiscard]] bool has_room_for(const PieceList& payload) const noexcept {
        return has_room_for(payload.all().size());
    }

    /// Appends a packet with the next `bytes` of the payload; sets `header.pad`.
    /// Precondition: has_room_for(payload.pieces()).
    void add(protocol::PacketHeader& header, PieceCursor& payload, std::uint64_t bytes) noexcept {
        header.pad = static_cast<std::uint8_t>(-bytes & 3);
        std::byte* to = headers_[count_].data();
        const std::size_t header_bytes = protocol::encode(header, to);
        const std::size_t first = pieces_used_;
        payload.take(bytes, [this](const iovec& piece) { pieces_[pieces_used_++] = piece; });
        packets_.all[count_] = {.headers = {to, header_bytes},
                                .payload = {&pieces_[first], pieces_used_ - first},
                                .pad = header.pad};
        psns_[count_] = header.psn.value();
        ++count_;
    }
    /// The same with all of it. Precondition: has_room_for(payload).
    void add(protocol::PacketHeader& header, const PieceList& payload) noexcept {
        PieceCursor all(payload, 0);
        add(header, all, payload.bytes());
    }

    /// Of payload that is part of a list which will not be there any more at send(): whether the
    /// list's accesses to memory of devices can be kept until then.
    [[nodiscard]] bool can_keep(const PieceList& whole) const noexcept {
        return accesses_.has_room_for(whole.accesses());
    }
    /// Keeps them. Precondition: can_keep(whole).
    void keep(PieceList& whole) noexcept { accesses_.take_over(whole.accesses()); }

    /// Hands all of them to the backend and forgets them. Returns: how many it took.
    std::size_t send() noexcept {
        const std::span<const OutPacket> packets(packets_.all.data(), count_);
        const std::size_t taken =
            count_ == 0 ? 0 : device_.ops().send_packets(device_, dest_, packets);
        count_ = 0;
        pieces_used_ = 0;
        accesses_.end();
        return taken;
    }

  private:
    /// Not initialised, which takes longer than a small packet does.
    union Packets {
        Packets() noexcept {}
        std::array<OutPacket, kMaxPackets> all;
    };

    Device& device_;
    const AhAttr& dest_;
    std::size_t count_ = 0;
    std::size_t pieces_used_ = 0;
    DeviceAccesses accesses_;
    // Only what is counted above has been written.
    std::array<std::array<std::byte, protocol::kMaxHeaderBytes>, kMaxPackets> headers_;
    std::array<iovec, 4 * kMaxPackets> pieces_;
    Packets packets_;
    std::array<std::uint32_t, kMaxPackets> psns_;
};
static_assert(4 * PacketBurst::kMaxPackets >= PieceList::kMax);

}  // namespace rvt::core
