// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lists the instances of the data path by lock policy.
#include "rdm_ops.h"

#include "ofi/ep_rdm.h"

namespace rvt {

extern const ofi::RdmOps kRdmOpsOwner;
extern const ofi::RdmOps kRdmOpsSpin;

void use_rdm_ops() noexcept {
    // In the order of ofi::LockPolicy.
    ofi::set_rdm_engine({&kRdmOpsOwner, &kRdmOpsSpin});
}

}  // namespace rvt
