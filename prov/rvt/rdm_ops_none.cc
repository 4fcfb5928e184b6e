// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path under util::NullLock.
#include "rdm_ops.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOpsNone;
constinit const ofi::RdmOps kRdmOpsNone = rdm_ops_for<util::NullLock>();

}  // namespace rvt
