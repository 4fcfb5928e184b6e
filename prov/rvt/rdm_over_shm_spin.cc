// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path over shared memory under util::SpinLock.
#include "rdm_over_shm.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOverShmSpin;
constinit const ofi::RdmOps kRdmOverShmSpin = rdm_over_shm_ops<util::SpinLock>();

}  // namespace rvt
