// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports as the owners of addresses.
#include "util/udp_port.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "common/check.h"
#include "common/own_network.h"

using rvt::util::bind_udp_port;
using rvt::util::SockAddr;

namespace {

SockAddr loopback(std::uint16_t port) {
    return {.family = AF_INET, .port = port, .ip = {127, 0, 0, 1}};
}
SockAddr loopback6(std::uint16_t port) {
    SockAddr address{.family = AF_INET6, .port = port};
    address.ip[15] = 1;
    return address;
}

}  // namespace

Test(udp_port, zero_becomes_a_free_one) {
    const auto port = bind_udp_port(loopback(0));
    RVT_OK(port);
    RVT_ASSERT(port.value().address.port != 0);
    RVT_ASSERT(port.value().address.ip == loopback(0).ip);
}

Test(udp_port, has_one_owner) {
    const auto port = bind_udp_port(loopback(0));
    RVT_EQ(bind_udp_port(port.value().address), EADDRINUSE);
}

Test(udp_port, is_free_again_once_closed) {
    rvt::test::enter_own_network();  // where nobody else takes the port meanwhile
    auto port = bind_udp_port(loopback(0));
    const SockAddr address = port.value().address;
    port.value().socket.reset();
    RVT_OK(bind_udp_port(address));
}

Test(udp_port, of_ipv6_leaves_ipv4_alone) {
    rvt::test::enter_own_network();
    const auto port = bind_udp_port(loopback(0));
    RVT_OK(bind_udp_port(loopback6(port.value().address.port)));
}

Test(udp_port, of_another_host_is_refused) {
    RVT_EQ(bind_udp_port({.family = AF_INET, .port = 0, .ip = {192, 0, 2, 1}}), EADDRNOTAVAIL);
}

Test(udp_port, of_another_family_is_refused) {
    RVT_EQ(bind_udp_port({.family = AF_APPLETALK}), EAFNOSUPPORT);
}

Test(udp_port, is_not_kept_by_a_forked_child) {
    rvt::test::enter_own_network();  // where nobody else takes the port meanwhile
    auto port = bind_udp_port(loopback(0));
    const SockAddr address = port.value().address;
    int pair[2] = {-1, -1};
    RVT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    const pid_t child = fork();
    if (child == 0) {
        ::close(pair[0]);
        char byte = 1;
        send(pair[1], &byte, 1, 0);
        _exit(static_cast<int>(recv(pair[1], &byte, 1, 0)));
    }
    char started = 0;
    RVT_EQ(recv(pair[0], &started, 1, 0), 1);
    port.value().socket.reset();
    RVT_OK(bind_udp_port(address));
    ::close(pair[0]);
    ::close(pair[1]);
    waitpid(child, nullptr, 0);
}
