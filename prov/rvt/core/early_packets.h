// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets that have come before one that is missing, kept until it is there: its sender then has to
// repeat that one alone. Of pairs whose peers count on it (Qp::keeps_early()), as long as the
// device has room for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/early_room.h"
#include "protocol/headers.h"
#include "protocol/psn.h"

namespace rvt::core {

/// Threads: one at a time.
class EarlyPackets {
    struct Slot {
        bool is_used = false;
        protocol::PacketHeader header{};
        std::vector<std::byte> payload;
    };

  public:
    /// How far ahead of the missing packet one may be: not less than a sender has under way.
    static constexpr std::uint32_t kMost = 512;
    /// Of the room, what the first packet takes beside its payload.
    static constexpr std::size_t kSlotsBytes = kMost * sizeof(Slot);
    /// Of write_map(), at most.
    static constexpr std::size_t kMapBytes = kMost / 8;

    /// @param room  Outlives this.
    explicit EarlyPackets(EarlyRoom& room) noexcept : room_(room) {}
    ~EarlyPackets() { clear(); }
    EarlyPackets(const EarlyPackets&) = delete;
    EarlyPackets& operator=(const EarlyPackets&) = delete;

    [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
    [[nodiscard]] bool has(protocol::Psn psn) const noexcept {
        return count_ != 0 && slot(psn).is_used && slot(psn).header.psn == psn;
    }
    /// Copies a packet that is less than kMost ahead of the missing one; one that is there already
    /// stays. Returns: false without room or memory: it is lost, as packets may be.
    bool keep(const protocol::DecodedPacket& packet) noexcept;
    /// Forgets all packets.
    void clear() noexcept;
    /// Moves a packet out. Precondition: has(psn).
    /// @param bytes  What the packet's payload lies in from now on.
    protocol::DecodedPacket take(protocol::Psn psn, std::vector<std::byte>& bytes) noexcept;

    /// Writes which packets are kept: the lowest bit of the first byte is the one behind `missing`.
    /// Returns: the bytes up to the last that is kept, a multiple of four.
    std::size_t write_map(protocol::Psn missing, std::span<std::byte, kMapBytes> to) const noexcept;

  private:
    static constexpr std::size_t kWordBits = 64;

    [[nodiscard]] const Slot& slot(protocol::Psn psn) const noexcept {
        return slots_[psn.value() % kMost];
    }
    [[nodiscard]] Slot& slot(protocol::Psn psn) noexcept { return slots_[psn.value() % kMost]; }
    void release(std::size_t bytes) noexcept;

    EarlyRoom& room_;
    std::size_t held_ = 0;                                 // bytes of the room
    std::vector<Slot> slots_;                              // none while there are no packets
    std::array<std::uint64_t, kMost / kWordBits> used_{};  // a bit for each slot
    std::uint32_t count_ = 0;
};

}  // namespace rvt::core
