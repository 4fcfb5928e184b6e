// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who has a UDP port that somebody else wants: for the words of an error.
#pragma once

#include <string>

#include "util/sock_addr.h"

namespace rvt::util {

/// Returns: as "process 4711 (name)"; empty when it is nobody's, or of a user or namespace that
///          this process may not look into.
/// Cost:    reads what the system knows of all sockets and of all processes.
std::string udp_port_owner(const SockAddr& address);

}  // namespace rvt::util
