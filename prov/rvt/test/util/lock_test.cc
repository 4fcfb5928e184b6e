// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lock policies: who keeps whom out.
#include "util/lock.h"

#include "common/check.h"

using namespace rvt::util;

Test(lock, an_owner_does_not_enter_while_the_control_thread_is_inside) {
    RVT_ASSERT(OwnerLock::is_supported());
    OwnerLock lock;
    RVT_ASSERT(lock.try_lock_control());
    RVT_ASSERT(!lock.try_lock());
    lock.unlock_control();
    RVT_ASSERT(lock.try_lock());
    RVT_ASSERT(!lock.try_lock_control());
    lock.unlock();
    RVT_ASSERT(lock.try_lock_control());
    lock.unlock_control();
}

Test(lock, a_spin_lock_that_is_held_is_not_taken_again) {
    SpinLock lock;
    RVT_ASSERT(lock.try_lock());
    RVT_ASSERT(!lock.try_lock() && !lock.try_lock_control());
    lock.unlock();
    RVT_ASSERT(lock.try_lock_control());
    lock.unlock_control();
}
