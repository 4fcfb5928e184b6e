// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A pair's posted send work requests, from post_send() until they are completed, in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/object.h"
#include "core/wc.h"
#include "core/wr_table.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

/// One posted work request, its lists copied.
struct SendWqe {
    SendWr wr;  // sg_list points into the queue's own memory
    const WrInfo* info = nullptr;
    std::uint64_t bytes = 0;             // of the list
    std::uint64_t payload_bytes = 0;     // of them, from the first on, what goes to the peer
    std::span<std::byte> inline_data{};  // a copy of those; the list is then what is behind them
    Use ah_use;

    // While it is under way (core/segment_transport.h, core/packet_requester.h).
    WcStatus status = WcStatus::kSuccess;
    bool done = false;
    std::uint64_t moved = 0;    // bytes sent, or received for a READ
    std::uint32_t msn = 0;      // its number in the flow; of its first packet
    std::uint32_t packets = 0;  // numbers that it takes
    std::uint32_t sent = 0;     // of them

    [[nodiscard]] bool has(OpTraits traits) const noexcept { return has_any(info->traits, traits); }
    [[nodiscard]] bool is_extended_atomic() const noexcept {
        return wr.opcode == WrOpcode::kExtendedAtomic;
    }
    /// Length of the peer's memory that an extended atomic works on.
    [[nodiscard]] std::uint64_t target_bytes() const noexcept;
    /// A READ, an atomic, FLUSH or ATOMIC WRITE.
    [[nodiscard]] bool is_answered() const noexcept { return has(OpTraits::kAnswered); }
    /// A READ or an atomic.
    [[nodiscard]] bool is_fetch() const noexcept { return has(OpTraits::kResult); }
    [[nodiscard]] bool has(SendFlags flags) const noexcept { return has_any(wr.flags, flags); }
};

/// Of a list of `bytes` those that go to the peer. Precondition: an extended atomic has a shape.
std::uint64_t payload_of(const SendWr& wr, const WrInfo& info, std::uint64_t bytes) noexcept;

/// Positions: completed < head <= next <= tail. [head, next) is under way, [next, tail) waits.
///
/// field      | written by                | read by
/// slots, tail| post(), any thread        | the runner, after tail
/// head, next | the runner (Qp::tx_lock_) | post(): head
class SendQueue {
  public:
    SendQueue(std::uint32_t max_wr, std::uint32_t max_sge, std::uint32_t max_inline);

    /// Copies a checked work request in. Returns: ENOMEM when all slots are taken.
    /// Threads: any.
    Status post(const SendWr& wr, const WrInfo& info, std::uint64_t bytes) noexcept;

    /// How many have been completed since the beginning; what they named is the poster's again.
    /// Threads: any.
    [[nodiscard]] std::uint64_t completed() const noexcept {
        // acquire: pairs with the release in retire_oldest().
        return head_.load(std::memory_order_acquire);
    }

    // ---- for the runner, the thread that holds Qp::tx_lock_ ----

    /// The first that has not been started, or nullptr.
    [[nodiscard]] SendWqe* next() noexcept {
        // acquire: pairs with the release in post().
        return next_ == tail_.load(std::memory_order_acquire) ? nullptr : &slot(next_);
    }
    void start_next() noexcept { ++next_; }
    /// Whether that one has been under way before, or was refused for the time being.
    [[nodiscard]] bool has_begun_next() const noexcept { return next_ < begun_; }
    /// It has been refused for the time being.
    void note_begun() noexcept { begun_ = std::max(begun_, next_ + 1); }
    /// The oldest that is under way, or nullptr.
    [[nodiscard]] SendWqe* oldest() noexcept { return head_ == next_ ? nullptr : &slot(head_); }
    /// That one has been completed; its slot is free.
    void retire_oldest() noexcept;
    /// The oldest under way for which `matches(wqe)` holds, or nullptr.
    template <class Matches>
    SendWqe* find_under_way(Matches matches) noexcept {
        // relaxed: only the runner writes it.
        for (auto i = head_.load(std::memory_order_relaxed); i != next_; ++i) {
            if (matches(slot(i))) {
                return &slot(i);
            }
        }
        return nullptr;
    }
    /// The oldest under way whose outcome is not known, or nullptr.
    SendWqe* oldest_open() noexcept {
        return find_under_way([](const SendWqe& wqe) { return !wqe.done; });
    }
    /// Whether one under way has failed for want of what it needs here: nothing behind it leaves.
    bool has_failed_unsent() noexcept {
        return find_under_way([](const SendWqe& wqe) {
                   return wqe.done && wqe.status != WcStatus::kSuccess;
               }) != nullptr;
    }
    [[nodiscard]] std::uint64_t under_way_count() const noexcept {
        // relaxed: only the runner writes it.
        return next_ - head_.load(std::memory_order_relaxed);
    }
    /// Starts again from `wqe`, which is under way: it and all behind it wait once more.
    void rewind_to(const SendWqe& wqe) noexcept;
    /// Throws everything away without completions (state RESET).
    void clear() noexcept;

    [[nodiscard]] std::uint32_t max_sge() const noexcept { return max_sge_; }
    [[nodiscard]] std::uint32_t max_inline() const noexcept { return max_inline_; }

  private:
    [[nodiscard]] SendWqe& slot(std::uint64_t position) noexcept {
        return slots_[position & mask_];
    }

    const std::uint32_t max_wr_;
    const std::uint32_t max_sge_;
    const std::uint32_t max_inline_;
    const std::uint64_t mask_;
    std::vector<SendWqe> slots_;
    std::vector<Sge> sges_;               // max_sge_ for each slot
    std::vector<std::byte> inline_data_;  // max_inline_ for each slot
    util::SpinLock post_lock_;            // among posters; order: innermost
    std::atomic<std::uint64_t> tail_{0};
    std::atomic<std::uint64_t> head_{0};
    std::uint64_t next_ = 0;
    std::uint64_t begun_ = 0;  // what is before it has begun; of use where it is beyond next_
};

}  // namespace rvt::core
