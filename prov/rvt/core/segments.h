// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory behind an indirect key: a region that was registered as several buffers, or memory of
// a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "core/device_memory.h"
#include "core/key_table.h"

namespace rvt::core {

/// What KeyAttr::addr of an indirect key is the address of. Outlives the key.
struct RegionMemory {
    std::vector<iovec> segments;     // where this process has the memory
    DeviceMemory* device = nullptr;  // whose rule is to be kept; nullptr: ordinary memory
    /// What peers read, and change by atomics, of a device of which the CPU has a copy: another
    /// one. Bytes for operations of this process may have arrived in the first that are not the
    /// device's yet, and what peers are shown would replace them. nullptr: the same.
    const RegionMemory* for_peers = nullptr;
    /// Of many segments: where in the region each of them ends.
    std::vector<std::uint64_t> ends{};

    /// To be called when `segments` are complete.
    void index() {
        if (segments.size() < kWorthAnIndex) {
            return;
        }
        std::uint64_t end = 0;
        for (const iovec& segment : segments) {
            ends.push_back(end += segment.iov_len);
        }
    }

    /// The segments from the one on in which the byte is that lies `offset` bytes into the region;
    /// `offset` becomes its place in that one.
    std::span<const iovec> from(std::uint64_t& offset) const noexcept {
        if (ends.empty()) {
            return segments;
        }
        const auto found = std::upper_bound(ends.begin(), ends.end(), offset);
        const auto i = static_cast<std::size_t>(found - ends.begin());
        offset -= i != 0 ? ends[i - 1] : 0;
        return std::span(segments).subspan(i);
    }

    static constexpr std::size_t kWorthAnIndex = 16;
};

/// Precondition: a hit with `indirect`, in the owner's process, under a ReadPin.
inline const RegionMemory& memory_of(const KeyHit& hit) noexcept {
    return *reinterpret_cast<const RegionMemory*>(hit.base);  // NOLINT(performance-no-int-to-ptr)
}

/// What a peer reads, writes or changes by an atomic. Precondition: as memory_of().
inline const RegionMemory& memory_for_peers(const KeyHit& hit) noexcept {
    const RegionMemory& memory = memory_of(hit);
    return memory.for_peers != nullptr ? *memory.for_peers : memory;
}

}  // namespace rvt::core
