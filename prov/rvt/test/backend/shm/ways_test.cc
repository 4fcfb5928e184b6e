// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is said of peers that are made up, and of one that is there.
#include "backend/shm/ways.h"

#include <cerrno>
#include <string>

#include <unistd.h>

#include <criterion/criterion.h>

#include "common/check.h"

using rvt::shm::Peering;
using rvt::shm::Topology;
using rvt::shm::ways_to;

namespace {

/// Two memory nodes, of two cores with a cache of 16 MiB each.
const Topology& two_nodes() {
    static const Topology& topology =
        *new Topology(Topology::synthetic("package:2 [numa] l3:1(size=16777216) core:2 pu:1"));
    return topology;
}

bool says(const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
}

/// A parent is there and may be looked at, unless a test says otherwise.
Peering make_peer() {
    Peering peer;
    peer.pid = getppid();
    peer.may_read_memory = true;
    peer.cpu = 1;
    return peer;
}

}  // namespace

Test(ways, are_open_where_memory_can_be_read) {
    const std::string text = ways_to(make_peer(), 0, two_nodes());
    RVT_ASSERT(says(text, "through rings: permitted"));
    RVT_ASSERT(says(text, "copied by one side: permitted"));
    RVT_ASSERT(says(text, "copied by both sides: permitted"));
}

Test(ways, are_closed_with_the_reason_where_it_cannot) {
    Peering peer = make_peer();
    peer.may_read_memory = false;
    peer.read_error = EPERM;
    const std::string text = ways_to(peer, 0, two_nodes());
    RVT_ASSERT(says(text, "through rings: permitted"));
    RVT_ASSERT(says(text, "by one side: refused, process_vm_readv: Operation not permitted"));
    RVT_ASSERT(says(text, "by both sides: refused, process_vm_readv: Operation not permitted"));
}

Test(ways, within_a_process_take_no_system_calls) {
    Peering peer = make_peer();
    peer.is_same_process = true;
    RVT_ASSERT(says(ways_to(peer, 0, two_nodes()), "by one side: permitted, without system calls"));
}

Test(ways, to_mapped_regions_need_keys) {
    RVT_ASSERT(says(ways_to(make_peer(), 0, two_nodes()), "mapped regions: none"));
}

Test(ways, tell_the_distance) {
    Peering peer = make_peer();
    RVT_ASSERT(says(ways_to(peer, 0, two_nodes()),
                    "0 here, the peer opened on 1: shared cache, 16384 KiB of cache in common, "
                    "memory node 0"));
    peer.cpu = 2;
    RVT_ASSERT(says(ways_to(peer, 0, two_nodes()), "on 2: other memory node, memory node 0 and 1"));
    peer.cpu = -1;
    RVT_ASSERT(says(ways_to(peer, 0, two_nodes()), "processors: not known"));
}
