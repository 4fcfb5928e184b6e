// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the handshake has tried, and one thing that is tried now.
#include "backend/shm/ways.h"

#include <cerrno>
#include <cstring>

#include <sys/uio.h>

namespace rvt::shm {
namespace {

std::string refused(const char* call, int error) {
    return std::string("refused, ") + call + ": " + strerrordesc_np(error);
}

/// The receiver of a message, or the initiator of an access, copies by itself.
std::string by_one_side(const Peering& peering) {
    if (peering.is_same_process) {
        return "permitted, without system calls";
    }
    return peering.may_read_memory ? "permitted" : refused("process_vm_readv", peering.read_error);
}

/// Each copies a part, and one of them writes to the other's memory. Who may read may write, but
/// for filters of system calls; they refuse a call that writes nothing, too.
std::string by_both_sides(const Peering& peering) {
    if (peering.is_same_process) {
        return "one-sided operations alone, without system calls";
    }
    if (!peering.may_read_memory) {
        return refused("process_vm_readv", peering.read_error);
    }
    const bool may_write = process_vm_writev(peering.pid, nullptr, 0, nullptr, 0, 0) == 0;
    return may_write ? "permitted" : refused("process_vm_writev", errno);
}

std::string by_mapping(const Peering& peering) {
    if (!peering.keys.is_mapped()) {
        return "none, the peer has no FI_RMA";
    }
    return peering.is_same_process ? "all" : "permitted, of memory in files";
}

std::string distance(const Topology& topology, int here, int there) {
    const Distance found = topology.between(here, there);
    if (found.proximity == Proximity::kUnknown) {
        return "not known";
    }
    std::string text = std::to_string(here) + " here, the peer opened on " + std::to_string(there) +
                       ": " + to_string(found.proximity);
    if (found.shared_cache_bytes != 0) {
        text += ", " + std::to_string(found.shared_cache_bytes >> 10) + " KiB of cache in common";
    }
    text += ", memory node " + std::to_string(found.node_here);
    if (found.node_there != found.node_here) {
        text += " and " + std::to_string(found.node_there);
    }
    return text;
}

}  // namespace

std::string ways_to(const Peering& peering, int cpu_here, const Topology& topology) {
    return "through rings: permitted; copied by one side: " + by_one_side(peering) +
           "; copied by both sides: " + by_both_sides(peering) +
           "; mapped regions: " + by_mapping(peering) +
           "; processors: " + distance(topology, cpu_here, peering.cpu);
}

}  // namespace rvt::shm
