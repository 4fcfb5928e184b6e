// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who a datagram is from, and where to, by the header in front of it.
#include "core/grh.h"

#include "common/check.h"
#include "core/addresses.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

using namespace rvt;
using namespace rvt::core;

namespace {

using Grh = std::array<std::byte, kGrhBytes>;

std::string source_of(const Grh& grh) {
    return to_sock_addr({.gid = grh_source(grh), .port = 1}).to_string();
}

std::string dest_of(const Grh& grh) {
    return to_sock_addr({.gid = grh_dest(grh), .port = 1}).to_string();
}

/// 192.0.2.7 to 198.51.100.9, with the checksum that belongs to it.
Grh ipv4() {
    Grh grh{};
    constexpr std::uint8_t kHeader[] = {0x45, 0,    0,   60, 0, 0, 0x40, 0,  64,  17,
                                        0x4e, 0x6d, 192, 0,  2, 7, 198,  51, 100, 9};
    std::memcpy(&grh[20], kHeader, sizeof kHeader);
    return grh;
}

/// 2001:db8::1 to an address whose bytes begin as an IPv4 header does.
Grh ipv6() {
    Grh grh{};
    constexpr std::uint8_t kHeader[] = {0x60, 0, 0, 0, 0, 20, 17, 64, 0x20, 0x01, 0x0d, 0xb8};
    std::memcpy(grh.data(), kHeader, sizeof kHeader);
    grh[20] = std::byte{0x45};
    grh[23] = std::byte{1};
    return grh;
}

}  // namespace

Test(grh, names_the_source_of_an_ipv6_header) {
    cr_assert(source_of(ipv6()).find("2001:db8:") != std::string::npos, "%s",
              source_of(ipv6()).c_str());
}

Test(grh, names_the_source_of_an_ipv4_header_behind_20_bytes) {
    cr_assert(source_of(ipv4()) == "192.0.2.7:1", "%s", source_of(ipv4()).c_str());
}

Test(grh, takes_an_ipv4_header_without_checksum_where_no_other_can_stand) {
    Grh grh = ipv4();
    grh[30] = grh[31] = std::byte{0};
    cr_assert(source_of(grh) == "192.0.2.7:1", "%s", source_of(grh).c_str());
}

Test(grh, believes_an_ipv4_header_behind_any_bytes_by_its_checksum) {
    Grh grh = ipv4();
    std::fill(grh.begin(), grh.begin() + 20, std::byte{0x66});
    cr_assert(source_of(grh) == "192.0.2.7:1", "%s", source_of(grh).c_str());
    grh[31] ^= std::byte{1};
    cr_assert(source_of(grh) != "192.0.2.7:1", "%s", source_of(grh).c_str());
}

Test(grh, names_the_destination_of_a_header_of_either_version) {
    cr_assert(dest_of(ipv4()) == "198.51.100.9:1", "%s", dest_of(ipv4()).c_str());
    Grh grh = ipv6();
    constexpr std::uint8_t kGroup[] = {0xff, 0x0e};
    std::memcpy(&grh[24], kGroup, sizeof kGroup);
    cr_assert(dest_of(grh) == "[ff0e::]:1", "%s", dest_of(grh).c_str());
}
