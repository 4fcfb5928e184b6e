// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who counts on being woken by a descriptor, so that nobody who is awake ends what wakes the
// others.
#pragma once

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace rvt::util {

/// Some sleep in a call, and say when they wake up. Others only say that they are about to sleep
/// (fi_trywait(3)): they may until their thread is seen awake.
/// Threads: changes under the lock of what they sleep on, questions from any thread. Who asks
/// without the lock, to end what wakes people, first reads, with acquire, what he would end: they
/// are counted before they begin it, with release.
class Sleepers {
  public:
    void begin() noexcept { set_count(count() + 1); }
    void end() noexcept { set_count(count() - 1); }

    /// The calling thread is about to sleep, and will not say when it wakes up.
    void announce() noexcept { set_waiter(may_others_wait() ? kSeveral : pthread_self()); }
    /// The calling thread is awake.
    void forget_caller() noexcept {
        if (waiter() == pthread_self()) {
            set_waiter(kNobody);
        }
    }

    /// Whether anybody sleeps in a call.
    bool are_counted() const noexcept { return count() != 0; }
    /// Whether another thread than the caller's may sleep that does not say when it wakes up.
    bool may_others_wait() const noexcept {
        const pthread_t known = waiter();
        return known != kNobody && known != pthread_self();
    }
    bool may_others_sleep() const noexcept { return are_counted() || may_others_wait(); }
    bool may_any_sleep() const noexcept { return are_counted() || waiter() != kNobody; }

  private:
    static constexpr pthread_t kNobody = 0;
    static constexpr pthread_t kSeveral = 1;  // on Linux that of a thread is an address

    // relaxed: what people sleep on orders it, see above.
    unsigned count() const noexcept { return count_.load(std::memory_order_relaxed); }
    void set_count(unsigned count) noexcept { count_.store(count, std::memory_order_relaxed); }
    // relaxed: the same.
    pthread_t waiter() const noexcept { return waiter_.load(std::memory_order_relaxed); }
    void set_waiter(pthread_t who) noexcept { waiter_.store(who, std::memory_order_relaxed); }

    std::atomic<unsigned> count_{0};
    std::atomic<pthread_t> waiter_{kNobody};
};

}  // namespace rvt::util
