// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether the owner of flows has something to do behind a poll: one look in place of one at each
// thing that there may be.
#pragma once

#include <atomic>

namespace rvt::core {

/// Threads: any.
class RdChores {
  public:
    /// Behind what makes it so: who has been told finds that.
    void note() noexcept {
        // release: pairs with the acquire in take().
        has_some_.store(true, std::memory_order_release);
    }
    [[nodiscard]] bool has_some() const noexcept {
        // relaxed: what is noted right now is seen at the next call.
        return has_some_.load(std::memory_order_relaxed);
    }
    /// Before they are done: what is noted meanwhile is not lost.
    void take() noexcept {
        // acquire: pairs with the release in note().
        has_some_.exchange(false, std::memory_order_acquire);
    }

  private:
    std::atomic<bool> has_some_{false};
};

}  // namespace rvt::core
