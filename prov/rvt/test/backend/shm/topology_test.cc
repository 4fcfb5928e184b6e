// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Distances on machines that are made up, and on this one.
#include "backend/shm/topology.h"

#include <sched.h>

#include "common/check.h"

using rvt::shm::Distance;
using rvt::shm::Proximity;
using rvt::shm::Topology;

namespace {

/// Two packages, each a memory node with two groups of two cores around a 16 MiB cache; two threads
/// a core: processors 0 to 15.
const Topology& two_packages() {
    static const Topology& topology = *new Topology(
        Topology::synthetic("package:2 [numa] l3:2(size=16777216) l2:2(size=1048576) core:1 pu:2"));
    return topology;
}

}  // namespace

Test(topology, tells_how_far_processors_are) {
    RVT_EQ(two_packages().between(3, 3).proximity, Proximity::kSameCpu);
    RVT_EQ(two_packages().between(0, 1).proximity, Proximity::kSameCore);
    RVT_EQ(two_packages().between(0, 2).proximity, Proximity::kSharedCache);
    RVT_EQ(two_packages().between(0, 4).proximity, Proximity::kSameNode);
    RVT_EQ(two_packages().between(0, 8).proximity, Proximity::kOtherNode);
}

Test(topology, tells_the_cache_that_is_shared) {
    RVT_EQ(two_packages().between(0, 2).shared_cache_bytes, 16 << 20);
    RVT_EQ(two_packages().between(0, 1).shared_cache_bytes, 16 << 20);
    RVT_EQ(two_packages().between(0, 4).shared_cache_bytes, 0);
}

Test(topology, tells_the_memory_nodes) {
    const Distance distance = two_packages().between(1, 15);
    RVT_EQ(distance.node_here, 0);
    RVT_EQ(distance.node_there, 1);
}

Test(topology, does_not_guess_about_unknown_processors) {
    RVT_EQ(two_packages().between(0, -1).proximity, Proximity::kUnknown);
    RVT_EQ(two_packages().between(16, 0).proximity, Proximity::kUnknown);
    RVT_EQ(Topology::synthetic("nonsense").between(0, 0).proximity, Proximity::kUnknown);
}

Test(topology, of_this_machine_agrees_with_the_kernel) {
    unsigned cpu = 0;
    unsigned node = 0;
    RVT_EQ(getcpu(&cpu, &node), 0);
    const Distance distance =
        Topology::instance().between(static_cast<int>(cpu), static_cast<int>(cpu));
    RVT_EQ(distance.proximity, Proximity::kSameCpu);
    RVT_EQ(distance.node_here, node);
}
