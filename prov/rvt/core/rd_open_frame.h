// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The frame of a flow that takes further records. Records lie in the flow's ring, one behind the
// other; a run lies behind its record, or where the application has it.
//
//   | record | record | run ...|... run | 0 0 0 | record | run in the application's memory | record
//   |<-------- packet -------->|<-- packet ---->|<------ packet ...
//
// A record does not cross the end of a packet: zeros fill what it leaves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <sys/uio.h>

#include "core/rd_frame_ring.h"
#include "rvt/types.h"

namespace rvt::core {

/// Threads: one at a time.
class RdOpenFrame {
  public:
    /// Of a frame: its records, and at most two runs that lie elsewhere.
    static constexpr std::uint32_t kMaxSge = 4;

    /// What the next record takes.
    struct Extent {
        std::size_t record;        // bytes
        std::size_t copied = 0;    // of its run, in the ring
        std::size_t borrowed = 0;  // of its run, elsewhere
    };
    /// What has to stay free in the ring behind it.
    struct Spare {
        std::size_t bytes = 0;
        std::uint32_t frames = 0;
    };

    explicit RdOpenFrame(RdFrameRing& ring) noexcept : ring_(ring) {}

    /// @param packet_bytes  Of a full packet; at least a record and what may stand before it.
    /// @param most_bytes    Of a frame that takes further records; one record alone may be longer.
    void set_sizes(std::uint32_t packet_bytes, std::size_t most_bytes) noexcept {
        packet_bytes_ = packet_bytes;
        most_bytes_ = most_bytes;
    }
    [[nodiscard]] std::size_t most_bytes() const noexcept { return most_bytes_; }

    [[nodiscard]] bool is_empty() const noexcept { return bytes_ == 0; }
    /// Bytes that it may still take.
    [[nodiscard]] std::size_t left() const noexcept {
        return count_ == kMaxSge || bytes_ > most_bytes_ ? 0 : most_bytes_ - bytes_;
    }

    /// Begins a frame. Precondition: it is empty.
    /// @param front  Bytes that may stand before the record.
    /// Returns: false when the ring has no room.
    bool begin(std::size_t front, const Extent& next, const Spare& spare) noexcept {
        base_ = ring_.room(front + next.record + next.copied + packet_bytes_, spare.bytes,
                           spare.frames);
        packet_end_ = packet_bytes_;
        return base_ != nullptr;
    }
    /// Where the first record goes, or what stands before it.
    [[nodiscard]] std::byte* end() const noexcept { return base_ + used_; }
    /// Where the next record goes if it fits into the packet that the others are in; else nullptr.
    [[nodiscard]] std::byte* place_here(const Extent& next) const noexcept {
        const bool fits = bytes_ + next.record + next.copied <= packet_end_ && next.borrowed == 0 &&
                          count_ != kMaxSge;
        return fits ? end() : nullptr;
    }
    /// The same, or at the begin of the next packet; nullptr: the frame, or the ring, has no room.
    std::byte* place(const Extent& next, const Spare& spare) noexcept {
        std::byte* const here = place_here(next);
        return here != nullptr ? here : place_in_next_packet(next, spare);
    }
    /// The record, and its run if that is copied, stand there.
    void add(std::size_t bytes) noexcept {
        used_ += bytes;
        note(bytes);
    }
    /// The run of the record that was added last lies there.
    void borrow(const iovec& run) noexcept;

    /// What has been put is not sent.
    void drop() noexcept {
        used_ = bytes_ = part_begin_ = 0;
        count_ = 0;
    }
    /// Makes it a frame of the ring, and is empty. Returns: its parts, until the next begin().
    std::span<const Sge> take(std::uint32_t lkey) noexcept {
        if (used_ != part_begin_) {
            add_part(base_ + part_begin_, used_ - part_begin_);
        }
        ring_.take(base_, used_);
        const std::span<Sge> parts(parts_.data(), count_);
        for (Sge& part : parts) {
            part.lkey = lkey;
        }
        drop();
        return parts;
    }

  private:
    // In the ring there is always room for a packet more than is asked for, so that place() need
    // not ask within one.
    std::byte* place_in_next_packet(const Extent& next, const Spare& spare) noexcept;
    void add_part(const void* memory, std::size_t bytes) noexcept {
        parts_[count_++] = {.addr = reinterpret_cast<std::uint64_t>(memory),
                            .length = static_cast<std::uint32_t>(bytes),
                            .lkey = 0};
    }
    void note(std::size_t bytes) noexcept {
        bytes_ += bytes;
        if (bytes_ > packet_end_) {
            packet_end_ = bytes_ >= most_bytes_
                              ? bytes_
                              : (bytes_ + packet_bytes_ - 1) / packet_bytes_ * packet_bytes_;
        }
    }

    RdFrameRing& ring_;
    std::size_t packet_bytes_ = 1024;
    std::size_t most_bytes_ = 1024;
    std::byte* base_ = nullptr;
    std::size_t used_ = 0;        // of the ring, from base_ on
    std::size_t bytes_ = 0;       // of the frame
    std::size_t packet_end_ = 0;  // of the packet that bytes_ is in; the ring has room until there
    std::size_t part_begin_ = 0;  // of the part that is not in the list yet; as used_
    std::array<Sge, kMaxSge> parts_;
    std::uint32_t count_ = 0;
};

}  // namespace rvt::core
