// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Looking for the end of a packet.
#include "backend/roce/packet_cut.h"

#include <algorithm>
#include <optional>

namespace rvt::roce {
namespace {

constexpr std::size_t kLeastBytes = protocol::kBthBytes + protocol::kIcrcBytes;
constexpr std::size_t kMostPackets = 64;  // UDP_MAX_SEGMENTS of the oldest kernels
constexpr std::size_t kAlignment = 4;     // payload is padded to it

/// The IPv4 identification with which a packet is whole. Returns: nothing when it is not, or with
/// none that a device like this one sends.
std::optional<std::uint16_t> identification_in(const protocol::IpPath& path,
                                               std::span<const std::byte> bytes) noexcept {
    const auto body = bytes.first(bytes.size() - protocol::kIcrcBytes);
    std::uint32_t icrc = 0;
    std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
    const std::uint32_t difference = protocol::icrc_of(path, body) ^ le32toh(icrc);
    if (difference == 0) {
        return std::uint16_t{0};
    }
    const auto found = protocol::is_v4(path.source)
                           ? protocol::identification_of(difference, body.size())
                           : std::nullopt;
    return found && *found < kMostPackets ? found : std::nullopt;
}

/// Whether two packets of `each` bytes, of which the second may be the last, begin a message that
/// is a part of what their sender had joined.
bool begins_with_two(const protocol::IpPath& path, std::span<const std::byte> message,
                     std::size_t each) noexcept {
    if (each < kLeastBytes || message.size() < each + kLeastBytes) {
        return false;
    }
    const auto first = identification_in(path, message.first(each));
    if (!first) {
        return false;
    }
    const auto second =
        identification_in(path, message.subspan(each, std::min(each, message.size() - each)));
    return second && *second == *first + 1;
}

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
    if (begins_with_two(path, message, tried)) {
        return tried;
    }
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
        if (is_packet(path, message.first(each)) || begins_with_two(path, message, each)) {
            return each_ = each;
        }
    }
    return 0;
}

}  // namespace rvt::roce
