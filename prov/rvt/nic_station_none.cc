// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Built without rdma-core: there are no NICs.
#include "nic_station.h"

namespace rvt {

void use_nics() noexcept {}

std::shared_ptr<core::Device> open_flow_nic(const util::SockAddr&) {
    return nullptr;
}

}  // namespace rvt
