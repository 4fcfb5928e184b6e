// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Poll sets, fi_poll(3): which of many queues and counters have something?
#pragma once

#include <mutex>
#include <vector>

#include "ofi/cntr.h"
#include "ofi/compat.h"
#include "ofi/domain.h"

namespace rvt::ofi {

struct PollSet {
    static PollSet& from(fid_poll* self) noexcept { return *reinterpret_cast<PollSet*>(self); }
    static PollSet& from(fid* self) noexcept { return *reinterpret_cast<PollSet*>(self); }

    struct Member {
        fid* object;
        CntrState seen;  // of a counter: when it was last reported
    };

    fid_poll handle{};
    Domain* domain = nullptr;
    std::mutex lock;  // order: before the domain's
    std::vector<Member> members;
};

/// fi_ops_domain.poll_open.
int poll_open(fid_domain* domain, fi_poll_attr* attr, fid_poll** poll_set) noexcept;

}  // namespace rvt::ofi
