// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lock policies of the data path. The threading level that an application asks for selects one when
// a domain opens (fi_domain(3), "Threading"); hot templates are instantiated for each.
//
// Two roles meet at such a lock: application threads, and the control thread that steps in when the
// application does not call. The policies differ in who pays.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/annotations.h"
#include "util/cpu.h"

namespace rvt::util {

/// One application thread at a time by contract, plus the control thread.
///
/// The application side costs two plain stores and a load. The control thread pays for both with
/// membarrier(2): after its own claim it makes every running thread of the process execute a fence,
/// and then looks whether the application is inside.
class RVT_CAPABILITY("mutex") OwnerLock {
  public:
    RVT_ALWAYS_INLINE void lock() noexcept RVT_ACQUIRE() {
        // relaxed: ordered against the load below by the control thread's membarrier.
        inside_.store(1, std::memory_order_relaxed);
        compiler_barrier();
        // acquire: pairs with the release in unlock_control(): who sees 0 sees the control thread's
        // work.
        if (claimed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
            wait_for_control();
        }
    }
    /// The same without a wait: false while the control thread is inside.
    RVT_ALWAYS_INLINE bool try_lock() noexcept RVT_TRY_ACQUIRE(true) {
        // relaxed: as in lock().
        inside_.store(1, std::memory_order_relaxed);
        compiler_barrier();
        // acquire: pairs with the release in unlock_control(), as in lock().
        if (claimed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
            unlock();
            return false;
        }
        return true;
    }
    RVT_ALWAYS_INLINE void unlock() noexcept RVT_RELEASE() {
        // release: pairs with the acquire in try_lock_control().
        inside_.store(0, std::memory_order_release);
    }

    /// Claims the lock for the control thread; false when the application is inside.
    bool try_lock_control() noexcept;
    void unlock_control() noexcept {
        // release: pairs with the acquire in lock() and in wait_for_control().
        claimed_.store(0, std::memory_order_release);
    }

    /// Registers the process for membarrier(2). False: the kernel refuses, use SpinLock instead.
    static bool is_supported() noexcept;

  private:
    void wait_for_control() noexcept;

    alignas(kCacheLine) std::atomic<std::uint32_t> inside_{0};  // written by the application only
    alignas(kCacheLine) std::atomic<std::uint32_t> claimed_{
        0};  // written by the control thread only
};

/// Any number of threads. A test-and-test-and-set lock that yields when it waits for long.
class RVT_CAPABILITY("mutex") SpinLock {
  public:
    RVT_ALWAYS_INLINE void lock() noexcept RVT_ACQUIRE() {
        // acquire: pairs with the release in unlock().
        if (held_.exchange(1, std::memory_order_acquire) != 0) [[unlikely]] {
            wait();
        }
    }
    RVT_ALWAYS_INLINE void unlock() noexcept RVT_RELEASE() {
        // release: pairs with the acquire in lock().
        held_.store(0, std::memory_order_release);
    }
    RVT_ALWAYS_INLINE bool try_lock() noexcept RVT_TRY_ACQUIRE(true) {
        // acquire: pairs with the release in unlock().
        return held_.exchange(1, std::memory_order_acquire) == 0;
    }
    bool try_lock_control() noexcept RVT_TRY_ACQUIRE(true) { return try_lock(); }
    void unlock_control() noexcept RVT_RELEASE() { unlock(); }

  private:
    void wait() noexcept;

    alignas(kCacheLine) std::atomic<std::uint32_t> held_{0};
};

/// Holds a lock policy for a scope.
template <class Lock>
class RVT_SCOPED_CAPABILITY Guard {
  public:
    RVT_ALWAYS_INLINE explicit Guard(Lock& lock) noexcept RVT_ACQUIRE(lock) : lock_(lock) {
        lock_.lock();
    }
    RVT_ALWAYS_INLINE ~Guard() RVT_RELEASE() { lock_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    Lock& lock_;
};

}  // namespace rvt::util
