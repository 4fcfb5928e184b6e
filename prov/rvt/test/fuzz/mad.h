// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of connection management that are right as far as their kind.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "fuzz/input.h"
#include "protocol/cm_messages.h"

namespace rvt::fuzz {

using Mad = std::array<std::byte, protocol::kMadBytes>;

/// IBTA vol. 1, 13.4.2: the header in front of the message, whose attribute names its kind.
inline constexpr std::size_t kMadHeader = 24;
inline constexpr std::size_t kMadAttributeAt = 17;
inline constexpr unsigned kFirstCmAttribute = 0x10;
inline constexpr unsigned kCmAttributes = 9;

/// The kind is named by any number; what stands behind the header is input.
inline Mad mad_of(unsigned kind, Input& input) {
    Mad mad{};
    protocol::encode_cm({.transaction_id = 1, .message = protocol::CmRtu()}, std::span(mad));
    mad[kMadAttributeAt] = static_cast<std::byte>(kFirstCmAttribute + kind % kCmAttributes);
    const auto body = input.take(mad.size() - kMadHeader);
    std::copy(body.begin(), body.end(), mad.begin() + kMadHeader);
    return mad;
}

}  // namespace rvt::fuzz
