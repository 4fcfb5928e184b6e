// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Asks the system for its interfaces and routes.
#include "util/local_addresses.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include "util/cpu.h"
#include "util/unique_fd.h"

namespace rvt::util {
namespace {

using InterfaceList = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Result<InterfaceList> ask_for_interfaces() {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) {
        return errno;
    }
    return InterfaceList(all, &freeifaddrs);
}

/// None where the system cannot be asked.
InterfaceList all_interfaces() {
    auto asked = ask_for_interfaces();
    return asked.is_ok() ? asked.take() : InterfaceList(nullptr, &freeifaddrs);
}

std::optional<SockAddr> address_of(const ifaddrs& interface) {
    if (interface.ifa_addr == nullptr) {
        return {};
    }
    const std::size_t bytes =
        interface.ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const Result<SockAddr> own = SockAddr::from(interface.ifa_addr, bytes);
    return own.is_ok() ? std::optional(own.value()) : std::nullopt;
}

/// Whether one of these interfaces has it, of that name unless it is empty.
bool has_address(const InterfaceList& all, std::string_view interface, const SockAddr& address) {
    SockAddr host = address;
    host.port = 0;
    for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
        const auto own = address_of(*one);
        if (own && *own == host && (interface.empty() || interface == one->ifa_name)) {
            return true;
        }
    }
    return false;
}

bool is_link_local(const SockAddr& address) {
    return address.family == AF_INET ? address.ip[0] == 169 && address.ip[1] == 254
                                     : address.ip[0] == 0xfe && (address.ip[1] & 0xc0) == 0x80;
}

