// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Membership of a datagram endpoint in a group of IP multicast, fi_cm(3).
#pragma once

#include <cstdint>

#include "ofi/compat.h"

namespace rvt::ofi {

struct EpDgram;
class Eq;

struct Mc {
    static Mc& from(fid* self) noexcept { return *reinterpret_cast<Mc*>(self); }

    fid_mc handle{};
    EpDgram* ep = nullptr;
    Eq* eq = nullptr;          // its endpoint's, or its domain's; both keep theirs for as long
    std::uint64_t number = 0;  // what the endpoint knows the group by
};

/// fi_ops_cm.join. The join is done when the call returns; the event follows for those who wait for
/// it. Returns: 0, -FI_ENOEQ, -FI_EOPBADSTATE before the endpoint is enabled, -FI_EOPNOTSUPP
/// without FI_MULTICAST, -FI_EINVAL for what is no group's address or a side that the endpoint does
/// not have, -FI_EBADFLAGS, and what the system says of the group.
int mc_join(fid_ep* self, const void* address, std::uint64_t flags, fid_mc** mc,
            void* context) noexcept;

}  // namespace rvt::ofi
