// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which address an endpoint gets on hosts of many kinds: in a network of the test's own, since the
// machine's look as they do.
#include "util/local_addresses.h"

#include <cstdlib>
#include <string>

#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <criterion/criterion.h>

#include "common/check.h"
#include "common/own_network.h"
#include "util/cpu.h"

using namespace rvt::util;  // NOLINT(google-build-using-namespace)

namespace {

void ip(const std::string& command) {
    cr_assert(std::system(("ip " + command).c_str()) == 0, "ip %s", command.c_str());
}

/// An empty network, then interfaces in the order of their numbers, which is that in which the
/// system lists them.
class Host {
  public:
    Host() {
        if (!rvt::test::enter_own_network()) {
            cr_skip_test("this user cannot have a network of its own");
        }
        ip("link delete wire0");
    }

    /// With the addresses 10.N.0.1 and fd00:N::1, N counting from 1.
    void add(const std::string& name) {
        add_without_carrier(name);
        ip("link set " + name + "-far up");
        // The kernel takes notice of a carrier a moment later.
        const std::string is_up = "ip -o link show dev " + name + " | grep -q 'state UP'";
        cr_assert(std::system(("until " + is_up + "; do :; done").c_str()) == 0);
    }
    void add_without_carrier(const std::string& name) {
        const std::string n = std::to_string(++count_);
        ip("link add " + name + " type veth peer name " + name + "-far");
        ip("addr add 10." + n + ".0.1/24 dev " + name);
        ip("addr add fd00:" + n + "::1/64 dev " + name + " nodad");
        ip("link set " + name + " up");
    }

  private:
    int count_ = 0;
};

std::string best(int family, std::string_view interface = {}) {
    const std::optional<SockAddr> address = network_address(family, interface);
    return address ? address->to_string() : "none";
}

void expect(const std::string& got, const char* wanted) {
    cr_assert(got == wanted, "it is %s, not %s", got.c_str(), wanted);
}

}  // namespace

Test(local_addresses, of_interfaces_for_guests_come_last, .timeout = 30) {
    Host host;
    for (const char* name : {"docker0", "br-0123", "virbr0", "veth1", "lxcbr0", "cni0", "flannel.1",
                             "cali1", "podman0", "vnet1", "tap0", "tun0", "vmnet1", "eth0"}) {
        host.add(name);
    }
    expect(best(AF_INET), "10.14.0.1:0");
    expect(best(AF_INET6), "[fd00:14::1]:0");
    RVT_ASSERT(network_interfaces(AF_INET).starts_with("eth0, docker0, br-0123, "));
}

Test(local_addresses, of_guests_serve_where_there_is_no_other, .timeout = 30) {
    Host host;
    host.add("docker0");
    expect(best(AF_INET), "10.1.0.1:0");
}

Test(local_addresses, of_the_default_route_comes_first, .timeout = 30) {
    Host host;
    host.add("eth0");
    host.add("eth1");
    host.add("br-0123");
    ip("route add default via 10.2.0.9");
    expect(network_interfaces(AF_INET), "eth1, eth0, br-0123");
    ip("route replace default via 10.3.0.9");  // a bridge that the host itself sends through
    expect(network_interfaces(AF_INET), "br-0123, eth0, eth1");
    ip("route add default via fd00:2::9");
    expect(network_interfaces(AF_INET6), "eth1, eth0, br-0123");
}

// A VPN that wants all packets has two routes that hold half of the addresses each.
Test(local_addresses, of_a_route_to_the_first_half_are_not_those_of_the_default_route,
     .timeout = 30) {
    Host host;
    host.add("eth0");
    host.add("tun0");
    ip("route add default dev eth0");
    ip("route add 0.0.0.0/1 dev tun0");
    expect(best(AF_INET), "10.1.0.1:0");
    ip("route delete default");
    ip("route add blackhole default metric 1");
    ip("route add default dev tun0 metric 2");
    expect(best(AF_INET), "10.2.0.1:0");
}

