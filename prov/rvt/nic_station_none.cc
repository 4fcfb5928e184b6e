// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Built without rdma-core: there are no NICs.
#include "nic_station.h"

namespace rvt {

void use_nics() noexcept {}

}  // namespace rvt
