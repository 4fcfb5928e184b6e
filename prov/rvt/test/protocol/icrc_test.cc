// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC: that of every packet of kernel rxe, and what a socket can check without the IPv4
// identification.
#include "protocol/icrc.h"

#include "common/check.h"
#include "protocol/capture.h"

#include <cstdint>

using namespace rvt::protocol;
using rvt::test::CapturedPacket;

namespace {

std::uint32_t difference(const CapturedPacket& captured) {
    return captured.icrc ^ icrc_of(captured.path, captured.packet, 0);
}

}  // namespace

Test(icrc, agrees_with_every_packet_of_kernel_rxe) {
    int v4 = 0;
    int v6 = 0;
    for (const CapturedPacket& captured : rvt::test::reference_capture()) {
        RVT_EQ(icrc_of(captured.path, captured.packet, captured.identification), captured.icrc);
        ++(captured.is_v4 ? v4 : v6);
    }
    RVT_ASSERT(v4 > 0);
    RVT_ASSERT(v6 > 0);
}

Test(icrc, pieces_give_what_the_whole_gives) {
    const CapturedPacket captured = rvt::test::reference_capture().front();
    const std::span<const std::byte> packet(captured.packet);
    Icrc icrc(captured.path, packet.size(), packet.first(13), captured.identification);
    for (const std::byte& byte : packet.subspan(13)) {
        icrc.add({&byte, 1});
    }
    RVT_EQ(icrc.value(), captured.icrc);
}

Test(icrc, what_routers_change_in_the_base_header_does_not_count) {
    CapturedPacket captured = rvt::test::reference_capture().front();
    captured.packet[4] ^= std::byte{0xc0};  // congestion bits
    RVT_EQ(icrc_of(captured.path, captured.packet, captured.identification), captured.icrc);
}

Test(icrc, tells_the_identification_of_packets_of_kernel_rxe) {
    for (const CapturedPacket& captured : rvt::test::reference_capture()) {
        if (captured.is_v4) {
            const auto found = identification_of(difference(captured), captured.packet.size());
            RVT_ASSERT(found.has_value());
            RVT_EQ(*found, captured.identification);
        }
    }
}

Test(icrc, a_flipped_bit_is_no_identification) {
    for (CapturedPacket& captured : rvt::test::reference_capture()) {
        for (std::size_t at = 0; captured.is_v4 && at < captured.packet.size(); ++at) {
            captured.packet[at] ^= std::byte{0x10};
            const bool counts = at != 4;  // the byte that the ICRC does not cover
            const auto found = identification_of(difference(captured), captured.packet.size());
            RVT_EQ(found.has_value(), !counts);
            captured.packet[at] ^= std::byte{0x10};
        }
    }
}

Test(icrc, every_identification_is_found_again) {
    const CapturedPacket captured = rvt::test::reference_capture().front();
    const std::uint32_t zero = icrc_of(captured.path, captured.packet, 0);
    for (std::uint32_t id = 0; id < 0x10000; ++id) {
        const auto wanted = static_cast<std::uint16_t>(id);
        const std::uint32_t icrc = icrc_of(captured.path, captured.packet, wanted);
        const auto found = identification_of(icrc ^ zero, captured.packet.size());
        RVT_ASSERT(found.has_value() && *found == wanted);
    }
}
