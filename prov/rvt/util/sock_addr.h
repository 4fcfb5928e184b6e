// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint's address: IP address and UDP port, as a small value that compares and hashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>

#include "util/status.h"

namespace rvt::util {

struct SockAddr {
    std::uint16_t family = AF_UNSPEC;   // AF_INET or AF_INET6
    std::uint16_t port = 0;             // host byte order
    std::array<std::uint8_t, 16> ip{};  // network byte order; IPv4 uses the first four
    std::uint32_t scope_id = 0;         // IPv6 link-local only; 0: not known

    /// Packets do not tell the scope of who sent them: one that is not known is any.
    friend bool operator==(const SockAddr& a, const SockAddr& b) noexcept {
        const bool is_one_scope = a.scope_id == b.scope_id || a.scope_id == 0 || b.scope_id == 0;
        return a.family == b.family && a.port == b.port && a.ip == b.ip && is_one_scope;
    }

    /// Reads a sockaddr_in or sockaddr_in6. Returns: EAFNOSUPPORT for another family, EINVAL when
    /// too short.
    static Result<SockAddr> from(const sockaddr* address, std::size_t length) noexcept;
    /// Reads "1.2.3.4:5" or "[::1]:5"; also behind "fi_sockaddr://", "fi_sockaddr_in://" or
    /// "fi_sockaddr_in6://", where host and port may be missing, and a path or a query follow
    /// (fi_getinfo(3), FI_ADDR_STR).
    /// Returns: EINVAL when it is none of these.
    static Result<SockAddr> from_string(std::string_view text);
    /// Whether a text begins as those do.
    static bool is_formatted(std::string_view text) noexcept;

    /// Writes the sockaddr of its family. Returns: the length of that sockaddr.
    std::size_t to(sockaddr_storage* address) const noexcept;
    /// "1.2.3.4:5" or "[::1]:5".
    std::string to_string() const;

    bool is_any() const noexcept { return ip == std::array<std::uint8_t, 16>{}; }
    bool is_loopback() const noexcept;
    std::size_t hash() const noexcept;
};

}  // namespace rvt::util
