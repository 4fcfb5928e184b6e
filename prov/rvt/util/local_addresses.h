// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which addresses this host has, and which of them others most likely reach it at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::util {

/// Whether packets to this address stay on this host, in this network namespace. The wildcard
/// counts too. Returns: EMFILE, ENFILE, ENOMEM where the system cannot be asked; it is not for
/// loopback addresses.
Result<bool> is_local_address(const SockAddr& address);

/// The addresses of this host's interfaces, asked for anew when the answer is a second old, and for
/// one that was not among them when it is 10 ms old: it may have come since. While the system
/// cannot be asked the last answer holds.
/// Threads: one at a time.
class LocalAddresses {
  public:
    /// @param address  With any port.
    /// @param now      In ticks of cpu_ticks().
    bool has(const SockAddr& address, std::uint64_t now);

  private:
    std::vector<SockAddr> known_;  // with port 0
    std::uint64_t known_until_ = 0;
    std::uint64_t next_ask_ = 0;  // for one that is not among them
};

/// Whether the interface of this name has this address, with any port and with the scope that it
/// names, if any. No name: any interface.
bool is_address_of(std::string_view interface, const SockAddr& address);

/// The address of this host from which packets to `dest` leave, with port 0; nothing: there is no
/// route. Sends nothing.
std::optional<SockAddr> source_towards(const SockAddr& dest);

/// The address of a network interface that is up, with port 0; nothing: there is none. That of the
/// default route comes first, those of containers and virtual machines last; before all of them
/// those that have a carrier.
/// @param family     AF_INET or AF_INET6; link-local addresses are left out.
/// @param interface  Its name; empty: any.
std::optional<SockAddr> network_address(int family, std::string_view interface);

/// All that network_address() can choose from, the best first.
std::vector<SockAddr> network_addresses(int family);

/// The names of the interfaces that network_address() can choose from, for people. AF_UNSPEC: of
/// both families, those with an IPv4 address first.
std::string network_interfaces(int family);

}  // namespace rvt::util
