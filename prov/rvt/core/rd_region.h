// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies between a message and a registered region, which may be one range or a list of segments.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/key_table.h"
#include "core/segments.h"
#include "util/iov_cursor.h"

namespace rvt::core {

/// Copies into the range that was looked up, `offset` bytes into it. The caller has checked the
/// bounds and holds a pin.
inline void copy_to_region(const KeyHit& hit, std::uint64_t offset, const std::byte* from,
                           std::size_t count) noexcept {
    if (count == 0) {
        return;  // a zero-length access is granted without a region
    }
    if (!hit.scattered) [[likely]] {
        std::memcpy(hit.data() + offset, from, count);
        return;
    }
    const auto segments = segments_of(hit);
    util::IovCursor(segments.data(), segments.size(), hit.offset + offset).scatter(from, count);
}

/// The other direction.
inline void copy_from_region(const KeyHit& hit, std::uint64_t offset, std::byte* to,
                             std::size_t count) noexcept {
    if (count == 0) {
        return;
    }
    if (!hit.scattered) [[likely]] {
        std::memcpy(to, hit.data() + offset, count);
        return;
    }
    const auto segments = segments_of(hit);
    util::IovCursor(segments.data(), segments.size(), hit.offset + offset).gather(to, count);
}

}  // namespace rvt::core
