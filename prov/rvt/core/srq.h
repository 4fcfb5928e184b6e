// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Shared receive queues with their limit event, and those that match tags. IBTA vol. 1, 10.2.9;
// ibv_create_srq_ex(3), ibv_post_srq_ops(3).
//
// Tag matching is for RC pairs and for eager messages: each message begins with a TmHeader. The
// payload of one that a posted tag takes goes into the tag's buffer, without the header; any other
// goes whole into a plain receive. Rendezvous is not done: the queue refuses it as an invalid
// request (in the terms of ibv_tm_caps, max_rndv_hdr_size is 0), and the pair fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "core/context.h"
#include "core/object.h"
#include "core/recv_queue.h"
#include "core/tag_matcher.h"

namespace rvt::core {

struct SrqAttr {
    std::uint32_t max_wr = 64;
    std::uint32_t max_sge = 4;
    std::uint32_t limit = 0;     // 0: no event
    std::uint32_t max_tags = 0;  // 0: matches no tags
    VerbsCq* tm_cq = nullptr;    // with tags: where everything but WRITE_IMM completes
};

class Srq : public Object {
  public:
    Srq(Pd& pd, const SrqAttr& attr)
        : pd_(pd),
          use_(pd),
          queue_(attr.max_wr, attr.max_sge),
          tm_cq_use_(attr.max_tags != 0 ? Use(*attr.tm_cq) : Use()),
          tags_(attr.max_tags == 0
                    ? nullptr
                    : std::make_unique<TagMatcher>(*attr.tm_cq, attr.max_tags, attr.max_sge)),
          limit_(attr.limit) {}

    [[nodiscard]] Pd& pd() const noexcept { return pd_; }
    [[nodiscard]] SrqAttr query() const noexcept;

    /// Arms the limit: kSrqLimitReached is raised once when fewer receives than `limit` are posted.
    /// Returns: EINVAL for more than max_wr.
    Status set_limit(std::uint32_t limit) noexcept;

    /// Returns: ENOMEM when all slots are posted, EINVAL for too many elements.
    /// Threads: any.
    Status post_recv(const RecvWr& wr) noexcept;
    /// The same of several, in their order, which costs a backend less. The first ones may have
    /// been posted when it fails.
    Status post_recvs(std::span<const RecvWr> wrs) noexcept;

    /// Posts a tag, takes one back, or reports how many unexpected messages have been handled:
    /// those that completed as kTmRecv without kTmMatch. Tags that are added while that number is
    /// too small wait; kTmSyncReq in the operation's completion says so.
    /// Returns: EINVAL for a queue without tags, and as TagMatcher::execute().
    /// Threads: any.
    Status post_op(TmOp& op) noexcept;

    // ---- for the core ----

    /// The core's version of post_srq_recv.
    Status enqueue_recvs(std::span<const RecvWr> wrs) noexcept;
    /// The core's version of post_srq_op.
    Status execute_op(TmOp& op) noexcept;
    /// nullptr: this queue matches no tags.
    [[nodiscard]] TagMatcher* tags() noexcept { return tags_.get(); }
    [[nodiscard]] RecvQueue& queue() noexcept { return queue_; }
    /// Raises the event when the receives have become few. Called after a message took one for
    /// good.
    void check_limit() noexcept;

  private:
    Pd& pd_;
    Use use_;
    RecvQueue queue_;
    Use tm_cq_use_;
    const std::unique_ptr<TagMatcher> tags_;
    std::atomic<std::uint32_t> limit_;  // 0: not armed
};

/// Returns: EINVAL for sizes beyond the device's limits, tags without a completion queue for them.
Result<Srq*> create_srq(Pd& pd, const SrqAttr& attr);
/// Returns: EBUSY while a queue pair uses it.
Status destroy_srq(Srq* srq);

}  // namespace rvt::core
