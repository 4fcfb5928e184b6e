// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who counts on being woken by a descriptor, so that nobody who is awake ends what wakes the
// others.
#pragma once

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace rvt::util {

/// Some sleep in a call, and say when they wake up. Others only say that somebody, often they, is
/// about to sleep (fi_trywait(3)): these are woken when nothing else would wake them any more, and
/// ask again. Threads: changes under the lock of what they sleep on, questions from any thread. Who
/// asks without the lock, to end what wakes people, first reads, with acquire, what he would end:
/// they are counted before they begin it, with release.
class Sleepers {
  public:
    void begin() noexcept { set_count(count() + 1); }
    void end() noexcept { set_count(count() - 1); }

    /// By the calling thread: somebody is about to sleep, and will not say when he wakes up.
    void announce() noexcept {
        const pthread_t known = waiter();
        set_waiter(known == kNobody || known == pthread_self() ? pthread_self() : kSeveral);
        set_told(false);
    }
    /// He does not sleep after all.
    void take_back() noexcept {
        if (waiter() == pthread_self()) {
            set_waiter(kNobody);
        }
    }
    /// Whether there may be such sleepers, whom the caller wakes now, unless it has already.
    bool tell() noexcept {
        const bool is_due = waiter() != kNobody && !is_told();
        if (is_due) {
            set_told(true);
        }
        return is_due;
    }
    /// What was to wake them has been taken off the descriptor, perhaps before they saw it.
    void untell() noexcept { set_told(false); }

    /// Whether anybody sleeps in a call.
    bool are_counted() const noexcept { return count() != 0; }
    /// Whether somebody may sleep whom another thread than the caller's has announced.
    bool may_others_wait() const noexcept { return may_any_wait() && waiter() != pthread_self(); }
    bool may_others_sleep() const noexcept { return are_counted() || may_others_wait(); }
    bool may_any_sleep() const noexcept { return are_counted() || may_any_wait(); }

  private:
    static constexpr pthread_t kNobody = 0;
    static constexpr pthread_t kSeveral = 1;  // on Linux that of a thread is an address

    bool may_any_wait() const noexcept { return waiter() != kNobody && !is_told(); }
    // relaxed: what people sleep on orders it, see above.
    unsigned count() const noexcept { return count_.load(std::memory_order_relaxed); }
    void set_count(unsigned count) noexcept { count_.store(count, std::memory_order_relaxed); }
    // relaxed: the same.
    pthread_t waiter() const noexcept { return waiter_.load(std::memory_order_relaxed); }
    void set_waiter(pthread_t who) noexcept { waiter_.store(who, std::memory_order_relaxed); }

    // relaxed: the same.
    bool is_told() const noexcept { return is_told_.load(std::memory_order_relaxed); }
    void set_told(bool is_told) noexcept { is_told_.store(is_told, std::memory_order_relaxed); }

    std::atomic<unsigned> count_{0};
    std::atomic<pthread_t> waiter_{kNobody};
    std::atomic<bool> is_told_{false};
};

}  // namespace rvt::util
