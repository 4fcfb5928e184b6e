// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Which NICs this host has, by the addresses of its network interfaces: where rdma_cm can bind one,
// a NIC's port belongs to it (RoCE, iWARP, IP over InfiniBand).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "util/sock_addr.h"

namespace rvt::verbs {

/// An address and the port of a NIC that it belongs to.
struct NicAddress {
    std::string device;        // as libibverbs names it
    std::uint8_t port = 0;     // from 1 on
    util::SockAddr address{};  // port 0
};

/// In the order of their devices' names. None where the host has no RDMA devices, or no rdma-core:
/// that is no error. Threads: any.
std::vector<NicAddress> find_nics();

}  // namespace rvt::verbs
