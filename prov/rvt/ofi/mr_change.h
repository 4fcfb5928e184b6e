// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What becomes of a region between its registration and its end: pages that have changed. fi_mr(3).
#pragma once

#include <cstdint>

#include "ofi/compat.h"
#include "ofi/mr.h"

namespace rvt::ofi {

/// fi_mr_refresh(3). Returns: -FI_EBADFLAGS; -FI_EINVAL for parts that are not within the region;
/// -FI_EOPNOTSUPP for memory of a device; -FI_ENOENT once fi_close() has begun; errors of a NIC.
int mr_refresh(Mr& mr, const fi_mr_modify& of) noexcept;

}  // namespace rvt::ofi
