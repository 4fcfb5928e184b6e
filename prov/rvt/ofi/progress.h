// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The endpoints that fill a completion queue or a counter: reading an empty one drives them.
#pragma once

#include <vector>

#include "core/rd_endpoint.h"
#include "util/cpu.h"

namespace rvt::ofi {

/// An endpoint and how to drive it. The caller holds the domain's lock.
struct Progressor {
    unsigned (*run_locked)(core::RdEndpoint*) noexcept;
    core::RdEndpoint* endpoint;

    friend bool operator==(const Progressor&, const Progressor&) noexcept = default;
};

/// One or more of them, fast where it is one. Threads: under the domain's lock.
class Progressors {
  public:
    void add(const Progressor& progressor);
    void remove(const core::RdEndpoint* endpoint) noexcept;

    /// Returns: how much has moved.
    RVT_ALWAYS_INLINE unsigned run_locked() const noexcept {
        unsigned moved = first_.run_locked(first_.endpoint);
        if (!others_.empty()) [[unlikely]] {
            moved += run_others_locked();
        }
        return moved;
    }

    /// Makes the endpoints signal their wake_fd with the next arrival.
    /// Returns: false when one has work already; then none stays armed.
    bool arm_locked() const noexcept;
    void disarm_locked() const noexcept;

    /// Calls `use(endpoint)` for each.
    template <class Use>
    void for_each(Use use) const {
        if (first_.endpoint != nullptr) {
            use(*first_.endpoint);
        }
        for (const Progressor& other : others_) {
            use(*other.endpoint);
        }
    }

  private:
    static unsigned nothing(core::RdEndpoint* /*endpoint*/) noexcept { return 0; }
    unsigned run_others_locked() const noexcept;

    Progressor first_{nothing, nullptr};
    std::vector<Progressor> others_;
};

}  // namespace rvt::ofi
