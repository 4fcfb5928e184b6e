// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How far two processors are from each other: which cache and which memory node they share (hwloc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rvt::shm {

/// From near to far.
enum class Proximity : std::uint8_t {
    kSameCpu,
    kSameCore,     // hardware threads of one core
    kSharedCache,  // a cache beyond the core's own
    kSameNode,     // memory node, without a common cache
    kOtherNode,
    kUnknown,  // of a processor that the system does not show
};
const char* to_string(Proximity proximity) noexcept;

struct Distance {
    Proximity proximity = Proximity::kUnknown;
    std::size_t shared_cache_bytes =
        0;  // of the largest cache that both use; 0: none, or not known
    int node_here = -1;
    int node_there = -1;
};

class Topology {
  public:
    /// That of this machine. Loaded by the first call, which costs some milliseconds; nothing of it
    /// changes later. Threads: any.
    static const Topology& instance() noexcept;
    /// One described in hwloc's words, "package:2 l3:1 core:4 pu:2", for tests.
    static Topology synthetic(const char* description) noexcept;

    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;
    Topology(Topology&&) noexcept = default;
    Topology& operator=(Topology&&) noexcept = default;
    ~Topology() = default;

    /// The distance between two processors, by the system's numbers (sched_getcpu(3)); a negative
    /// one is not known. Threads: any.
    Distance between(int here, int there) const noexcept;

  private:
    struct Deleter {
        void operator()(void* topology) const noexcept;
    };
    explicit Topology(const char* synthetic) noexcept;

    std::unique_ptr<void, Deleter>
        topology_;  // an hwloc_topology_t; nullptr when it could not be loaded
};

}  // namespace rvt::shm
