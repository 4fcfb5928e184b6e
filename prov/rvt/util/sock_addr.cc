// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conversion of endpoint addresses from and to sockaddrs and text.
#include "util/sock_addr.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include <arpa/inet.h>

namespace rvt::util {
namespace {

// The formats of fi_getinfo(3), and the families of what they name.
struct TextFormat {
    std::string_view prefix;
    int family;
};
constexpr std::array<TextFormat, 3> kTextFormats{{{"fi_sockaddr://", AF_UNSPEC},
                                                  {"fi_sockaddr_in://", AF_INET},
                                                  {"fi_sockaddr_in6://", AF_INET6}}};

Result<std::uint16_t> parse_port(std::string_view text) noexcept {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return EINVAL;
    }
    return port;
}

/// @param family    AF_UNSPEC: as the brackets of IPv6 say.
/// @param is_loose  Host and port may be missing: any, and 0.
Result<SockAddr> parse(std::string_view text, int family, bool is_loose) {
    const bool is_bracketed = text.starts_with('[');
    const std::size_t close = text.find(']');
    if (is_bracketed && close == std::string_view::npos) {
        return EINVAL;
    }
    const std::size_t host_end = is_bracketed ? close + 1 : std::min(text.find(':'), text.size());
    const std::string_view host =
        is_bracketed ? text.substr(1, close - 1) : text.substr(0, host_end);
    const std::string_view rest = text.substr(host_end);
    if ((rest.empty() && !is_loose) || (!rest.empty() && rest.front() != ':')) {
        return EINVAL;
    }
    SockAddr result;
    result.family = is_bracketed || family == AF_INET6 ? AF_INET6 : AF_INET;
    if (family != AF_UNSPEC && result.family != family) {
        return EINVAL;
    }
    const Result<std::uint16_t> port = rest.size() > 1 ? parse_port(rest.substr(1))
                                       : is_loose      ? Result<std::uint16_t>(std::uint16_t{0})
                                                       : Result<std::uint16_t>(EINVAL);
    if (!port.is_ok()) {
        return port.status();
    }
    result.port = port.value();
    if (host.empty() && is_loose) {
        return result;
    }
    const bool is_read = inet_pton(result.family, std::string(host).c_str(), result.ip.data()) == 1;
    return is_read ? Result<SockAddr>(result) : Result<SockAddr>(EINVAL);
}

}  // namespace

Result<SockAddr> SockAddr::from(const sockaddr* address, std::size_t length) noexcept {
    SockAddr result;
    if (address == nullptr || length < sizeof(sa_family_t)) {
        return EINVAL;
    }
    if (address->sa_family == AF_INET) {
        sockaddr_in in{};
        if (length < sizeof in) {
            return EINVAL;
        }
        std::memcpy(&in, address, sizeof in);
        std::memcpy(result.ip.data(), &in.sin_addr, sizeof in.sin_addr);
        result.port = ntohs(in.sin_port);
    } else if (address->sa_family == AF_INET6) {
        sockaddr_in6 in6{};
        if (length < sizeof in6) {
            return EINVAL;
        }
        std::memcpy(&in6, address, sizeof in6);
        std::memcpy(result.ip.data(), &in6.sin6_addr, sizeof in6.sin6_addr);
        result.port = ntohs(in6.sin6_port);
        result.scope_id = in6.sin6_scope_id;
    } else {
        return EAFNOSUPPORT;
    }
    result.family = address->sa_family;
    return result;
}

bool SockAddr::is_formatted(std::string_view text) noexcept {
    return std::ranges::any_of(
        kTextFormats, [&](const TextFormat& each) { return text.starts_with(each.prefix); });
}

Result<SockAddr> SockAddr::from_string(std::string_view text) {
    for (const TextFormat& each : kTextFormats) {
        if (text.starts_with(each.prefix)) {
            // What may follow is the application's.
            const std::string_view rest = text.substr(each.prefix.size());
            return parse(rest.substr(0, rest.find_first_of("/?")), each.family, true);
        }
    }
    return parse(text, AF_UNSPEC, false);
}

std::size_t SockAddr::to(sockaddr_storage* address) const noexcept {
    if (family == AF_INET6) {
        sockaddr_in6 in6{};
        in6.sin6_family = AF_INET6;
        in6.sin6_port = htons(port);
        in6.sin6_scope_id = scope_id;
        std::memcpy(&in6.sin6_addr, ip.data(), sizeof in6.sin6_addr);
        std::memcpy(address, &in6, sizeof in6);
        return sizeof in6;
    }
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, ip.data(), sizeof in.sin_addr);
    std::memcpy(address, &in, sizeof in);
    return sizeof in;
}

std::string SockAddr::to_string() const {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (inet_ntop(family, ip.data(), text.data(), text.size()) == nullptr) {
        return "?";
    }
    const std::string host(text.data());
    const std::string number = std::to_string(port);
    return family == AF_INET6 ? "[" + host + "]:" + number : host + ":" + number;
}

bool SockAddr::is_loopback() const noexcept {
    if (family == AF_INET) {
        return ip[0] == 127;
    }
    in6_addr address{};
    std::memcpy(&address, ip.data(), sizeof address);
    return IN6_IS_ADDR_LOOPBACK(&address) != 0;
}

std::size_t SockAddr::hash() const noexcept {
    // FNV-1a over what operator== compares; addresses of one job differ mostly in the port.
    std::uint64_t state = 0xcbf29ce484222325u;
    const auto mix = [&state](std::uint8_t byte) { state = (state ^ byte) * 0x100000001b3u; };
    for (const std::uint8_t byte : ip) {
        mix(byte);
    }
    mix(static_cast<std::uint8_t>(port));
    mix(static_cast<std::uint8_t>(port >> 8));
    mix(static_cast<std::uint8_t>(family));
    return state ^ (state >> 29);
}

}  // namespace rvt::util
