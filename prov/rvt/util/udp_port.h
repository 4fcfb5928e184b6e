// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint's address is owned by binding its UDP port, over shared memory too.
#pragma once

#include "util/fork_guard.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::util {

/// A bound UDP socket, and the address that it really has.
struct UdpPort {
    ProcessFd socket;
    SockAddr address;
};

enum class PortUse : std::uint8_t {
    kAlone,
    kFixed,   // alone, and no other port would do
    kShared,  // with others that say so: for a group, whose datagrams all of them get
};

/// Binds `address`; port 0 lets the system choose a port.
///
/// Returns:   EADDRINUSE, EADDRNOTAVAIL (no such IP address here), EACCES (privileged port),
/// EMFILE, EAFNOSUPPORT. Threads:   any. Source:    bind(2), udp(7).
Result<UdpPort> bind_udp_port(const SockAddr& address, PortUse use = PortUse::kAlone);

/// The same port once more. Returns: EMFILE.
Result<UdpPort> share(const UdpPort& port);

}  // namespace rvt::util
