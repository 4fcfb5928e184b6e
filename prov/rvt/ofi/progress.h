// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What fills a completion queue or a counter: reading an empty one drives it.
#pragma once

#include <vector>

#include "core/progress_source.h"
#include "util/cpu.h"
#include "util/sleepers.h"

namespace rvt::ofi {

/// One or more sources, fast where it is one. Threads: under the domain's lock.
class Progressors {
  public:
    /// A source may be added for several endpoints, and is removed as often.
    void add(core::ProgressSource& source);
    /// Returns: whether nobody needs it any more.
    bool remove(const core::ProgressSource& source) noexcept;

    /// Returns: how much has moved.
    RVT_ALWAYS_INLINE unsigned run_locked() const noexcept {
        unsigned moved = first_.run_locked(first_.source);
        if (!others_.empty()) [[unlikely]] {
            moved += run_others_locked();
        }
        return moved;
    }

    /// After many that moved nothing.
    [[gnu::cold]] void remind_peers_locked() const noexcept;
    /// Makes the sources signal their wake_fd with the next arrival, for who sleeps in a call until
    /// wake_up_locked(). Returns: false when one has work already; then the caller does not sleep.
    bool fall_asleep_locked() noexcept;
    void wake_up_locked() noexcept;
    /// The same for who does not say when it wakes up (fi_trywait(3)).
    bool arm_for_waiter_locked() noexcept;
    /// Who sleeps on what these sources fill, or may.
    const util::Sleepers& sleepers() const noexcept { return sleepers_; }

  private:
    struct Progressor {
        core::ProgressSource::Progress run_locked;  // a copy: one load less
        core::ProgressSource* source;
        unsigned uses;
        bool is_slept_on;  // counted among the source's sleepers
    };

    static unsigned nothing(core::ProgressSource* /*source*/) noexcept { return 0; }
    unsigned run_others_locked() const noexcept;
    Progressor* find(const core::ProgressSource& source) noexcept;
    template <class Visit>
    void for_each(Visit visit) noexcept;
    bool arm_all_locked() noexcept;
    static void end_sleep_locked(Progressor& progressor) noexcept;

    Progressor first_{nothing, nullptr, 0, false};
    std::vector<Progressor> others_;
    util::Sleepers sleepers_;
};

}  // namespace rvt::ofi
