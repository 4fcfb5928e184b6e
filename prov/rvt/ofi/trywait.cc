// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Asks each object by its class.
#include "ofi/trywait.h"

#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/eq.h"
#include "ofi/wait_set.h"

namespace rvt::ofi {

int try_wait(fid* object) noexcept {
    switch (object->fclass) {
        case FI_CLASS_CQ: return Cq::from(object).try_wait();
        case FI_CLASS_CNTR: return Cntr::from(object).try_wait();
        case FI_CLASS_EQ: return Eq::from(object).try_wait();
        case FI_CLASS_WAIT: return WaitSet::from(object).try_wait();
        default: return -FI_EINVAL;
    }
}

int fabric_trywait(fid_fabric* /*fabric*/, fid** fids, int count) noexcept {
    for (int i = 0; i < count; ++i) {
        const int refused = try_wait(fids[i]);
        if (refused != 0) {
            return refused;
        }
    }
    return 0;
}

}  // namespace rvt::ofi
