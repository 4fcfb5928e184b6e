// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A queue of posted receives, a pair's own or a shared one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rvt/status.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

/// A receive on its way from the queue to its completion.
struct Receive {
    static constexpr std::size_t kMaxSge = 32;

    std::uint64_t wr_id = 0;
    std::uint64_t bytes = 0;   // room in the list
    BufferUse* use = nullptr;  // RecvWr::use
    std::uint32_t sge_count = 0;
    Sge sge[kMaxSge];

    [[nodiscard]] std::span<const Sge> sg_list() const noexcept { return {sge, sge_count}; }
};

/// Threads: any.
class RecvQueue {
  public:
    RecvQueue(std::uint32_t max_wr, std::uint32_t max_sge);

    /// Returns: ENOMEM when all slots are posted, EINVAL for too many elements.
    Status post(const RecvWr& wr) noexcept;

    enum class Taken : std::uint8_t { kYes, kNoneIsPosted, kTooSmall };
    /// Takes the oldest receive into `to`, unless it has room for less than `min_bytes`: then it
    /// stays.
    Taken take(Receive& to, std::uint64_t min_bytes = 0) noexcept;

    /// Removes the oldest receive of that wr_id; those behind it move up.
    /// Returns: ENOENT when none is posted.
    /// Cost:    that of all receives behind it.
    Status take_back(std::uint64_t wr_id) noexcept;

    [[nodiscard]] std::uint32_t size() const noexcept;
    [[nodiscard]] std::uint32_t max_wr() const noexcept { return max_wr_; }
    [[nodiscard]] std::uint32_t max_sge() const noexcept { return max_sge_; }

  private:
    struct Slot {
        std::uint64_t wr_id;
        std::uint32_t sge_count;
        BufferUse* use;
    };
    [[nodiscard]] Sge* list_of(std::uint64_t position) noexcept RVT_REQUIRES(lock_) {
        return &sges_[(position & mask_) * max_sge_];
    }

    const std::uint32_t max_wr_;
    const std::uint32_t max_sge_;
    const std::uint64_t mask_;
    mutable util::SpinLock lock_;  // order: after Qp::rx_lock_, before none
    std::vector<Slot> slots_ RVT_GUARDED_BY(lock_);
    std::vector<Sge> sges_ RVT_GUARDED_BY(lock_);   // max_sge_ for each slot
    std::uint64_t head_ RVT_GUARDED_BY(lock_) = 0;  // positions count on for ever
    std::uint64_t tail_ RVT_GUARDED_BY(lock_) = 0;
};

}  // namespace rvt::core
