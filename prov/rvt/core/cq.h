// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The completion queue: a ring of one-line entries that its owner fills and drains under one lock.
//
// Sources of completions (endpoints, QPs) push; readers peek and pop. An entry is never lost: when
// the ring is full, entries go to an overflow list that is refilled into the ring in order. A
// source that sees has_overflow() takes no new work until the reader has caught up, so the list
// stays short. Sleeping readers are woken through a descriptor, see wake_fd().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>

#include "core/wc.h"
#include "util/cpu.h"
#include "util/status.h"

namespace rvt::core {

/// Threads: one at a time; the lock of the domain (see util/lock.h) covers it.
class alignas(util::kCacheLine) Cq {
  public:
    /// @param depth  Entries the ring must hold; rounded up to a power of two, at least 1.
    static util::Result<std::unique_ptr<Cq>> create(std::size_t depth);
    ~Cq();
    Cq(const Cq&) = delete;
    Cq& operator=(const Cq&) = delete;

    /// Appends a completion.
    ///
    /// Cost: one cache line written, no system call unless a reader sleeps.
    RVT_ALWAYS_INLINE void push(const Cqe& entry) noexcept {
        emplace([&](Cqe& slot) { slot = entry; });
    }

    /// As push(), for an entry that is made just now: `fill(Cqe&)` writes it where it stays. A copy
    /// moves several fields at once, and the processor cannot do that before all that was stored
    /// until then has reached the cache.
    template <class Fill>
    RVT_ALWAYS_INLINE void emplace(Fill fill) noexcept {
        // One call of fill(), so that it is part of the caller.
        const bool fits = has_room();
        fill(fits ? ring_[tail_ & mask_] : append_overflow());
        tail_ += fits ? 1 : 0;
        wake_if_armed();
    }

    /// The next free slot to be filled in place, then commit()ted; nullptr when push() must be
    /// used.
    RVT_ALWAYS_INLINE Cqe* claim() noexcept { return has_room() ? &ring_[tail_ & mask_] : nullptr; }
    RVT_ALWAYS_INLINE void commit() noexcept {
        ++tail_;
        wake_if_armed();
    }
    /// Whether an entry can be written with emplace_quietly(), which calls nothing.
    RVT_ALWAYS_INLINE bool is_quiet() const noexcept { return tail_ != limit_ && !is_armed_; }
    template <class Fill>
    RVT_ALWAYS_INLINE void emplace_quietly(Fill fill) noexcept {
        fill(ring_[tail_ & mask_]);
        ++tail_;
    }

    /// The oldest entry, or nullptr. It stays valid until pop().
    RVT_ALWAYS_INLINE Cqe* front() noexcept {
        return head_ == tail_ ? nullptr : &ring_[head_ & mask_];
    }
    RVT_ALWAYS_INLINE void pop() noexcept {
        ++head_;
        if (has_overflow_) [[unlikely]] {
            refill();
        }
    }
    /// Takes the oldest entries of the ring, up to `most` of them, for which take(entry) says yes;
    /// the first other one stays, as do those that the ring has had no room for. Returns: how many.
    /// An empty ring is started over, so that few entries at a time take few cache lines for good.
    template <class Take>
    RVT_ALWAYS_INLINE std::size_t pop_while(std::size_t most, Take take) noexcept {
        const std::uint64_t begin = head_;
        const std::uint64_t end = begin + std::min<std::uint64_t>(most, tail_ - begin);
        std::uint64_t at = begin;
        while (at != end && take(ring_[at & mask_])) {
            ++at;
        }
        head_ = at;
        if (has_overflow_) [[unlikely]] {
            refill();
        } else if (at == tail_) {
            head_ = tail_ = 0;
            limit_ = mask_ + 1;
        }
        return at - begin;
    }
    RVT_ALWAYS_INLINE bool is_empty() const noexcept { return head_ == tail_; }
    RVT_ALWAYS_INLINE bool has_overflow() const noexcept { return has_overflow_; }
    std::size_t depth() const noexcept { return mask_ + 1; }

    /// Drops the entries for which `drop(entry)` holds and keeps the order of the others.
    /// destroy_qp uses it: no completion of a QP outlives the QP.
    template <class Drop>
    void remove_if(Drop drop) {
        std::deque<Cqe> kept;
        for (; Cqe* entry = front(); pop()) {
            if (!drop(*entry)) {
                kept.push_back(*entry);
            }
        }
        for (const Cqe& entry : kept) {
            push(entry);
        }
    }

    /// Asks that the next push() makes wake_fd() readable. Arming is one-shot.
    /// Returns: the error of eventfd(2) when the descriptor cannot be made.
    util::Status arm() noexcept;
    void disarm() noexcept { is_armed_ = false; }
    bool is_armed() const noexcept { return is_armed_; }
    /// Makes wake_fd() readable now (fi_cq_signal(3)).
    void wake() noexcept;
    /// An eventfd that becomes readable when an armed queue gets an entry; -1 before the first
    /// need.
    int wake_fd() const noexcept { return wake_fd_; }
    /// Creates wake_fd() if there is none yet. Returns: the error of eventfd(2).
    util::Status open_wake_fd() noexcept;
    /// Takes the readiness away again.
    void clear_wake_fd() noexcept;

  private:
    struct Free {
        void operator()(Cqe* ring) const noexcept { std::free(ring); }
    };
    using Ring = std::unique_ptr<Cqe[], Free>;

    explicit Cq(Ring ring, std::size_t depth) noexcept : ring_(std::move(ring)), mask_(depth - 1) {}

    RVT_ALWAYS_INLINE bool has_room() noexcept { return tail_ != limit_ || find_room(); }
    RVT_ALWAYS_INLINE void wake_if_armed() noexcept {
        if (is_armed_) [[unlikely]] {
            wake();
        }
    }
    [[gnu::cold]] Cqe& append_overflow() noexcept;
    [[gnu::cold]] void refill() noexcept;
    /// Sets limit_ to what it can be now. Returns: whether there is room.
    [[gnu::cold]] bool find_room() noexcept;

    Ring ring_;  // what was never written is not set
    std::uint64_t mask_;
    std::uint64_t head_ = 0;
    std::uint64_t tail_ = 0;
    // Where tail_ must stop, as far as known; readers make room beyond it without saying so.
    std::uint64_t limit_ = 0;
    bool has_overflow_ = false;
    bool is_armed_ = false;
    int wake_fd_ = -1;
    std::deque<Cqe> overflow_;
};

}  // namespace rvt::core
