// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Which NICs this host has, by the addresses of its network interfaces: where rdma_cm can bind one,
// a NIC's port belongs to it (RoCE, iWARP, IP over InfiniBand).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "util/sock_addr.h"

namespace rvt::verbs {

/// An address and the port of a NIC that it belongs to.
struct NicAddress {
    std::string device;        // as libibverbs names it
    std::uint8_t port = 0;     // from 1 on
    util::SockAddr address{};  // port 0
    // Of an interface of IP over InfiniBand; of others they mean nothing.
    std::array<std::uint8_t, 16> gid{};  // of the port, with which the interface speaks
    std::uint16_t pkey = 0;              // of the interface's partition; bit 15 means nothing
};

/// Those that these addresses of this host belong to, in their order. Threads: any.
std::vector<NicAddress> nics_at(std::span<const util::SockAddr> addresses);

/// In the order of their devices' names. None where the host has no RDMA devices, or no rdma-core:
/// that is no error. Threads: any.
std::vector<NicAddress> find_nics();

}  // namespace rvt::verbs
