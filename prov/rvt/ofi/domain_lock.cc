// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which lock a threading model needs.
#include "ofi/domain_lock.h"

namespace rvt::ofi {

LockPolicy choose_lock_policy(fi_threading threading, fi_progress data_progress) noexcept {
    if (threading == FI_THREAD_DOMAIN) {
        return util::OwnerLock::is_supported() ? LockPolicy::kOwner : LockPolicy::kSpin;
    }
    if (threading == FI_THREAD_COMPLETION && data_progress == FI_PROGRESS_MANUAL) {
        return LockPolicy::kNone;
    }
    return LockPolicy::kSpin;
}

}  // namespace rvt::ofi
