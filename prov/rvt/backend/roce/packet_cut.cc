// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Looking for the end of a packet.
#include "backend/roce/packet_cut.h"

#include <algorithm>

namespace rvt::roce {
namespace {

constexpr std::size_t kMostPackets = 64;  // UDP_MAX_SEGMENTS of the oldest kernels
constexpr std::size_t kAlignment = 4;     // payload is padded to it

/// Whether the next packet may begin where this one would end: with the same P_Key, and the only
/// version there is.
bool may_begin(const std::byte* next, const std::byte* first) noexcept {
    return std::memcmp(next + 2, first + 2, 2) == 0 && (next[1] & std::byte{0x0f}) == std::byte{0};
}

}  // namespace

/// @param tried  It has been found that this is not it.
std::size_t PacketCut::search(const protocol::IpPath& path, std::span<const std::byte> message,
                              std::size_t tried) noexcept {
    const std::size_t bytes = message.size();
    if (bytes != tried && is_packet(path, message)) {
        return each_ = bytes;
    }
    const std::size_t least = std::max(kLeastBytes, (bytes + kMostPackets - 1) / kMostPackets);
    unsigned tries = 0;
    for (std::size_t each = (least + kAlignment - 1) / kAlignment * kAlignment;
         each + kLeastBytes <= bytes && tries < kMostTries; each += kAlignment) {
        if (!may_begin(message.data() + each, message.data())) {
            continue;
        }
        ++tries;
        if (is_packet(path, message.first(each))) {
            return each_ = each;
        }
    }
    return 0;
}

}  // namespace rvt::roce
