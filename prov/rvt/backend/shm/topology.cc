// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads the machine with hwloc, leaving out all that takes time and is not asked for here.
#include "backend/shm/topology.h"

#include <hwloc.h>

#include "util/log.h"

namespace rvt::shm {
namespace {

void keep_caches_and_cores(hwloc_topology_t topology) noexcept {
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                        HWLOC_OBJ_L4CACHE, HWLOC_OBJ_CORE}) {
        hwloc_topology_set_type_filter(topology, type, HWLOC_TYPE_FILTER_KEEP_ALL);
    }
    // What this component knows the kernel tells as well, and faster.
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    // A peer may run where we may not.
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
}

hwloc_topology_t load(const char* synthetic) noexcept {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) {
        return nullptr;
    }
    keep_caches_and_cores(topology);
    if ((synthetic != nullptr && hwloc_topology_set_synthetic(topology, synthetic) != 0) ||
        hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return nullptr;
    }
    return topology;
}

hwloc_obj_t find_cpu(hwloc_topology_t topology, int cpu) noexcept {
    return topology == nullptr || cpu < 0
               ? nullptr
               : hwloc_get_pu_obj_by_os_index(topology, static_cast<unsigned>(cpu));
}

int node_of(hwloc_topology_t topology, hwloc_obj_t cpu) noexcept {
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
        if (hwloc_bitmap_isincluded(cpu->cpuset, node->cpuset) != 0) {
            return static_cast<int>(node->os_index);
        }
    }
    return -1;
}

/// The largest cache in the line of ancestors, which is the outermost.
std::size_t largest_cache(hwloc_obj_t object) noexcept {
    std::size_t bytes = 0;
    for (; object != nullptr; object = object->parent) {
        if (hwloc_obj_type_is_dcache(object->type) != 0) {
            bytes = object->attr->cache.size;
        }
    }
    return bytes;
}

template <class Match>
bool is_inside(hwloc_obj_t object, Match match) noexcept {
    for (; object != nullptr; object = object->parent) {
        if (match(object->type)) {
            return true;
        }
    }
    return false;
}

}  // namespace

const char* to_string(Proximity proximity) noexcept {
    switch (proximity) {
        case Proximity::kSameCpu: return "same cpu";
        case Proximity::kSameCore: return "same core";
        case Proximity::kSharedCache: return "shared cache";
        case Proximity::kSameNode: return "same memory node";
        case Proximity::kOtherNode: return "other memory node";
        case Proximity::kUnknown: return "unknown";
    }
    return "unknown";
}

const Topology& Topology::instance() noexcept {
    // Never destroyed: used until the end. NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    static const Topology& topology = *new Topology(nullptr);
    return topology;
}

Topology Topology::synthetic(const char* description) noexcept {
    return Topology(description);
}

Topology::Topology(const char* synthetic) noexcept : topology_(load(synthetic)) {
    if (topology_ == nullptr) {
        RVT_INFO(kEpCtrl, "the machine's topology cannot be read: all peers count as equally far");
    }
}

void Topology::Deleter::operator()(void* topology) const noexcept {
    hwloc_topology_destroy(static_cast<hwloc_topology_t>(topology));
}

Distance Topology::between(int here, int there) const noexcept {
    auto* const topology = static_cast<hwloc_topology_t>(topology_.get());
    const hwloc_obj_t left = find_cpu(topology, here);
    const hwloc_obj_t right = find_cpu(topology, there);
    if (left == nullptr || right == nullptr) {
        return {};
    }
    const hwloc_obj_t common = hwloc_get_common_ancestor_obj(topology, left, right);
    Distance distance{.proximity = Proximity::kSameNode,
                      .shared_cache_bytes = largest_cache(common),
                      .node_here = node_of(topology, left),
                      .node_there = node_of(topology, right)};
    if (left == right) {
        distance.proximity = Proximity::kSameCpu;
    } else if (is_inside(common, [](hwloc_obj_type_t type) { return type == HWLOC_OBJ_CORE; })) {
        distance.proximity = Proximity::kSameCore;
    } else if (is_inside(common, [](hwloc_obj_type_t type) {
                   return hwloc_obj_type_is_dcache(type) != 0;
               })) {
        distance.proximity = Proximity::kSharedCache;
    } else if (distance.node_here != distance.node_there) {
        distance.proximity = Proximity::kOtherNode;
    }
    return distance;
}

}  // namespace rvt::shm
