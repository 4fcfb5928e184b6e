// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From node, service, flags and the addresses in hints to the source and destination of an answer.
// fi_getinfo(3).
//
// |                     | source                              | destination |
// |---------------------|-------------------------------------|--------------------------------------|
// | FI_SOURCE           | node and service                    | hints->dest_addr | | node or
// service     | hints->src_addr, else chosen        | node and service                     | |
// neither             | hints->src_addr, else chosen        | hints->dest_addr |
//
// A chosen source is the loopback address, or the destination's own address where that is not one:
// it is an address of this host as well. Port 0 means that the endpoint takes a free one.
#include <netdb.h>

#include <cstring>
#include <string>
#include <string_view>

#include "ofi/info.h"
#include "util/local_addresses.h"

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
    return node != nullptr && std::string_view(node).starts_with("fi_sockaddr_in");
}

/// Takes the first local address that the name has; a name may have others elsewhere.
Result<SockAddr> first_local(const addrinfo* all) {
    for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
        const Result<SockAddr> address = SockAddr::from(one->ai_addr, one->ai_addrlen);
        if (address.is_ok() && util::is_local_address(address.value())) {
            return address;
        }
    }
    return EADDRNOTAVAIL;
}

struct Lookup {
    Result<SockAddr> address = EADDRNOTAVAIL;
    std::string why;
};

Lookup look_up(const char* node, const char* service, std::uint64_t flags, int family) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    hints.ai_flags = (flags & FI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0;
    addrinfo* all = nullptr;
    const int error = getaddrinfo(node, service, &hints, &all);
    if (error != 0) {
        return {EADDRNOTAVAIL, std::string("addresses of this host (") + gai_strerror(error) + ")"};
    }
    Lookup result{first_local(all), "addresses of this host"};
    freeaddrinfo(all);
    return result;
}

/// Node and service to an address. With no node the loopback address is meant.
Lookup resolve(const char* node, const char* service, std::uint64_t flags, int family) {
    if (is_formatted(node)) {
        Result<SockAddr> address = SockAddr::from_string(node);
        if (service != nullptr || !address.is_ok()) {
            return {EINVAL, "fi_sockaddr_in://address:port without a service"};
        }
        return {util::is_local_address(address.value()) ? address : Result<SockAddr>(EADDRNOTAVAIL),
                "addresses of this host"};
    }
    if (node == nullptr) {
        // With AI_PASSIVE unset a missing node is the loopback address.
        return look_up(nullptr, service, flags, family == AF_UNSPEC ? AF_INET : family);
    }
    // IPv4 first: names of this host usually have both, and peers expect one answer.
    if (family == AF_UNSPEC) {
        Lookup v4 = look_up(node, service, flags, AF_INET);
        if (v4.address.is_ok()) {
            return v4;
        }
    }
    return look_up(node, service, flags, family);
}

/// An address in hints: a sockaddr, or text where that is the format.
Result<SockAddr> from_hint(const void* address, std::size_t bytes, std::uint32_t format) {
    if (format == FI_ADDR_STR) {
        const auto* text = static_cast<const char*>(address);
        return SockAddr::from_string(std::string(text, strnlen(text, bytes)).c_str());
    }
    return SockAddr::from(static_cast<const sockaddr*>(address), bytes);
}

/// The wildcard stands for the loopback address: on one host both reach the same endpoints.
SockAddr without_wildcard(SockAddr address) noexcept {
    if (address.is_any()) {
        address.ip = loopback(address.family).ip;
    }
    return address;
}

class Resolver {
  public:
    Resolver(const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints) noexcept
        : node_(node), service_(service), flags_(flags), hints_(hints) {
        answer_.addresses.format =
            hints != nullptr ? hints->addr_format : std::uint32_t{FI_FORMAT_UNSPEC};
        family_ = family_of(answer_.addresses.format);
    }

    AddressAnswer run() {
        const bool is_source = (flags_ & FI_SOURCE) != 0;
        if (is_source) {
            take_named("node, service", source_);
        } else if (node_ != nullptr || service_ != nullptr) {
            take_named("node, service", dest_);
        }
        if (hints_ != nullptr && !is_source && hints_->src_addr != nullptr) {
            take_hint("src_addr", hints_->src_addr, hints_->src_addrlen, source_);
        }
        if (hints_ != nullptr && !dest_ && !refused() && hints_->dest_addr != nullptr &&
            (is_source || (node_ == nullptr && service_ == nullptr))) {
            take_hint("dest_addr", hints_->dest_addr, hints_->dest_addrlen, dest_);
        }
        if (!refused()) {
            finish();
        }
        return std::move(answer_);
    }

  private:
    [[nodiscard]] bool refused() const noexcept { return answer_.refusal.has_value(); }

    void take_named(const char* what, std::optional<SockAddr>& place) {
        const Lookup found = resolve(node_, service_, flags_, family_);
        if (!found.address.is_ok()) {
            const std::string asked = std::string(node_ != nullptr ? node_ : "-") + ", " +
                                      (service_ != nullptr ? service_ : "-");
            answer_.refusal = Refusal{what, asked, found.why};
            return;
        }
        place = without_wildcard(found.address.value());
    }

    void take_hint(const char* what, const void* bytes, std::size_t length,
                   std::optional<SockAddr>& place) {
        if (refused()) {
            return;
        }
        const Result<SockAddr> address = from_hint(bytes, length, answer_.addresses.format);
        if (!address.is_ok()) {
            answer_.refusal =
                Refusal{what, "an address of another form", "sockaddr_in, sockaddr_in6 or text"};
        } else if (!util::is_local_address(address.value())) {
            answer_.refusal = Refusal{what, address.value().to_string(), "addresses of this host"};
        } else if (family_ != AF_UNSPEC && address.value().family != family_) {
            answer_.refusal =
                Refusal{what, address.value().to_string(), "the family that addr_format names"};
        } else {
            place = without_wildcard(address.value());
        }
    }

    void finish() {
        const int family = source_               ? source_->family
                           : dest_               ? dest_->family
                           : family_ == AF_INET6 ? AF_INET6
                                                 : AF_INET;
        if (!source_) {
            source_ = dest_ && !dest_->is_loopback() ? *dest_ : loopback(family);
            source_->port = 0;
        }
        if (dest_ && dest_->family != source_->family) {
            answer_.refusal =
                Refusal{"dest_addr", dest_->to_string(), "the family of the source address"};
            return;
        }
        answer_.addresses.source = *source_;
        answer_.addresses.dest = dest_;
        if (answer_.addresses.format != FI_ADDR_STR) {
            answer_.addresses.format = family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
        }
    }

    const char* node_;
    const char* service_;
    std::uint64_t flags_;
    const fi_info* hints_;
    int family_ = AF_UNSPEC;
    std::optional<SockAddr> source_;
    std::optional<SockAddr> dest_;
    AddressAnswer answer_;
};

}  // namespace

AddressAnswer resolve_addresses(const char* node, const char* service, std::uint64_t flags,
                                const fi_info* hints) {
    return Resolver(node, service, flags, hints).run();
}

}  // namespace rvt::ofi
