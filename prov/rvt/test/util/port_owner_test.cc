// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who is said to own a UDP port.
#include "util/port_owner.h"

#include <unistd.h>

#include "common/check.h"
#include "common/own_network.h"
#include "util/udp_port.h"

using rvt::util::bind_udp_port;
using rvt::util::SockAddr;
using rvt::util::udp_port_owner;

namespace {

std::string ourselves() {
    return "process " + std::to_string(getpid()) + " (";
}

SockAddr loopback6() {
    SockAddr address{.family = AF_INET6};
    address.ip[15] = 1;
    return address;
}

}  // namespace

Test(port_owner, is_this_process_for_its_own_port) {
    const auto port = bind_udp_port({.family = AF_INET, .ip = {127, 0, 0, 1}});
    RVT_OK(port);
    RVT_ASSERT(udp_port_owner(port.value().address).starts_with(ourselves()));
}

Test(port_owner, is_this_process_for_its_own_port_of_ipv6) {
    rvt::test::enter_own_network();
    const auto port = bind_udp_port(loopback6());
    RVT_OK(port);
    RVT_ASSERT(udp_port_owner(port.value().address).starts_with(ourselves()));
}

Test(port_owner, of_every_address_keeps_others_from_each) {
    const auto port = bind_udp_port({.family = AF_INET});
    RVT_OK(port);
    SockAddr one = port.value().address;
    one.ip = {127, 0, 0, 1};
    RVT_ASSERT(udp_port_owner(one).starts_with(ourselves()));
}

Test(port_owner, of_a_free_port_is_nobody) {
    rvt::test::enter_own_network();  // where nobody else takes the port meanwhile
    auto port = bind_udp_port({.family = AF_INET, .ip = {127, 0, 0, 1}});
    RVT_OK(port);
    port.value().socket.reset();
    RVT_ASSERT(udp_port_owner(port.value().address).empty());
}
