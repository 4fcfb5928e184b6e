// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who answers at an address through shared memory, before anything is opened for it.
#pragma once

#include "util/sock_addr.h"

namespace rvt::shm {

/// Whether an endpoint or device of this user answers there now: in this network namespace, whose
/// sockets name it. It sees a caller that hangs up. Threads: any. Cost: three system calls.
bool is_served(const util::SockAddr& address);

}  // namespace rvt::shm
