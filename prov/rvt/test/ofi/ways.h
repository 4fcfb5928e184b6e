// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tests that run once through shared memory and once by the wire, some also through shared memory
// beside a wire and at the port of RoCEv2.
#pragma once

#include <array>
#include <cstdlib>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "common/own_network.h"
#include "ofi/fixture.h"

namespace rvt::test {

inline constexpr const char* kLoopback = "127.0.0.1";

/// The address that all endpoints of a test have, which says how they reach each other.
inline std::string own_node = kLoopback;

/// Whether they share the port of RoCEv2 at that address.
inline bool shares_port = false;

/// Whether those of datagrams reach each other through shared memory beside it, once they have met.
inline bool has_host_wire = false;

/// The address that endpoints get by default where there is a network.
inline std::string default_node() {
    const Answer answer = ask(new_hints());
    const auto* const address = static_cast<const sockaddr_in*>(answer.info->src_addr);
    std::array<char, INET_ADDRSTRLEN> text{};
    std::string node = inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    const bool has_network = !node.starts_with("127.");
    cr_assert(has_network, "neither this machine nor a namespace has a network");
    return node;
}
inline std::string network_node() {
    enter_own_network();
    return default_node();
}

/// A test that sets something up first.
#define RVT_TEST_AFTER(set_up, suite, way, name) \
    Test(suite##_##way, name) {                  \
        set_up;                                  \
        suite##_##name##_body();                 \
    }

/// By the wire alone, as to peers on other hosts.
inline void use_network() {
    setenv("FI_RVT_DGRAM_SHARED_MEMORY", "0", 1);
    own_node = network_node();
}

/// The addresses of a network, and shared memory beside it.
inline void use_host_wire() {
    cr_assert(enter_own_network(), "this user cannot have a network of its own");
    own_node = default_node();
    has_host_wire = true;
}

/// In a network where nobody else takes a port that has been given back. First of all in a test.
inline void be_alone() {
    if (own_node == kLoopback) {  // else it is in one
        enter_own_network();
    }
}

/// With the port of RoCEv2, which is nobody else's in a namespace alone.
inline void share_roce_port() {
    cr_assert(enter_own_network(), "this user cannot have a network of its own");
    setenv("FI_RVT_ROCE_PORT", "4791", 1);
    own_node = default_node();
    shares_port = true;
}

/// A test over both ways.
#define RVT_TEST_BOTH_WAYS(suite, name)                         \
    static void suite##_##name##_body();                        \
    Test(suite, name) {                                         \
        suite##_##name##_body();                                \
    }                                                           \
    RVT_TEST_AFTER(rvt::test::use_network(), suite, wire, name) \
    static void suite##_##name##_body()

/// The same, and through shared memory beside the wire.
#define RVT_TEST_EACH_WAY(suite, name)                            \
    static void suite##_##name##_body();                          \
    RVT_TEST_AFTER(rvt::test::use_host_wire(), suite, host, name) \
    RVT_TEST_BOTH_WAYS(suite, name)

/// The same, and by the wire with one port for all.
#define RVT_DGRAM_TEST(suite, name)                                      \
    static void suite##_##name##_body();                                 \
    RVT_TEST_AFTER(rvt::test::share_roce_port(), suite, roce_port, name) \
    RVT_TEST_EACH_WAY(suite, name)

}  // namespace rvt::test
