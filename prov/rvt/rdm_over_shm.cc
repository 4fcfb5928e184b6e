// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lists the instances of the data path over shared memory by lock policy.
#include "rdm_over_shm.h"

#include "ofi/ep_rdm.h"

namespace rvt {

extern const ofi::RdmOps kRdmOverShmNone;
extern const ofi::RdmOps kRdmOverShmOwner;
extern const ofi::RdmOps kRdmOverShmSpin;

void use_rdm_over_shm() noexcept {
    // In the order of ofi::LockPolicy.
    ofi::set_host_engine({&kRdmOverShmNone, &kRdmOverShmOwner, &kRdmOverShmSpin});
}

}  // namespace rvt
