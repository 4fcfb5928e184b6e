// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What becomes of a region between its registration and its end: other buffers or access, advice,
// pages that have changed. fi_mr(3), rdma/fi_ext_rvt.h.
#pragma once

#include <cstdint>

#include "ofi/compat.h"
#include "ofi/mr.h"

namespace rvt::ofi {

/// fi_mr_refresh(3). Returns: -FI_EBADFLAGS; -FI_EINVAL for parts that are not within the region;
/// -FI_EOPNOTSUPP for memory of a device; -FI_ENOENT once fi_close() has begun; errors of a NIC.
int mr_refresh(Mr& mr, const fi_mr_modify& of) noexcept;

/// fi_open_ops(3) of a region: FI_RVT_MR_OPS.
int mr_ops_open(fid* self, const char* name, std::uint64_t flags, void** ops,
                void* context) noexcept;

}  // namespace rvt::ofi
