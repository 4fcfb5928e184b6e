// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion counters, fi_cntr(3).
#pragma once

#include <atomic>
#include <cstdint>

#include "core/counter.h"
#include "ofi/compat.h"
#include "ofi/domain.h"
#include "ofi/fid.h"
#include "ofi/progress.h"
#include "ofi/wait.h"
#include "util/courtesy.h"

namespace rvt::ofi {

class WaitSet;

/// What tells whether a counter has moved. Where the application sets it back, the same counts are
/// reached again.
struct CntrState {
    std::uint64_t sum = 0;      // of both counts
    std::uint64_t changes = 0;  // those of the application
    friend bool operator==(const CntrState&, const CntrState&) noexcept = default;
};

/// What a sleeper looks at.
struct CntrSight {
    std::uint64_t count = 0;
    std::uint64_t errors = 0;
    unsigned sources_added = 0;
    friend bool operator==(const CntrSight&, const CntrSight&) noexcept = default;
};

struct Cntr {
    static Cntr& from(fid_cntr* self) noexcept { return *reinterpret_cast<Cntr*>(self); }
    static Cntr& from(fid* self) noexcept { return *reinterpret_cast<Cntr*>(self); }

    util::Status add_source(core::ProgressSource& source);
    void remove_source(const core::ProgressSource& source) noexcept;

    /// fi_trywait(3). The application looks at the count after it has waked up, and so do we before
    /// it sleeps.
    int try_wait() noexcept;

    [[nodiscard]] CntrState state() const noexcept;
    [[nodiscard]] CntrSight sight_locked() const noexcept {
        return {counter.value(), counter.errors(), sources_added};
    }
    /// The application has changed a count. Threads: any.
    void note_change() noexcept;

    fid_cntr handle{};
    Domain* domain = nullptr;
    Progressors progressors;
    util::Courtesy courtesy;  // of readers that spin
    core::Counter counter;
    std::atomic<std::uint64_t> changes{0};  // see CntrState
    CntrState seen;                         // by the last fi_trywait
    unsigned sources_added = 0;             // under the domain's lock
    Onlookers<CntrSight> onlookers{};
    Users users;
    WaitSet* wait_set = nullptr;
    util::UniqueFd wake_fd;
    WaitObject wait;
};

/// fi_ops_domain.cntr_open.
int cntr_open(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept;

}  // namespace rvt::ofi
