// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The data path under util::SpinLock.
#include "rdm_ops.inl"

namespace rvt {

extern const ofi::RdmOps kRdmOpsSpin;
constinit const ofi::RdmOps kRdmOpsSpin = rdm_ops_for<util::SpinLock>();

}  // namespace rvt