Test(local_addresses, without_a_carrier_come_after_all_others, .timeout = 30) {
    Host host;
    host.add_without_carrier("eth0");
    host.add("docker0");
    host.add("eth1");
    expect(network_interfaces(AF_INET), "eth1, docker0, eth0");
    expect(best(AF_INET, "eth0"), "10.1.0.1:0");
}

Test(local_addresses, that_others_cannot_reach_are_left_out, .timeout = 30) {
    Host host;
    expect(best(AF_INET), "none");
    host.add("eth0");
    host.add("eth1");
    ip("link set eth0 down");
    ip("addr replace 169.254.7.7/16 dev eth1");
    expect(network_interfaces(AF_INET), "eth1");
    ip("addr del 10.2.0.1/24 dev eth1");
    expect(network_interfaces(AF_INET), "none");
    expect(network_interfaces(AF_UNSPEC), "eth1");
    host.add("eth2");
    expect(network_interfaces(AF_UNSPEC), "eth2, eth1");
    expect(best(AF_INET6), "[fd00:2::1]:0");
}

Test(local_addresses, that_are_link_local_are_those_of_the_interface_that_they_name,
     .timeout = 30) {
    Host host;
    host.add("eth0");
    host.add("eth1");
    ip("addr add fe80::77/64 dev eth0 nodad");
    SockAddr address = SockAddr::from_string("[fe80::77]:1").value();
    RVT_ASSERT(is_local_address(address).value());
    address.scope_id = if_nametoindex("eth0");
    RVT_ASSERT(is_address_of("eth0", address));
    address.scope_id = if_nametoindex("eth1");
    RVT_ASSERT(!is_address_of("eth0", address));
    RVT_ASSERT(!is_local_address(address).value());
}

Test(local_addresses, are_not_known_without_descriptors_but_for_those_of_the_loopback) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const auto loopback = is_local_address(SockAddr::from_string("127.0.0.1:1").value());
    const auto other = is_local_address(SockAddr::from_string("192.0.2.9:1").value());
    setrlimit(RLIMIT_NOFILE, &limit);  // the test runner wants some too
    RVT_ASSERT(loopback.is_ok() && loopback.value());
    RVT_EQ(other.error(), EMFILE);
}

Test(local_addresses, of_a_named_interface_is_taken_whatever_it_is, .timeout = 30) {
    Host host;
    host.add("eth0");
    host.add("virbr0");
    expect(best(AF_INET, "virbr0"), "10.2.0.1:0");
    expect(best(AF_INET6, "virbr0"), "[fd00:2::1]:0");
    expect(best(AF_INET, "eth7"), "none");
}

Test(local_addresses, a_list_of_them_is_asked_for_anew_when_it_is_old) {
    Host host;
    SockAddr address{.family = AF_INET, .port = 7};
    address.ip = {10, 1, 0, 1};
    LocalAddresses own;
    const std::uint64_t second = ticks_of_ns(1'000'000'000);
    const std::uint64_t moment = second / 100;
    RVT_ASSERT(!own.has(address, 5));
    host.add_without_carrier("first");
    RVT_ASSERT(!own.has(address, 4 + moment));
    RVT_ASSERT(own.has(address, 5 + moment));
    ip("link delete first");
    RVT_ASSERT(own.has(address, 4 + moment + second));
    RVT_ASSERT(!own.has(address, 5 + moment + second));
}

Test(local_addresses, the_last_list_of_them_holds_while_the_system_cannot_be_asked) {
    Host host;
    host.add_without_carrier("first");
    SockAddr address{.family = AF_INET, .port = 7};
    address.ip = {10, 1, 0, 1};
    LocalAddresses own;
    const std::uint64_t second = ticks_of_ns(1'000'000'000);
    RVT_ASSERT(own.has(address, 5));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const bool is_known = own.has(address, 5 + second);
    setrlimit(RLIMIT_NOFILE, &limit);  // the test runner wants some too
    RVT_ASSERT(is_known);
    ip("link delete first");
    RVT_ASSERT(!own.has(address, 6 + second));
}
