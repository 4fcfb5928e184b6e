// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ends of packets and of frames.
#include "core/rd_open_frame.h"

namespace rvt::core {

// In the ring there is always room for a packet more than is asked for, so that place() need not
// ask within one.

bool RdOpenFrame::begin(std::size_t front, const Extent& next, const Spare& spare) noexcept {
    base_ =
        ring_.room(front + next.record + next.copied + packet_bytes_, spare.bytes, spare.frames);
    packet_end_ = packet_bytes_;
    return base_ != nullptr;
}

std::byte* RdOpenFrame::place_in_next_packet(const Extent& next, const Spare& spare) noexcept {
    const std::size_t padding = bytes_ + next.record > packet_end_ ? packet_end_ - bytes_ : 0;
    const std::size_t in_ring = padding + next.record + next.copied;
    if (in_ring + next.borrowed > left() ||
        ring_.room(used_ + in_ring + packet_bytes_, spare.bytes, spare.frames) != base_) {
        return nullptr;
    }
    std::memset(base_ + used_, 0, padding);
    used_ += padding;
    bytes_ += padding;
    return end();
}

void RdOpenFrame::borrow(const iovec& run) noexcept {
    add_part(base_ + part_begin_, used_ - part_begin_);
    part_begin_ = used_;
    add_part(run.iov_base, run.iov_len);
    note(run.iov_len);
}

std::span<const Sge> RdOpenFrame::take(std::uint32_t lkey) noexcept {
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

void RdOpenFrame::add_part(const void* memory, std::size_t bytes) noexcept {
    parts_[count_++] = {.addr = reinterpret_cast<std::uint64_t>(memory),
                        .length = static_cast<std::uint32_t>(bytes),
                        .lkey = 0};
}

}  // namespace rvt::core
