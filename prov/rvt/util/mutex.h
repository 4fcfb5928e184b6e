// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A mutex that clang's thread-safety analysis knows, for the slow paths: std::mutex has no
// annotations in libstdc++. Hold it with Guard of util/lock.h.
#pragma once

#include <mutex>

#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::util {

class RVT_CAPABILITY("mutex") Mutex {
  public:
    void lock() noexcept RVT_ACQUIRE() { mutex_.lock(); }
    void unlock() noexcept RVT_RELEASE() { mutex_.unlock(); }
    bool try_lock() noexcept RVT_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

  private:
    std::mutex mutex_;
};

}  // namespace rvt::util
