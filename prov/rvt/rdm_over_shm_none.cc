// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path over shared memory under util::NullLock.
#include "rdm_over_shm.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOverShmNone;
constinit const ofi::RdmOps kRdmOverShmNone = rdm_over_shm_ops<util::NullLock>();

}  // namespace rvt
