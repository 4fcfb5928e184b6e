// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The tags of a tag-matching shared receive queue: buffers posted for tags, and the agreement with
// the application about messages that arrived before their tag (ibv_create_srq_ex(3), type TM;
// ibv_post_srq_ops(3)).
//
// A message that no tag takes goes to the application through a plain receive, and the application
// matches it itself. Meanwhile a tag that it posts could overtake such a message. Therefore each
// side counts those messages, and while the numbers differ new tags wait.
#pragma once

#include <cstdint>
#include <vector>

#include "core/match_posted_queue.h"
#include "core/recv_queue.h"
#include "core/verbs_cq.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

/// Threads: any.
class TagMatcher {
  public:
    TagMatcher(VerbsCq& cq, std::uint32_t max_tags, std::uint32_t max_sge);

    /// Where everything about tags completes.
    [[nodiscard]] VerbsCq& cq() const noexcept { return cq_; }
    [[nodiscard]] std::uint32_t max_tags() const noexcept {
        return static_cast<std::uint32_t>(tags_.size());
    }

    /// Carries out an operation, and completes it if it is signalled or failed.
    /// Returns: ENOMEM when all tags are posted; EINVAL for too many elements, a handle that was
    /// never given, or more messages handled than have come.
    Status execute(TmOp& op) noexcept;

    /// Takes the oldest buffer whose tag fits into `to`. Returns: whether there was one; if not,
    /// the caller delivers the message elsewhere and counts it.
    bool match(std::uint64_t tag, Receive& to) noexcept;
    void count_unexpected() noexcept;
    /// Takes a count back: the message has failed, nobody will handle it.
    void discount_unexpected() noexcept;

  private:
    struct Tag {
        enum class State : std::uint8_t { kFree, kWaiting, kPosted };
        std::uint32_t match_slot = 0;  // of the queue
        State state = State::kFree;
        std::uint16_t generation = 0;
        std::uint64_t wr_id = 0;
        std::uint64_t tag = 0;
        std::uint64_t ignore = 0;
        std::uint32_t sge_count = 0;

        std::uint64_t match_tag() const noexcept { return tag; }
        std::uint32_t match_source() const noexcept { return kAnySourceId; }
    };
    static constexpr unsigned kIndexBits = 16;

    Status check(const TmOp& op) const noexcept RVT_REQUIRES(lock_);
    Status add(TmOp& op) noexcept RVT_REQUIRES(lock_);
    WcStatus remove(std::uint32_t handle) noexcept RVT_REQUIRES(lock_);
    void release(Tag& tag) noexcept RVT_REQUIRES(lock_);
    void post_waiting() noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] bool is_in_step() const noexcept RVT_REQUIRES(lock_) {
        return handled_ == unexpected_;
    }
    [[nodiscard]] std::uint32_t index_of(const Tag& tag) const noexcept {
        return static_cast<std::uint32_t>(&tag - tags_.data());
    }

    VerbsCq& cq_;
    const std::uint32_t max_sge_;
    util::SpinLock lock_;  // order: after Qp::rx_lock_, before VerbsCq::lock_
    std::vector<Tag> tags_;
    std::vector<Sge> sges_ RVT_GUARDED_BY(lock_);  // max_sge_ for each tag
    std::vector<std::uint32_t> free_ RVT_GUARDED_BY(lock_);
    std::vector<std::uint32_t> waiting_ RVT_GUARDED_BY(lock_);  // the oldest first
    PostedQueue<Tag> posted_ RVT_GUARDED_BY(lock_);
    std::uint32_t unexpected_ RVT_GUARDED_BY(lock_) = 0;  // messages that no tag took
    std::uint32_t handled_ RVT_GUARDED_BY(lock_) = 0;     // of them, as the application says
};

}  // namespace rvt::core
