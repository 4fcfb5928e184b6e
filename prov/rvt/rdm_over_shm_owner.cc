// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path over shared memory under util::OwnerLock.
#include "rdm_over_shm.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOverShmOwner;
constinit const ofi::RdmOps kRdmOverShmOwner = rdm_over_shm_ops<util::OwnerLock>();

}  // namespace rvt
