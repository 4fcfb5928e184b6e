// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The list behind the first endpoint, and arming before sleep.
#include "ofi/progress.h"

#include <algorithm>

namespace rvt::ofi {

void Progressors::add(const Progressor& progressor) {
    if (first_ == progressor || std::ranges::find(others_, progressor) != others_.end()) {
        return;
    }
    if (first_.endpoint == nullptr) {
        first_ = progressor;
    } else {
        others_.push_back(progressor);
    }
}

void Progressors::remove(const core::RdEndpoint* endpoint) noexcept {
    std::erase_if(others_,
                  [endpoint](const Progressor& other) { return other.endpoint == endpoint; });
    if (first_.endpoint != endpoint) {
        return;
    }
    first_ = {nothing, nullptr};
    if (!others_.empty()) {
        first_ = others_.back();
        others_.pop_back();
    }
}

unsigned Progressors::run_others_locked() const noexcept {
    unsigned moved = 0;
    for (const Progressor& other : others_) {
        moved += other.run_locked(other.endpoint);
    }
    return moved;
}

bool Progressors::arm_locked() const noexcept {
    bool is_armed = true;
    for_each([&is_armed](core::RdEndpoint& endpoint) {
        is_armed = is_armed && endpoint.arm_locked().is_ok();
    });
    if (!is_armed) {
        disarm_locked();
    }
    return is_armed;
}

void Progressors::disarm_locked() const noexcept {
    for_each([](core::RdEndpoint& endpoint) { endpoint.disarm_locked(); });
}

}  // namespace rvt::ofi
