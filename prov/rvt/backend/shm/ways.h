// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// In words, for people: the ways that data may take to a process of this host and back, why others
// are closed, and how far it is. For describe_peer of rdma/fi_ext_rvt.h, and so for rvt_info.
#pragma once

#include <string>

#include "backend/shm/connection.h"
#include "backend/shm/topology.h"

namespace rvt::shm {

/// Names and values: "name: value; name: value".
/// @param cpu_here  The processor of the caller (sched_getcpu(3)).
/// Threads: any.
std::string ways_to(const Peering& peering, int cpu_here,
                    const Topology& topology = Topology::instance());

}  // namespace rvt::shm
