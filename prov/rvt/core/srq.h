// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Shared receive queues with their limit event. IBTA vol. 1, 10.2.9; ibv_create_srq(3).
#pragma once

#include <atomic>
#include <cstdint>

#include "core/context.h"
#include "core/object.h"
#include "core/recv_queue.h"

namespace rvt::core {

struct SrqAttr {
    std::uint32_t max_wr = 64;
    std::uint32_t max_sge = 4;
    std::uint32_t limit = 0;  // 0: no event
};

class Srq : public Object {
  public:
    Srq(Pd& pd, const SrqAttr& attr)
        : pd_(pd), use_(pd), queue_(attr.max_wr, attr.max_sge), limit_(attr.limit) {}

    [[nodiscard]] Pd& pd() const noexcept { return pd_; }
    [[nodiscard]] SrqAttr query() const noexcept;

    /// Arms the limit: kSrqLimitReached is raised once when fewer receives than `limit` are posted.
    /// Returns: EINVAL for more than max_wr.
    Status set_limit(std::uint32_t limit) noexcept;

    /// Returns: ENOMEM when all slots are posted, EINVAL for too many elements.
    /// Threads: any.
    Status post_recv(const RecvWr& wr) noexcept;

    // ---- for the core -----------------------------------------------------------------------

    /// The core's version of post_srq_recv.
    Status enqueue_recv(const RecvWr& wr) noexcept;
    [[nodiscard]] RecvQueue& queue() noexcept { return queue_; }
    /// Raises the event when the receives have become few. Called after a message took one for
    /// good.
    void check_limit() noexcept;

  private:
    Pd& pd_;
    Use use_;
    RecvQueue queue_;
    std::atomic<std::uint32_t> limit_;  // 0: not armed
};

/// Returns: EINVAL for sizes beyond the device's limits.
Result<Srq*> create_srq(Pd& pd, const SrqAttr& attr);
/// Returns: EBUSY while a queue pair uses it.
Status destroy_srq(Srq* srq);

}  // namespace rvt::core
