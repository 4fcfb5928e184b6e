// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The word of FLUSH: how far it goes, and of which memory. IBTA vol. 1, annex A19. What is reserved
// of it is sent as 0 and not looked at.
#pragma once

#include <cstdint>

#include "rvt/types.h"

namespace rvt::protocol {

constexpr std::uint32_t feth_of(FlushType type, FlushLevel level) noexcept {
    return bits(type) | static_cast<std::uint32_t>(level) << 4;
}
/// May hold bits that are no type's.
constexpr FlushType flush_type(std::uint32_t feth) noexcept {
    return static_cast<FlushType>(feth & 0xfu);
}
/// May be a number that is no level's.
constexpr FlushLevel flush_level(std::uint32_t feth) noexcept {
    return static_cast<FlushLevel>(feth >> 4 & 3u);
}

}  // namespace rvt::protocol
