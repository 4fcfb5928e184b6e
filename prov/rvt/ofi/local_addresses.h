// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which IP addresses are this host's.
#pragma once

#include "util/sock_addr.h"

namespace rvt::ofi {

/// Whether the address (its port aside) is configured on an interface of this host, is a loopback
/// address, or is the wildcard. Cost: a netlink dialogue; not for the data path.
bool is_local_address(const util::SockAddr& address);

}  // namespace rvt::ofi
