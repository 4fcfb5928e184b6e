// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The list behind the first source, and arming before sleep.
#include "ofi/progress.h"

#include <algorithm>

namespace rvt::ofi {

Progressors::Progressor* Progressors::find(const core::ProgressSource& source) noexcept {
    if (first_.source == &source) {
        return &first_;
    }
    const auto found = std::ranges::find(others_, &source, &Progressor::source);
    return found == others_.end() ? nullptr : &*found;
}

void Progressors::add(core::ProgressSource& source) {
    if (Progressor* const known = find(source)) {
        ++known->uses;
    } else if (first_.source == nullptr) {
        first_ = {source.progress, &source, 1};
    } else {
        others_.push_back({source.progress, &source, 1});
    }
}

bool Progressors::remove(const core::ProgressSource& source) noexcept {
    Progressor* const known = find(source);
    if (known == nullptr || --known->uses != 0) {
        return false;
    }
    if (known == &first_) {
        first_ = {nothing, nullptr, 0};
    }
    if (!others_.empty()) {
        *known = others_.back();
        others_.pop_back();
    }
    return true;
}

unsigned Progressors::run_others_locked() const noexcept {
    unsigned moved = 0;
    for (const Progressor& other : others_) {
        moved += other.run_locked(other.source);
    }
    return moved;
}

void Progressors::remind_peers_locked() const noexcept {
    if (first_.source != nullptr) {
        first_.source->remind_peers_locked();
    }
    for (const Progressor& other : others_) {
        other.source->remind_peers_locked();
    }
}

bool Progressors::arm_locked() const noexcept {
    if (first_.source == nullptr) {
        return true;
    }
    if (!first_.source->arm_locked().is_ok()) {
        return false;
    }
    for (auto other = others_.begin(); other != others_.end(); ++other) {
        if (!other->source->arm_locked().is_ok()) {
            first_.source->disarm_locked();
            std::for_each(others_.begin(), other,
                          [](const Progressor& armed) { armed.source->disarm_locked(); });
            return false;
        }
    }
    return true;
}

void Progressors::disarm_locked() const noexcept {
    if (first_.source == nullptr) {
        return;
    }
    first_.source->disarm_locked();
    for (const Progressor& other : others_) {
        other.source->disarm_locked();
    }
}

}  // namespace rvt::ofi
