// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The ring of posted receives.
#include "core/recv_queue.h"

#include <algorithm>
#include <bit>

namespace rvt::core {

RecvQueue::RecvQueue(std::uint32_t max_wr, std::uint32_t max_sge)
    : max_wr_(max_wr),
      max_sge_(max_sge),
      mask_(std::bit_ceil(std::uint64_t{max_wr}) - 1),
      slots_(mask_ + 1),
      sges_((mask_ + 1) * max_sge) {}

Status RecvQueue::post(const RecvWr& wr) noexcept {
    if (wr.sg_list.size() > max_sge_) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    if (tail_ - head_ >= max_wr_) {
        return ENOMEM;
    }
    slots_[tail_ & mask_] = {.wr_id = wr.wr_id,
                             .sge_count = static_cast<std::uint32_t>(wr.sg_list.size()),
                             .use = wr.use};
    std::copy(wr.sg_list.begin(), wr.sg_list.end(), list_of(tail_));
    ++tail_;
    return kOk;
}

RecvQueue::Taken RecvQueue::take(Receive& to, std::uint64_t min_bytes) noexcept {
    const util::Guard guard(lock_);
    if (head_ == tail_) {
        return Taken::kNoneIsPosted;
    }
    const Slot& slot = slots_[head_ & mask_];
    const Sge* list = list_of(head_);
    to.wr_id = slot.wr_id;
    to.use = slot.use;
    to.sge_count = slot.sge_count;
    to.bytes = 0;
    for (std::uint32_t i = 0; i < slot.sge_count; ++i) {
        to.sge[i] = list[i];
        to.bytes += list[i].length;
    }
    if (to.bytes < min_bytes) {
        return Taken::kTooSmall;
    }
    ++head_;
    return Taken::kYes;
}

Status RecvQueue::take_back(std::uint64_t wr_id) noexcept {
    const util::Guard guard(lock_);
    std::uint64_t at = head_;
    while (at != tail_ && slots_[at & mask_].wr_id != wr_id) {
        ++at;
    }
    if (at == tail_) {
        return ENOENT;
    }
    for (; at + 1 != tail_; ++at) {
        slots_[at & mask_] = slots_[(at + 1) & mask_];
        std::copy_n(list_of(at + 1), max_sge_, list_of(at));
    }
    --tail_;
    return kOk;
}

std::uint32_t RecvQueue::size() const noexcept {
    const util::Guard guard(lock_);
    return static_cast<std::uint32_t>(tail_ - head_);
}

}  // namespace rvt::core
