// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_RDM over shared memory: the place where the libfabric layer, the RD engine and the shm
// backend meet.
#pragma once

namespace rvt {

/// Makes the shm backend serve the endpoints of the host device. Threads: once, at load.
void use_rdm_over_shm() noexcept;

}  // namespace rvt
