// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conversion of addresses.
#include "core/addresses.h"

#include <algorithm>

namespace rvt::core {
namespace {

constexpr std::size_t kMappedBytes = 12;
constexpr std::array<std::uint8_t, kMappedBytes> kMapped = {0, 0, 0, 0, 0,    0,
                                                            0, 0, 0, 0, 0xff, 0xff};

}  // namespace

Address to_address(const util::SockAddr& from) noexcept {
    Address address{.gid = from.ip, .port = from.port};
    if (from.family == AF_INET) {
        std::copy(kMapped.begin(), kMapped.end(), address.gid.begin());
        std::copy_n(from.ip.begin(), 4, address.gid.begin() + kMappedBytes);
    }
    return address;
}

util::SockAddr to_sock_addr(const Address& from) noexcept {
    util::SockAddr address{.family = AF_INET6, .port = from.port, .ip = from.gid};
    if (std::equal(kMapped.begin(), kMapped.end(), from.gid.begin())) {
        address.family = AF_INET;
        address.ip = {};
        std::copy_n(from.gid.begin() + kMappedBytes, 4, address.ip.begin());
    }
    return address;
}

}  // namespace rvt::core
