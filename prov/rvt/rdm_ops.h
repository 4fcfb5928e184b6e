// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_RDM: the place where the libfabric layer, the RD engine and the backends meet.
#pragma once

namespace rvt {

/// Makes shared memory and the wire serve RDM endpoints. Threads: once, at load.
void use_rdm_ops() noexcept;

}  // namespace rvt
