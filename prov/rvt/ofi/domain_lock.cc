// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which lock a threading model needs.
#include "ofi/domain_lock.h"

namespace rvt::ofi {

LockPolicy choose_lock_policy(fi_threading threading) noexcept {
    if (threading == FI_THREAD_DOMAIN) {
        return util::OwnerLock::is_supported() ? LockPolicy::kOwner : LockPolicy::kSpin;
    }
    return LockPolicy::kSpin;
}

}  // namespace rvt::ofi
