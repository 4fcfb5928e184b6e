// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reference capture of kernel rxe, as the RoCEv2 packets that are in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/icrc.h"

namespace rvt::test {

struct CapturedPacket {
    protocol::IpPath path{};
    bool is_v4 = false;
    std::uint16_t identification = 0;  // IPv4
    std::vector<std::byte> packet;     // from the base transport header to the padding
    std::uint32_t icrc = 0;
};

/// Every packet to UDP port 4791 of fabtests/vm/rxe-reference.pcapng; fails the test when the file
/// is missing or holds none.
std::vector<CapturedPacket> reference_capture();

}  // namespace rvt::test
