// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one lock of a domain, of the policy that its threading and progress models allow.
#pragma once

#include <concepts>

#include "ofi/compat.h"
#include "util/lock.h"

namespace rvt::ofi {

enum class LockPolicy : std::uint8_t { kOwner, kSpin };
inline constexpr std::size_t kLockPolicies = 2;

/// fi_domain(3), "threading". Only FI_THREAD_DOMAIN keeps threads apart in all that a domain's
/// objects share: at other levels address vectors and regions change beside the calls on an
/// endpoint that they concern.
LockPolicy choose_lock_policy(fi_threading threading) noexcept;

class DomainLock {
  public:
    explicit DomainLock(LockPolicy policy) noexcept : policy_(policy) {}
    ~DomainLock() = default;
    DomainLock(const DomainLock&) = delete;
    DomainLock& operator=(const DomainLock&) = delete;

    [[nodiscard]] LockPolicy policy() const noexcept { return policy_; }

    /// The lock itself, for code that was instantiated for its policy.
    template <class Lock>
    [[nodiscard]] Lock& as() noexcept {
        if constexpr (std::same_as<Lock, util::OwnerLock>) {
            return owner_;
        } else {
            return spin_;
        }
    }

    // For control paths, which do not care to be instantiated twice.
    void lock() noexcept RVT_NO_ANALYSIS {
        switch (policy_) {
            case LockPolicy::kOwner: owner_.lock(); break;
            case LockPolicy::kSpin: spin_.lock(); break;
        }
    }
    void unlock() noexcept RVT_NO_ANALYSIS {
        switch (policy_) {
            case LockPolicy::kOwner: owner_.unlock(); break;
            case LockPolicy::kSpin: spin_.unlock(); break;
        }
    }

    /// For the control thread. Returns: false where an application thread is inside, or the control
    /// thread may not enter.
    bool try_lock_control() noexcept RVT_NO_ANALYSIS {
        switch (policy_) {
            case LockPolicy::kOwner: return owner_.try_lock_control();
            case LockPolicy::kSpin: return spin_.try_lock_control();
        }
        return false;
    }
    void unlock_control() noexcept RVT_NO_ANALYSIS {
        switch (policy_) {
            case LockPolicy::kOwner: owner_.unlock_control(); break;
            case LockPolicy::kSpin: spin_.unlock_control(); break;
        }
    }

  private:
    const LockPolicy policy_;
    util::OwnerLock owner_;
    util::SpinLock spin_;
};

}  // namespace rvt::ofi
