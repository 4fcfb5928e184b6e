// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fabric object, fi_fabric(3): parent of domains, event queues and wait sets.
#pragma once

#include "ofi/compat.h"
#include "ofi/fid.h"

namespace rvt::ofi {

struct Fabric {
    static Fabric& from(fid_fabric* self) noexcept { return *reinterpret_cast<Fabric*>(self); }
    static Fabric& from(fid* self) noexcept { return *reinterpret_cast<Fabric*>(self); }

    fid_fabric handle{};
    Users users;
};

/// fi_provider.fabric. Returns: 0, -FI_ENODATA for another's fabric, -FI_ENOMEM.
int fabric_open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept;

}  // namespace rvt::ofi
