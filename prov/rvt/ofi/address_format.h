// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Endpoint addresses in the forms that libfabric passes them around: sockaddrs, and text for
// FI_ADDR_STR.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ofi/compat.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::ofi {

/// The text of FI_ADDR_STR: "fi_sockaddr_in://1.2.3.4:5".
std::string to_fi_text(const util::SockAddr& address);

/// The address in malloc'ed memory, or nullptr; `*bytes` is its length.
void* new_formatted_address(std::uint32_t format, const util::SockAddr& address,
                            std::size_t* bytes) noexcept;

/// Writes at most `*bytes` of the address and sets `*bytes` to what it takes altogether.
/// Returns: false when it did not fit.
bool write_formatted_address(std::uint32_t format, const util::SockAddr& address, void* buffer,
                             std::size_t* bytes);

/// Reads an address of the format from memory of unknown size: a sockaddr of the format's family,
/// or text. Returns: EAFNOSUPPORT, EINVAL.
util::Result<util::SockAddr> read_formatted_address(std::uint32_t format, const void* address);

/// The same where the caller says how many bytes there are. Returns: EINVAL also for too few.
util::Result<util::SockAddr> read_sized_address(std::uint32_t format, const void* address,
                                                std::size_t bytes);

/// Whether a service is a number that no port has: getaddrinfo(3) takes it modulo 65536.
bool is_beyond_ports(const char* service) noexcept;

/// The distance between two addresses of an array in the format; text is an array of pointers.
std::size_t formatted_stride(std::uint32_t format) noexcept;

}  // namespace rvt::ofi
