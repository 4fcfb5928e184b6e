// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows between NICs at ports of InfiniBand: what the ends tell each other of their ports.
#include "core/rd_greeting.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/check.h"

namespace rvt::core {
namespace {

constexpr std::array<std::uint8_t, 16> kPortGid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0,
                                                   0,    2,    3, 4, 5, 6, 7, 8};

IbPort ib_port(std::uint16_t lid, std::uint16_t pkey = 0xffff) {
    IbPort port{.gid = kPortGid, .lid = lid, .pkey = pkey, .mtu_bytes = 4096};
    port.gid[15] = static_cast<std::uint8_t>(lid);
    return port;
}
IbPort in_other_subnet(IbPort port) {
    port.gid[7] ^= 1;
    return port;
}

}  // namespace

// ---- the greeting ----

namespace {

std::array<std::byte, sizeof(RdGreetingMessage)> greeting_of(const IbPort& port,
                                                             std::uint8_t flags = RdGreeting::kIb) {
    return std::bit_cast<std::array<std::byte, sizeof(RdGreetingMessage)>>(
        RdGreetingMessage{.greeting = {.flags = flags}, .port = to_greeting_port(port)});
}

}  // namespace

Test(rd_nic_ib, a_port_is_read_as_it_was_written) {
    IbPort port = ib_port(0xbfff, 0x8001);
    port.needs_grh = true;
    const IbPort read = read_greeting_port(greeting_of(port));
    RVT_ASSERT(read.gid == port.gid && read.needs_grh);
    RVT_EQ(read.lid, 0xbfff);
    RVT_EQ(read.pkey, 0x8001);
}

Test(rd_nic_ib, a_greeting_that_names_no_port_or_is_too_short_has_none) {
    const auto without = greeting_of(ib_port(12), RdGreeting::kNic);
    RVT_EQ(read_greeting_port(without).lid, 0);
    const auto whole = greeting_of(ib_port(12));
    RVT_EQ(read_greeting_port(whole).lid, 12);
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        RVT_EQ(read_greeting_port(std::span(whole).first(bytes)).lid, 0);
    }
}

Test(rd_nic_ib, what_a_peer_names_is_no_way_if_it_is_no_port_of_this_subnet) {
    const IbPort own = ib_port(12);
    RVT_ASSERT(why_apart(own, ib_port(13)) == nullptr);
    RVT_ASSERT(why_apart(own, own) == nullptr);
    RVT_ASSERT(why_apart(IbPort{}, IbPort{}) == nullptr);
    for (const std::uint16_t lid : {0, 0xc000, 0xffff}) {
        RVT_ASSERT(why_apart(own, ib_port(lid)) != nullptr);
    }
    RVT_ASSERT(why_apart(IbPort{}, own) != nullptr);
    RVT_ASSERT(why_apart(own, in_other_subnet(own)) != nullptr);
    for (const std::uint16_t pkey : {0, 0x8000, 0x7ffe, 0xfffe}) {
        RVT_ASSERT(why_apart(own, ib_port(13, pkey)) != nullptr);
    }
    RVT_ASSERT(why_apart(own, ib_port(13, 0x7fff)) == nullptr);
    RVT_ASSERT(why_apart(ib_port(12, 0x7fff), ib_port(13, 0x7fff)) != nullptr);
}

}  // namespace rvt::core
