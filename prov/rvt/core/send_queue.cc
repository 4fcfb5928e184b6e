// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The ring of posted send work requests.
#include "core/send_queue.h"

#include "core/ah.h"
#include "core/extended_atomic.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rvt::core {
namespace {

/// Copies the first bytes of a list. Returns: how many of its elements are used up.
std::size_t copy_front(std::byte* to, std::uint64_t bytes, std::span<Sge> list) noexcept {
    std::size_t used = 0;
    for (Sge& sge : list) {
        const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(sge.length, bytes));
        if (part != 0) {  // of none the address may be null, which memcpy does not take
            // NOLINTNEXTLINE(performance-no-int-to-ptr)
            std::memcpy(to, reinterpret_cast<const void*>(sge.addr), part);
        }
        to += part;
        bytes -= part;
        if (part != sge.length) {
            sge.addr += part;
            sge.length -= part;
            break;
        }
        ++used;
    }
    return used;
}

}  // namespace

std::uint64_t payload_of(const SendWr& wr, const WrInfo& info, std::uint64_t bytes) noexcept {
    if (wr.opcode == WrOpcode::kExtendedAtomic) {
        const AtomicShape shape = *shape_of(wr.atomic);
        return shape.operands * target_bytes(shape, bytes);
    }
    return has_any(info.traits, OpTraits::kPayload) ? bytes : 0;
}

std::uint64_t SendWqe::target_bytes() const noexcept {
    return core::target_bytes(*shape_of(wr.atomic), bytes);
}

SendQueue::SendQueue(std::uint32_t max_wr, std::uint32_t max_sge, std::uint32_t max_inline)
    : max_wr_(max_wr),
      max_sge_(max_sge),
      max_inline_(max_inline),
      mask_(std::bit_ceil(std::uint64_t{max_wr}) - 1),
      slots_(mask_ + 1),
      sges_((mask_ + 1) * max_sge),
      inline_data_((mask_ + 1) * max_inline) {}

Status SendQueue::post(const SendWr& wr, const WrInfo& info, std::uint64_t bytes) noexcept {
    const util::Guard guard(post_lock_);
    // relaxed: only holders of the lock write it.
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    // acquire: pairs with the release in retire_oldest(): the slot's last use is over.
    if (tail - head_.load(std::memory_order_acquire) >= max_wr_) {
        return ENOMEM;
    }
    SendWqe& wqe = slot(tail);
    Sge* list = &sges_[(tail & mask_) * max_sge_];
    if (wr.sg_list.size() == 1) [[likely]] {
        list[0] = wr.sg_list[0];
    } else {
        std::copy(wr.sg_list.begin(), wr.sg_list.end(), list);
    }
    wqe.wr = wr;
    wqe.wr.sg_list = {list, wr.sg_list.size()};
    wqe.info = &info;
    wqe.bytes = bytes;
    wqe.payload_bytes = payload_of(wr, info, bytes);
    wqe.status = WcStatus::kSuccess;
    wqe.done = false;
    wqe.moved = 0;
    wqe.sent = 0;
    wqe.inline_data = {};
    if (has_any(wr.flags, SendFlags::kInline)) {
        std::byte* to = &inline_data_[(tail & mask_) * max_inline_];
        wqe.inline_data = {to, static_cast<std::size_t>(wqe.payload_bytes)};
        const std::span<Sge> copied(list, wr.sg_list.size());
        wqe.wr.sg_list = copied.subspan(copy_front(to, wqe.payload_bytes, copied));
    }
    if (wr.ah != nullptr) {
        // The handle's own count changes; what it says does not.
        wqe.ah_use = Use(const_cast<Ah&>(*wr.ah));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    }
    // release: pairs with the acquire in next().
    tail_.store(tail + 1, std::memory_order_release);
    return kOk;
}

void SendQueue::retire_oldest() noexcept {
    // relaxed: only the runner writes it.
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    slot(head).ah_use.release();
    // release: pairs with the acquire in post().
    head_.store(head + 1, std::memory_order_release);
}

void SendQueue::rewind_to(const SendWqe& wqe) noexcept {
    begun_ = std::max(begun_, next_);
    do {  // in a full queue the slot behind the newest is the oldest's
        --next_;
        slot(next_).moved = 0;
        slot(next_).sent = 0;
        slot(next_).done = false;
    } while (&slot(next_) != &wqe);
}

void SendQueue::clear() noexcept {
    // acquire: pairs with the release in post().
    next_ = tail_.load(std::memory_order_acquire);
    while (oldest() != nullptr) {
        retire_oldest();
    }
}

}  // namespace rvt::core
