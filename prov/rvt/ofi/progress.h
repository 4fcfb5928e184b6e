// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What fills a completion queue or a counter: reading an empty one drives it.
#pragma once

#include <vector>

#include "core/progress_source.h"
#include "util/cpu.h"

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
    /// Makes the sources signal their wake_fd with the next arrival.
    /// Returns: false when one has work already; then none stays armed.
    bool arm_locked() const noexcept;
    void disarm_locked() const noexcept;

  private:
    struct Progressor {
        core::ProgressSource::Progress run_locked;  // a copy: one load less
        core::ProgressSource* source;
        unsigned uses;
    };

    static unsigned nothing(core::ProgressSource* /*source*/) noexcept { return 0; }
    unsigned run_others_locked() const noexcept;
    Progressor* find(const core::ProgressSource& source) noexcept;

    Progressor first_{nothing, nullptr, 0};
    std::vector<Progressor> others_;
};

}  // namespace rvt::ofi
