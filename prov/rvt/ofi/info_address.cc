// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From node, service, flags and the addresses in hints to the source and destination of an answer.
// fi_getinfo(3).
//
// |                    | source                          | destination      |
// |--------------------|---------------------------------|------------------|
// | FI_SOURCE          | node and service                | hints->dest_addr |
// | node or service    | hints->src_addr, else chosen    | node and service |
// | neither            | hints->src_addr, else chosen    | hints->dest_addr |
//
// A chosen source is where packets to the destination leave from, and without one the address of
// the best network interface, or of the one that FI_RVT_ROCE_INTERFACE names, or the address that
// it names; where there is none, the loopback address. Of a domain that has the name of an
// interface it is that interface's in any case. Port 0 means that the endpoint takes a free one.
#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ofi/address_format.h"
#include "ofi/info.h"
#include "ofi/registry.h"
#include "util/local_addresses.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt::ofi {
namespace {

using util::Result;
using util::SockAddr;

SockAddr loopback(int family) noexcept {
    SockAddr address;
    address.family = static_cast<std::uint16_t>(family);
    if (family == AF_INET6) {
        address.ip[15] = 1;
    } else {
        address.ip = {127, 0, 0, 1};
    }
    return address;
}

/// The family that an address format demands, or AF_UNSPEC.
int family_of(std::uint32_t format) noexcept {
    switch (format) {
        case FI_SOCKADDR_IN: return AF_INET;
        case FI_SOCKADDR_IN6: return AF_INET6;
        default: return AF_UNSPEC;
    }
}

bool is_formatted(const char* node) noexcept {
    return node != nullptr && SockAddr::is_formatted(node);
}

bool is_known_as_local(const SockAddr& address) {
    const Result<bool> is_local = util::is_local_address(address);
    return is_local.is_ok() && is_local.value();
}

/// Takes the first address that the name has on this host, else if it may be elsewhere the first.
Result<SockAddr> choose(const addrinfo* all, bool must_be_local) {
    for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
        const Result<SockAddr> address = SockAddr::from(one->ai_addr, one->ai_addrlen);
        if (address.is_ok() && is_known_as_local(address.value())) {
            return address;
        }
    }
    return all == nullptr || must_be_local ? Result<SockAddr>(EADDRNOTAVAIL)
                                           : SockAddr::from(all->ai_addr, all->ai_addrlen);
}

struct Lookup {
    Result<SockAddr> address = EADDRNOTAVAIL;
    std::string why;
};

/// What was asked for, and where it has to be.
struct Name {
    const char* node;
    const char* service;
    std::uint64_t flags;
    bool must_be_local;
};

