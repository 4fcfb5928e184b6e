// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The completion queue of verbs: the ring of core/cq.h under a lock of its own, with notification
// through a completion channel, and with verbs' view of overflow: the entry that finds no room is
// refused, and the queue is in error from then on, unless take_overrun() ends that. IBTA vol.
// 1, 10.2.6; ibv_poll_cq(3), ibv_req_notify_cq(3).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "core/context.h"
#include "core/cq.h"
#include "core/object.h"
#include "core/verbs_wc.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

class VerbsCq;

/// Where completion queues say that they have something; ibv_create_comp_channel(3).
class CompChannel : public Object {
  public:
    CompChannel(Context& context, int fd) noexcept : context_(context), use_(context), fd_(fd) {}
    ~CompChannel();
    CompChannel(const CompChannel&) = delete;
    CompChannel& operator=(const CompChannel&) = delete;

    /// Waits for the next queue that has been armed and got a completion; moves the device
    /// meanwhile, so that retries and arrivals need no other thread. Returns: the queue, one for
    /// each notification; EAGAIN when `timeout_ms` is over, -1: never.
    Result<VerbsCq*> get_event(int timeout_ms);

    /// Readable while notifications are queued. Belongs to the channel; for poll(2), not for
    /// read(2).
    [[nodiscard]] int fd() const noexcept { return fd_; }

    /// Forgets the notifications that are queued.
    void clear() noexcept;

    void notify(VerbsCq& cq) noexcept;
    void forget(const VerbsCq& cq) noexcept;

    /// Whether one of its queues has got something since this was asked last: who has many of them
    /// need not look at each. Of a verb-grade device it is not known.
    [[nodiscard]] bool take_news() noexcept {
        // relaxed: seen sooner or later. acquire: pairs with the release in note_completion(): who
        // is told finds may_have_entries() of that queue true.
        return has_news_.load(std::memory_order_relaxed) &&
               has_news_.exchange(false, std::memory_order_acquire);
    }
    void note_completion() noexcept {
        // release: pairs with the acquire in take_news().
        has_news_.store(true, std::memory_order_release);
    }

  private:
    VerbsCq* take() noexcept;
    [[nodiscard]] bool is_inherited() const noexcept;
    void show_emptiness_locked() noexcept RVT_REQUIRES(lock_);

    Context& context_;
    Use use_;
    const int fd_;
    const unsigned generation_ = util::fork_generation();  // of the process whose descriptor it is
    std::atomic<bool> has_news_{false};
    util::Mutex lock_;  // order: innermost
    std::deque<VerbsCq*> queue_ RVT_GUARDED_BY(lock_);
};

Result<CompChannel*> create_comp_channel(Context& context);
/// Returns: EBUSY while a completion queue uses the channel.
Status destroy_comp_channel(CompChannel* channel);

class VerbsCq : public Object {
  public:
    /// @param depth  Of the queue; the ring has as much, or is nothing where the backend has the
    ///               completions.
    VerbsCq(Context& context, std::size_t depth, std::unique_ptr<Cq> ring,
            CompChannel* channel) noexcept;

    [[nodiscard]] Context& context() const noexcept { return context_; }
    [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
    [[nodiscard]] CompChannel* channel() const noexcept { return channel_; }

    /// Takes up to `to.size()` completions, oldest first. Returns: how many.
    /// Threads: any.
    unsigned poll(std::span<Wc> to) noexcept { return poll_cq_(*this, to); }

    /// Asks that the next completion (or the next solicited or failed one) is announced at the
    /// channel. One-shot. Returns: EINVAL for a queue without a channel.
    Status req_notify(bool solicited_only) noexcept;

    /// Whether a completion was lost for want of room. Such a queue takes no more; what it holds
    /// can be read.
    [[nodiscard]] bool is_overrun() const noexcept;
    /// The same, and from now on it takes completions again. For who finds out another way what was
    /// lost.
    bool take_overrun() noexcept;

    /// Whether the device has given it up: nothing more completes into it. Threads: any.
    [[nodiscard]] bool has_failed() const noexcept {
        return has_failed_.load(std::memory_order_relaxed);  // relaxed: a flag on its own
    }

    /// False when it is empty. Threads: any; entries of another thread may be seen later.
    /// Of a verb-grade device it is always true.
    [[nodiscard]] bool may_have_entries() const noexcept {
        // relaxed: who is told takes them under the lock.
        return may_have_entries_.load(std::memory_order_relaxed);
    }
    /// As poll(), without moving the device.
    unsigned take(std::span<Wc> to) noexcept {
        return is_backends_ ? poll(to) : take_from_ring(to);
    }

    // ---- for the core and its backends ----

    /// Appends.
    /// Returns: false when there is no room: nothing is written, kCqErr is raised once, and the
    ///          caller takes the pair that completed into the error state.
    bool push(const Wc& wc, bool solicited = false) noexcept;
    /// A verb-grade backend has given it up. kCqErr is raised once, and who sleeps is woken.
    /// Returns: whether it was the first time. Threads: any.
    bool fail() noexcept;
    /// No completion of a pair outlives the pair (ibv_destroy_qp(3)).
    void remove_qp(std::uint32_t qpn) noexcept;
    /// The core's versions of poll_cq and req_notify_cq.
    unsigned poll_ring(std::span<Wc> to) noexcept;
    Status arm_ring(bool solicited_only) noexcept;
    void forget_notifications() noexcept {
        if (channel_ != nullptr) {
            channel_->forget(*this);
        }
    }

  private:
    enum class Armed : std::uint8_t { kNo, kSolicited, kAny };

    unsigned take_from_ring(std::span<Wc> to) noexcept;

    Context& context_;
    const decltype(BackendOps::poll_cq) poll_cq_;  // a copy: some loads less
    Use context_use_;
    CompChannel* channel_;
    Use channel_use_;
    const std::size_t depth_;
    const bool is_backends_;       // the backend has the completions, and `ring_` none
    mutable util::SpinLock lock_;  // order: after Qp's locks, before CompChannel::lock_
    std::unique_ptr<Cq> ring_ RVT_GUARDED_BY(lock_);
    Armed armed_ RVT_GUARDED_BY(lock_) = Armed::kNo;
    bool overrun_ RVT_GUARDED_BY(lock_) = false;
    std::atomic<bool> may_have_entries_;
    std::atomic<bool> has_failed_{false};
};

/// @param depth  Rounded up to a power of two.
/// Returns: EINVAL for 0 or more than the device's max_cqe.
Result<VerbsCq*> create_cq(Context& context, std::uint32_t depth, CompChannel* channel = nullptr);
/// Returns: EBUSY while a queue pair completes into it.
Status destroy_cq(VerbsCq* cq);

}  // namespace rvt::core
