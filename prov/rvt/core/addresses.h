// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Between the core's Address and the sockaddr of a socket.
#pragma once

#include "rvt/types.h"
#include "util/sock_addr.h"

namespace rvt::core {

/// IPv4 becomes an IPv4-mapped gid.
Address to_address(const util::SockAddr& from) noexcept;
util::SockAddr to_sock_addr(const Address& from) noexcept;

}  // namespace rvt::core