Lookup look_up(const Name& name, int family) {
    if (is_beyond_ports(name.service)) {
        return {EINVAL, "ports 0 to 65535, and services by name"};
    }
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    hints.ai_flags = (name.flags & FI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0;
    addrinfo* all = nullptr;
    const int error = getaddrinfo(name.node, name.service, &hints, &all);
    const std::string offered =
        name.must_be_local ? "addresses of this host" : "addresses that the system knows";
    if (error != 0) {
        return {EADDRNOTAVAIL, offered + " (" + gai_strerror(error) + ")"};
    }
    Lookup result{choose(all, name.must_be_local), offered};
    freeaddrinfo(all);
    return result;
}

/// Node and service to an address. No node is the loopback address, as a destination.
Lookup resolve(const Name& name, int family) {
    if (is_formatted(name.node)) {
        Result<SockAddr> address = SockAddr::from_string(name.node);
        if (name.service != nullptr || !address.is_ok()) {
            return {EINVAL, "fi_sockaddr_in://address:port without a service"};
        }
        if (family != AF_UNSPEC && address.value().family != family) {
            return {EINVAL, "the family that addr_format names"};
        }
        const bool is_usable = !name.must_be_local || is_known_as_local(address.value());
        return {is_usable ? address : Result<SockAddr>(EADDRNOTAVAIL), "addresses of this host"};
    }
    if (name.node == nullptr) {
        return look_up(name, family == AF_UNSPEC ? AF_INET : family);
    }
    // IPv4 first: names of a host usually have both, and peers expect one answer.
    if (family == AF_UNSPEC) {
        Lookup v4 = look_up(name, AF_INET);
        if (v4.address.is_ok()) {
            return v4;
        }
    }
    return look_up(name, family);
}

/// An address in hints: a sockaddr, or text where that is the format.
Result<SockAddr> from_hint(const void* address, std::size_t bytes, std::uint32_t format) {
    if (format == FI_ADDR_STR) {
        const auto* text = static_cast<const char*>(address);
        return SockAddr::from_string({text, strnlen(text, bytes)});
    }
    return SockAddr::from(static_cast<const sockaddr*>(address), bytes);
}

/// As a destination the wildcard stands for the loopback address, as it does for connect(2).
SockAddr without_wildcard(SockAddr address) noexcept {
    if (address.is_any()) {
        address.ip = loopback(address.family).ip;
    }
    return address;
}

/// The name that is asked for: its own, or that of an open domain.
std::string domain_name_of(const fi_domain_attr& domain) {
    if (domain.name == nullptr && domain.domain != nullptr) {
        return registry::name_of(&domain.domain->fid, FI_CLASS_DOMAIN);
    }
    return domain.name != nullptr ? domain.name : "";
}

/// What FI_RVT_ROCE_INTERFACE names, if it is an address: without a port, or brackets.
std::optional<SockAddr> address_of_param() {
    const std::string text(util::param_text(util::ParamId::kRoceInterface));
    for (const auto family : {std::uint16_t{AF_INET}, std::uint16_t{AF_INET6}}) {
        SockAddr address{.family = family};
        if (inet_pton(family, text.c_str(), address.ip.data()) == 1) {
            return address;
        }
    }
    return {};
}

class Resolver {
  public:
    Resolver(const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints) noexcept
        : node_(node), service_(service), flags_(flags), hints_(hints) {
        answer_.addresses.format =
            hints != nullptr ? hints->addr_format : std::uint32_t{FI_FORMAT_UNSPEC};
        family_ = family_of(answer_.addresses.format);
        if (hints != nullptr && hints->domain_attr != nullptr) {
            const std::string name = domain_name_of(*hints->domain_attr);
            answer_.interface = is_interface(name.c_str()) ? name : "";
        }
    }

    AddressAnswer run() {
        const bool is_source = (flags_ & FI_SOURCE) != 0;
        if (is_source) {
            take_named("node, service", true, source_);
        } else if (node_ != nullptr || service_ != nullptr) {
            take_named("node, service", false, dest_);
        }
        if (hints_ != nullptr && !is_source && hints_->src_addr != nullptr) {
            take_hint("src_addr", hints_->src_addr, hints_->src_addrlen, true, source_);
        }
        if (hints_ != nullptr && !dest_ && !refused() && hints_->dest_addr != nullptr &&
            (is_source || (node_ == nullptr && service_ == nullptr))) {
            take_hint("dest_addr", hints_->dest_addr, hints_->dest_addrlen, false, dest_);
        }
        if (!refused()) {
            finish();
        }
        return std::move(answer_);
    }

  private:
    [[nodiscard]] bool refused() const noexcept { return answer_.refusal.has_value(); }

    void take_named(const char* what, bool must_be_local, std::optional<SockAddr>& place) {
        const Lookup found = resolve(
            {.node = node_, .service = service_, .flags = flags_, .must_be_local = must_be_local},
            family_);
        if (!found.address.is_ok()) {
            const std::string asked = std::string(node_ != nullptr ? node_ : "-") + ", " +
                                      (service_ != nullptr ? service_ : "-");
            answer_.refusal = Refusal{what, asked, found.why};
            return;
        }
        place = found.address.value();
        if (must_be_local && node_ == nullptr) {
            place->ip = {};  // whichever address is chosen
            is_any_source_ = true;
        }
    }

    void take_hint(const char* what, const void* bytes, std::size_t length, bool must_be_local,
                   std::optional<SockAddr>& place) {
        if (refused()) {
            return;
        }
        const Result<SockAddr> address = from_hint(bytes, length, answer_.addresses.format);
        if (!address.is_ok()) {
            answer_.refusal =
                Refusal{what, "an address of another form", "sockaddr_in, sockaddr_in6 or text"};
        } else if (must_be_local && !is_known_as_local(address.value())) {
            answer_.refusal = Refusal{what, address.value().to_string(), "addresses of this host"};
        } else if (family_ != AF_UNSPEC && address.value().family != family_) {
            answer_.refusal =
                Refusal{what, address.value().to_string(), "the family that addr_format names"};
        } else {
            place = address.value();
        }
    }

    void finish() {
        if (dest_) {
            dest_ = without_wildcard(*dest_);
            if (is_any_source_) {
                source_->family = dest_->family;
            }
        }
        const int family = choose_family();
        if (dest_ && dest_->family != family) {  // a wildcard is of one, too
            answer_.refusal =
                Refusal{"dest_addr", dest_->to_string(), "the family of the source address"};
            return;
        }
        if (!source_ || source_->is_any()) {
            const std::uint16_t port = source_ ? source_->port : std::uint16_t{0};
            choose_source(family);
            source_->port = port;
        }
        if (refused()) {
            return;
        }
        if (!answer_.interface.empty() && !util::is_address_of(answer_.interface, *source_)) {
            answer_.refusal = Refusal{"domain_attr->name", answer_.interface,
                                      "the interface of the source " + source_->to_string()};
            return;
        }
        answer_.addresses.source = *source_;
        answer_.addresses.dest = dest_;
        if (answer_.addresses.format != FI_ADDR_STR) {
            answer_.addresses.format = family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
        }
    }

    [[nodiscard]] bool is_family_open() const {
        return family_ == AF_UNSPEC && !dest_ && (!source_ || is_any_source_);
    }

    /// The family of the answer. Where nothing asks for one, that of a network: IPv4 if there is
    /// such a network, as peers expect one answer, and IPv6 where there is nothing else.
    [[nodiscard]] int choose_family() const {
        if (is_family_open() && util::param_is_set(util::ParamId::kRoce)) {
            return !network_address(AF_INET) && network_address(AF_INET6) ? AF_INET6 : AF_INET;
        }
        return source_               ? source_->family
               : dest_               ? dest_->family
               : family_ == AF_INET6 ? AF_INET6
                                     : AF_INET;
    }

    /// What is named to take the address of; empty: the best interface.
    [[nodiscard]] std::string_view named_interface() const {
        if (!answer_.interface.empty()) {
            return answer_.interface;
        }
        return util::param_text(util::ParamId::kRoceInterface);
    }

    /// The address itself, where that is named.
    [[nodiscard]] std::optional<SockAddr> named_address() const {
        return answer_.interface.empty() ? address_of_param() : std::nullopt;
    }

    /// That of what is named, or of the best interface.
    [[nodiscard]] std::optional<SockAddr> network_address(int family) const {
        const std::optional<SockAddr> named = named_address();
        if (!named) {
            return util::network_address(family, named_interface());
        }
        const std::vector<SockAddr> all = util::network_addresses(family);
        return std::ranges::find(all, *named) != all.end() ? named : std::nullopt;
    }

    void choose_source(int family) {
        const std::string_view interface = named_interface();
        std::optional<SockAddr> chosen;
        if (dest_ && answer_.interface.empty()) {
            chosen = util::source_towards(*dest_);
        } else if (util::param_is_set(util::ParamId::kRoce)) {
            chosen = network_address(family);
            if (!chosen && !interface.empty()) {
                const bool is_domain = !answer_.interface.empty();
                answer_.refusal =
                    Refusal{is_domain ? "domain_attr->name" : "FI_RVT_ROCE_INTERFACE",
                            std::string(interface),
                            (named_address() ? "addresses of " : "") +
                                util::network_interfaces(is_family_open() ? AF_UNSPEC : family)};
            }
        }
        source_ = chosen.value_or(loopback(family));
    }

    const char* node_;
    const char* service_;
    std::uint64_t flags_;
    const fi_info* hints_;
    int family_ = AF_UNSPEC;
    std::optional<SockAddr> source_;
    bool is_any_source_ = false;  // of it only the port was named
    std::optional<SockAddr> dest_;
    AddressAnswer answer_;
};

/// Returns: EADDRNOTAVAIL where there is none, which is logged.
Result<SockAddr> default_source(const Home& home, std::uint32_t format) {
    fi_domain_attr attr{};
    attr.name = home.interface.empty() ? nullptr : const_cast<char*>(home.interface.c_str());
    if (attr.name != nullptr && !is_interface(attr.name)) {
        RVT_WARN(kEpCtrl, "an endpoint gets no address: its domain's interface %s has none",
                 attr.name);
        return EADDRNOTAVAIL;
    }
    fi_info hints{};
    hints.addr_format = format;
    hints.domain_attr = &attr;
    const AddressAnswer answer = resolve_addresses(nullptr, nullptr, 0, &hints);
    if (answer.refusal) {
        RVT_WARN(kEpCtrl, "an endpoint gets no address: %s: %s asked, %s offered",
                 answer.refusal->hint, answer.refusal->asked.c_str(),
                 answer.refusal->offered.c_str());
        return EADDRNOTAVAIL;
    }
    return answer.addresses.source;
}

}  // namespace

AddressAnswer resolve_addresses(const char* node, const char* service, std::uint64_t flags,
                                const fi_info* hints) {
    return Resolver(node, service, flags, hints).run();
}

bool is_interface(const char* domain) {
    return domain != nullptr && *domain != '\0' && std::string_view(domain) != kDomainName &&
           util::param_is_set(util::ParamId::kRoce) &&
           (util::network_address(AF_INET, domain) || util::network_address(AF_INET6, domain));
}

Result<SockAddr> at_home(const SockAddr& wanted, const Home& home) {
    if (home.is_nics || !wanted.is_any()) {
        return wanted;
    }
    Result<SockAddr> chosen =
        default_source(home, wanted.family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN);
    if (!chosen.is_ok()) {
        return chosen;
    }
    SockAddr address = chosen.value();
    address.port = wanted.port;
    return address;
}

Result<SockAddr> source_of(const fi_info& info, std::uint32_t format, const Home& home) {
    if (info.src_addr == nullptr) {
        return default_source(home, format);
    }
    const Result<SockAddr> wanted = read_formatted_address(format, info.src_addr);
    if (!wanted.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: src_addr is no address of the domain's format");
        return EINVAL;
    }
    return at_home(wanted.value(), home);
}

}  // namespace rvt::ofi
