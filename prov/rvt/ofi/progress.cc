// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The list behind the first source, and arming before sleep.
#include "ofi/progress.h"

#include <algorithm>
#include <utility>

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
        first_ = {source.progress, &source, 1, false};
    } else {
        others_.push_back({source.progress, &source, 1, false});
    }
}

bool Progressors::remove(const core::ProgressSource& source) noexcept {
    Progressor* const known = find(source);
    if (known == nullptr || --known->uses != 0) {
        return false;
    }
    end_sleep_locked(*known);
    if (known == &first_) {
        first_ = {nothing, nullptr, 0, false};
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

bool Progressors::fall_asleep_locked() noexcept {
    sleepers_.begin();
    for_each([](Progressor& progressor) {
        if (!std::exchange(progressor.is_slept_on, true)) {
            progressor.source->sleepers.begin();
        }
    });
    if (arm_all_locked()) {
        return true;
    }
    wake_up_locked();
    return false;
}

/// The last one to wake up disarms; the others are asleep on the same descriptors.
void Progressors::wake_up_locked() noexcept {
    sleepers_.end();
    if (!sleepers_.are_counted()) {
        for_each(end_sleep_locked);
    }
}

bool Progressors::arm_for_waiter_locked() noexcept {
    sleepers_.announce();
    for_each([](Progressor& progressor) { progressor.source->sleepers.announce(); });
    if (arm_all_locked()) {
        return true;
    }
    sleepers_.take_back();
    for_each([](Progressor& progressor) {
        progressor.source->sleepers.take_back();
        progressor.source->disarm_locked();
    });
    return false;
}

template <class Visit>
void Progressors::for_each(Visit visit) noexcept {
    if (first_.source != nullptr) {
        visit(first_);
    }
    std::ranges::for_each(others_, visit);
}

bool Progressors::arm_all_locked() noexcept {
    bool are_armed = true;
    for_each([&](Progressor& progressor) {
        are_armed = are_armed && progressor.source->arm_locked().is_ok();
    });
    return are_armed;
}

void Progressors::end_sleep_locked(Progressor& progressor) noexcept {
    if (std::exchange(progressor.is_slept_on, false)) {
        progressor.source->sleepers.end();
        progressor.source->disarm_locked();
    }
}

}  // namespace rvt::ofi
