// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion queues, fi_cq(3): core::Cq seen through libfabric's formats, with the wait object the
// application chose.
#pragma once

#include <atomic>
#include <memory>

#include "core/cq.h"
#include "ofi/compat.h"
#include "ofi/domain.h"
#include "ofi/fid.h"
#include "ofi/progress.h"
#include "ofi/wait.h"
#include "util/courtesy.h"

namespace rvt::ofi {

class WaitSet;

struct Cq {
    static Cq& from(fid_cq* self) noexcept { return *reinterpret_cast<Cq*>(self); }
    static Cq& from(fid* self) noexcept { return *reinterpret_cast<Cq*>(self); }

    /// Something that completes into this queue, once for each endpoint. Returns: why its
    /// descriptor cannot be waited for.
    util::Status add_source(core::ProgressSource& source);
    void remove_source(const core::ProgressSource& source) noexcept;

    /// fi_trywait(3).
    int try_wait() noexcept;

    fid_cq handle{};
    core::Cq* queue = nullptr;
    Domain* domain = nullptr;
    Progressors progressors;
    util::Courtesy courtesy;  // of readers that spin
    std::unique_ptr<core::Cq> owned_queue;
    fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
    bool has_threshold = false;  // FI_CQ_COND_THRESHOLD: sread's condition counts entries
    std::atomic<bool> is_signalled{false};
    unsigned sources_added = 0;       // under the domain's lock
    Onlookers<unsigned> onlookers{};  // who has looked at all of them
    Users users;
    WaitSet* wait_set = nullptr;
    WaitObject wait;
};

/// fi_ops_domain.cq_open.
int cq_open(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept;

}  // namespace rvt::ofi
