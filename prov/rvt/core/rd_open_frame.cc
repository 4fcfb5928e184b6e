// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ends of packets and of frames.
#include "core/rd_open_frame.h"

namespace rvt::core {

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

}  // namespace rvt::core
