// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The waiting halves of the lock policies: everything that is not on the fast path.
#include "util/lock.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rvt::util {
namespace {

constexpr int kSpinsBeforeYield = 256;

int membarrier(int command) noexcept {
    return static_cast<int>(syscall(SYS_membarrier, command, 0, 0));
}

template <class Busy>
void spin_while(Busy busy) noexcept {
    for (int spins = 0; busy(); ++spins) {
        if (spins < kSpinsBeforeYield) {
            cpu_pause();
        } else {
            sched_yield();
        }
    }
}

}  // namespace

bool OwnerLock::is_supported() noexcept {
    static const bool kSupported = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
    return kSupported;
}

bool OwnerLock::try_lock_control() noexcept {
    // relaxed: the membarrier below orders the claim against the application's plain accesses.
    claimed_.store(1, std::memory_order_relaxed);
    // acquire: pairs with the release in unlock(): what the application wrote inside is visible
    // here.
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0 &&
        inside_.load(std::memory_order_acquire) == 0) {
        return true;
    }
    unlock_control();
    return false;
}

void OwnerLock::wait_for_control() noexcept {
    do {
        // release: pairs with the acquire in try_lock_control(); steps back so that it may enter.
        inside_.store(0, std::memory_order_release);
        // acquire: pairs with the release in unlock_control().
        spin_while([this] { return claimed_.load(std::memory_order_acquire) != 0; });
        // relaxed: as in lock().
        inside_.store(1, std::memory_order_relaxed);
        compiler_barrier();
        // acquire: as in lock(), pairs with unlock_control().
    } while (claimed_.load(std::memory_order_acquire) != 0);
}

void SpinLock::wait() noexcept {
    do {
        // relaxed: only a hint that the exchange below may succeed.
        spin_while([this] { return held_.load(std::memory_order_relaxed) != 0; });
        // acquire: pairs with the release in unlock().
    } while (held_.exchange(1, std::memory_order_acquire) != 0);
}

}  // namespace rvt::util
