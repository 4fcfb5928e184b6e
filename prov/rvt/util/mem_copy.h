// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of known habits: a few bytes without a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "util/cpu.h"

namespace rvt::util {

/// Copies up to 64 bytes with a few overlapping moves instead of a call.
RVT_ALWAYS_INLINE void copy_small(void* to, const void* from, std::size_t count) noexcept {
    auto* const t = static_cast<char*>(to);
    const auto* const f = static_cast<const char*>(from);
    if (count == 8) [[likely]] {
        std::memcpy(t, f, 8);
    } else if (count > 16) {
        std::memcpy(t, f, 16);
        if (count > 32) {
            std::memcpy(t + 16, f + 16, 16);
            if (count > 48) {
                std::memcpy(t + 32, f + 32, 16);
            }
        }
        std::memcpy(t + count - 16, f + count - 16, 16);
    } else if (count >= 8) {
        std::memcpy(t, f, 8);
        std::memcpy(t + count - 8, f + count - 8, 8);
    } else if (count >= 4) {
        std::memcpy(t, f, 4);
        std::memcpy(t + count - 4, f + count - 4, 4);
    } else if (count != 0) {
        t[0] = f[0];
        t[count / 2] = f[count / 2];
        t[count - 1] = f[count - 1];
    }
}

}  // namespace rvt::util
