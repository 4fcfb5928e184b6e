// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Captures as the UDP packets that are in them; the reference capture of kernel rxe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "protocol/icrc.h"
#include "util/unique_fd.h"

namespace rvt::test {

struct CapturedPacket {
    protocol::IpPath path{};
    bool is_v4 = false;
    std::uint16_t identification = 0;  // IPv4
    std::vector<std::byte> headers{};  // IP and UDP
    std::vector<std::byte> packet{};   // from the base transport header to the padding
    std::uint32_t icrc = 0;

    std::uint32_t interface = 0;
    std::uint64_t at = 0;     // in the units of its interface
    std::uint32_t flags = 0;  // as pcapng has them
    std::string comment{};
};

struct Capture {
    std::vector<std::string> interfaces{};  // their names
    std::vector<CapturedPacket> packets{};
};

/// A file that goes with the process, under a name that can be opened.
struct CaptureFile {
    util::UniqueFd fd{memfd_create("capture", MFD_CLOEXEC)};
    std::string name = "/proc/self/fd/" + std::to_string(fd.get());
};

/// Fails the test when the file is not there or ends within a block.
Capture read_capture(const std::string& file);

/// Every packet to UDP port 4791 of fabtests/vm/rxe-reference.pcapng; fails the test when the file
/// is missing or holds none.
std::vector<CapturedPacket> reference_capture();

}  // namespace rvt::test
