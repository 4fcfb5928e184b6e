// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram endpoints of a network's address that reach each other through shared memory.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "ofi/pair.h"

namespace rvt::test {

/// How many UDP datagrams have left in this thread's network namespace.
inline std::uint64_t udp_sent() {
    const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(
        std::fopen("/proc/thread-self/net/snmp", "re"), &std::fclose);
    RVT_ASSERT(file != nullptr);
    std::array<char, 512> line{};
    unsigned long long sent = 0;
    int found = 0;
    while (found != 1 && std::fgets(line.data(), line.size(), file.get()) != nullptr) {
        found = std::sscanf(line.data(), "Udp: %*u %*u %*u %llu", &sent);
    }
    RVT_EQ(found, 1);
    return sent;
}

/// Sends one from `end` to the other, who receives it. Returns: whether it went by UDP.
inline bool sends_by_udp(Pair& ends, End& end) {
    static std::array<char, 64> room{};
    const std::uint64_t before = udp_sent();
    fid_cntr* const received = end.other->cntrs[1].get();
    const std::uint64_t heard = fi_cntr_read(received);
    RVT_OK(
        fi_recv(end.other->ep.get(), room.data(), room.size(), nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_inject(end.ep.get(), "x", 1, end.peer));
    ends.until([&] { return fi_cntr_read(received) == heard + 1; });
    return udp_sent() != before;
}

/// Until the two are connected, which nobody waits for, they send by the wire. Then their queues
/// are empty and their counters 0. In a network namespace of the caller's.
inline void meet_by_host(Pair& ends) {
    for (End* end : {&ends.a, &ends.b}) {
        const auto limit = std::chrono::steady_clock::now() + kPatience;
        bool is_by_udp = true;
        while (is_by_udp && std::chrono::steady_clock::now() < limit) {
            is_by_udp = sends_by_udp(ends, *end);
        }
        RVT_ASSERT(!is_by_udp);
    }
    for (const End* end : {&ends.a, &ends.b}) {
        RVT_OK(fi_cntr_set(end->cntrs[0].get(), 0));
        RVT_OK(fi_cntr_set(end->cntrs[1].get(), 0));
        fi_cq_tagged_entry entry{};
        while (fi_cq_read(end->cq.get(), &entry, 1) == 1) {
        }
    }
}

}  // namespace rvt::test
