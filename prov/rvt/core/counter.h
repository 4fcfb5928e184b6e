// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion counters (fi_cntr(3)): a success and an error count that any thread may read.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/cpu.h"

namespace rvt::core {

/// Threads: changes under the domain's lock, as is arming, or from an application's fi_cntr_add and
///          the like, which call wake() behind them; reads from any thread.
class Counter {
  public:
    RVT_ALWAYS_INLINE void add(std::uint64_t n) noexcept {
        // release: pairs with the acquire in value(): who reads the count sees the data it counts.
        count_.fetch_add(n, std::memory_order_release);
        notify_if_armed();
    }
    void add_error(std::uint64_t n) noexcept {
        // release: pairs with the acquire in errors().
        errors_.fetch_add(n, std::memory_order_release);
        notify_if_armed();
    }
    void set(std::uint64_t n) noexcept {
        // release: pairs with the acquire in value().
        count_.store(n, std::memory_order_release);
        notify_if_armed();
    }
    void set_error(std::uint64_t n) noexcept {
        // release: pairs with the acquire in errors().
        errors_.store(n, std::memory_order_release);
        notify_if_armed();
    }
    // acquire: pairs with the release in add() and set().
    std::uint64_t value() const noexcept { return count_.load(std::memory_order_acquire); }
    // acquire: pairs with the release in add_error() and set_error().
    std::uint64_t errors() const noexcept { return errors_.load(std::memory_order_acquire); }

    /// Asks that the next change makes `wake_fd` (an eventfd of the caller's) readable; -1 asks for
    /// nothing.
    void arm(int wake_fd) noexcept {
        // release: pairs with the exchange in notify().
        armed_fd_.store(wake_fd, std::memory_order_release);
        // seq_cst: pairs with the one in wake(); the arming comes before the caller's re-check of
        // value().
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    /// Makes the descriptor of arm(), if there is one, readable now. Of a change before this and an
    /// arming at the same time one sees the other.
    void wake() noexcept {
        // seq_cst: pairs with the one in arm(). Read-modify-writes order what was changed before
        // what is loaded next on x86 alone.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        notify_if_armed();
    }

  private:
    RVT_ALWAYS_INLINE void notify_if_armed() noexcept {
        // relaxed: ordered by the domain's lock; who does not hold it calls wake() next, and may
        // miss an arming here.
        if (armed_fd_.load(std::memory_order_relaxed) >= 0) [[unlikely]] {
            notify();
        }
    }
    [[gnu::cold]] void notify() noexcept;

    std::atomic<std::uint64_t> count_{0};
    std::atomic<std::uint64_t> errors_{0};
    std::atomic<int> armed_fd_{-1};
};

}  // namespace rvt::core
