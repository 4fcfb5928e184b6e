// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path under util::OwnerLock.
#include "rdm_ops.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOpsOwner;
constinit const ofi::RdmOps kRdmOpsOwner = rdm_ops_for<util::OwnerLock>();

}  // namespace rvt
