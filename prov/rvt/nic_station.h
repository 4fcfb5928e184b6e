// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NICs of this host, for the domains and ports of MSG endpoints and the flows of RDM endpoints.
#pragma once

#include <memory>

#include "core/device.h"
#include "util/sock_addr.h"

namespace rvt {

/// Tells ofi/ where NICs are. Threads: once, at load.
void use_nics() noexcept;

/// The NIC that carries flows of RDM endpoints at this address; nullptr: there is none. One that
/// the kernel emulates does where the setting FI_RVT_VERBS_EMULATED says so.
std::shared_ptr<core::Device> open_flow_nic(const util::SockAddr& address);

}  // namespace rvt