/// Made for guests of this host: others seldom reach them.
bool is_for_guests(std::string_view name) {
    static constexpr std::string_view kPrefixes[] = {"docker", "br-", "virbr",   "veth", "lxc",
                                                     "lxd",    "cni", "flannel", "cali", "podman",
                                                     "vnet",   "tap", "tun",     "vmnet"};
    return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                       [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// The interface in a line of /proc/net/route, if it is that of the default route: destination,
/// gateway, flags, two counts, metric, mask. Routes to a part of all addresses, such as either
/// half, come before it, and one that refuses is of no interface, "*".
std::string default_in_v4_line(const char* line) {
    char name[IF_NAMESIZE + 1] = {};
    unsigned long dest = 1;
    unsigned long mask = 1;
    const int fields = std::sscanf(line, "%16s %lx %*x %*x %*d %*d %*d %lx", name, &dest, &mask);
    return fields == 3 && dest == 0 && mask == 0 && name != std::string_view("*") ? name : "";
}

/// The same of /proc/net/ipv6_route: destination, length of its prefix, source and length, gateway,
/// metric, two counts, flags. Without a route, lo has one of these that refuses.
std::string default_in_v6_line(const char* line) {
    constexpr unsigned long kRefuses = 0x200;  // RTF_REJECT
    char name[IF_NAMESIZE + 1] = {};
    unsigned prefix = 1;
    unsigned long flags = kRefuses;
    const int fields =
        std::sscanf(line, "%*32s %x %*32s %*x %*32s %*x %*x %*x %lx %16s", &prefix, &flags, name);
    return fields == 3 && prefix == 0 && (flags & kRefuses) == 0 ? name : "";
}

/// The interface of the default route; empty: there is none.
std::string default_interface(int family) {
    const bool is_v6 = family == AF_INET6;
    const std::unique_ptr<std::FILE, decltype(&std::fclose)> table(
        std::fopen(is_v6 ? "/proc/net/ipv6_route" : "/proc/net/route", "re"), &std::fclose);
    std::array<char, 256> line{};
    while (table != nullptr && std::fgets(line.data(), line.size(), table.get()) != nullptr) {
        std::string name =
            is_v6 ? default_in_v6_line(line.data()) : default_in_v4_line(line.data());
        if (!name.empty()) {
            return name;
        }
    }
    return {};
}

struct Candidate {
    std::string name;
    SockAddr address;
    bool has_carrier;  // for a moment not yet, when an interface has just come up
};

/// Addresses of interfaces that others may reach, the best first.
std::vector<Candidate> candidates(int family) {
    std::vector<Candidate> found;
    const InterfaceList all = all_interfaces();
    for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
        const auto address = address_of(*one);
        const bool is_usable = (one->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP;
        if (address && address->family == family && is_usable && !is_link_local(*address)) {
            found.push_back({.name = one->ifa_name,
                             .address = *address,
                             .has_carrier = (one->ifa_flags & IFF_RUNNING) != 0});
        }
    }
    const std::string main = default_interface(family);
    const auto rank = [&](const Candidate& one) {
        return (one.has_carrier ? 0 : 3) + (one.name == main ? 0 : is_for_guests(one.name) ? 2 : 1);
    };
    std::stable_sort(found.begin(), found.end(),
                     [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
    return found;
}

}  // namespace

Result<bool> is_local_address(const SockAddr& address) {
    if (address.is_any() || address.is_loopback()) {
        return true;
    }
    const auto all = ask_for_interfaces();
    return all.is_ok() ? Result<bool>(has_address(all.value(), {}, address)) : all.status();
}

bool LocalAddresses::has(const SockAddr& address, std::uint64_t now) {
    SockAddr host = address;
    host.port = 0;
    const auto knows = [&] { return std::ranges::find(known_, host) != known_.end(); };
    if (now < (knows() ? known_until_ : next_ask_)) {
        return knows();
    }
    const auto asked = ask_for_interfaces();
    if (!asked.is_ok()) {
        return knows();
    }
    known_.clear();
    for (const ifaddrs* one = asked.value().get(); one != nullptr; one = one->ifa_next) {
        if (const auto own = address_of(*one)) {
            known_.push_back(*own);
        }
    }
    known_until_ = now + ticks_of_ns(1'000'000'000);
    next_ask_ = now + ticks_of_ns(10'000'000);
    return knows();
}

bool is_address_of(std::string_view interface, const SockAddr& address) {
    return has_address(all_interfaces(), interface, address);
}

std::optional<SockAddr> source_towards(const SockAddr& dest) {
    const UniqueFd fd(::socket(dest.family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SockAddr there = dest;
    there.port = 9;  // any: a connected datagram socket sends nothing by itself
    sockaddr_storage name{};
    auto bytes = static_cast<socklen_t>(there.to(&name));
    if (!fd.is_open() || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), bytes) != 0) {
        return {};
    }
    bytes = sizeof name;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &bytes) != 0) {
        return {};
    }
    const Result<SockAddr> own = SockAddr::from(reinterpret_cast<sockaddr*>(&name), bytes);
    if (!own.is_ok()) {
        return {};
    }
    SockAddr source = own.value();
    source.port = 0;
    return source;
}

std::optional<SockAddr> network_address(int family, std::string_view interface) {
    for (const Candidate& one : candidates(family)) {
        if (interface.empty() || one.name == interface) {
            return one.address;
        }
    }
    return {};
}

std::vector<SockAddr> network_addresses(int family) {
    std::vector<SockAddr> addresses;
    for (const Candidate& one : candidates(family)) {
        addresses.push_back(one.address);
    }
    return addresses;
}

std::string network_interfaces(int family) {
    std::vector<Candidate> all = candidates(family == AF_UNSPEC ? AF_INET : family);
    if (family == AF_UNSPEC) {
        std::ranges::move(candidates(AF_INET6), std::back_inserter(all));
    }
    std::vector<std::string_view> known;  // an interface may have several addresses
    std::string names;
    for (const Candidate& one : all) {
        if (std::ranges::find(known, one.name) == known.end()) {
            names += (known.empty() ? "" : ", ") + one.name;
            known.emplace_back(one.name);
        }
    }
    return names.empty() ? "none" : names;
}

}  // namespace rvt::util
