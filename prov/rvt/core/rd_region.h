// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies between a message and a registered region, which may be one range, a list of segments, or
// memory of a device.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/key_table.h"
#include "core/segments.h"
#include "util/iov_cursor.h"
#include "util/status.h"

namespace rvt::core {

/// Copies into the range that was looked up, `offset` bytes into it. The caller has checked the
/// bounds and holds a pin.
/// Returns: as DeviceMemory::begin_cpu_access() and write_back().
inline util::Status copy_to_region(const KeyHit& hit, std::uint64_t offset, const std::byte* from,
                                   std::size_t count) noexcept {
    if (count == 0) {
        return util::kOk;  // a zero-length access is granted without a region
    }
    if (!hit.indirect) [[likely]] {
        std::memcpy(hit.data() + offset, from, count);
        return util::kOk;
    }
    const RegionMemory& memory = memory_of(hit);
    const CpuAccessScope access(memory.device, CpuAccess::kWrite);
    if (!access.status().is_ok()) {
        return access.status();
    }
    util::IovCursor(memory.segments.data(), memory.segments.size(), hit.offset + offset)
        .scatter(from, count);
    return memory.device != nullptr ? memory.device->write_back(hit.offset + offset, count)
                                    : util::kOk;
}

/// The other direction. Returns: as DeviceMemory::begin_cpu_access() and refresh().
inline util::Status copy_from_region(const KeyHit& hit, std::uint64_t offset, std::byte* to,
                                     std::size_t count) noexcept {
    if (count == 0) {
        return util::kOk;
    }
    if (!hit.indirect) [[likely]] {
        std::memcpy(to, hit.data() + offset, count);
        return util::kOk;
    }
    const RegionMemory& memory = memory_of(hit);
    const CpuAccessScope access(memory.device, CpuAccess::kRead);
    if (!access.status().is_ok()) {
        return access.status();
    }
    const util::Status loaded =
        memory.device != nullptr ? memory.device->refresh(hit.offset + offset, count) : util::kOk;
    if (loaded.is_ok()) {
        util::IovCursor(memory.segments.data(), memory.segments.size(), hit.offset + offset)
            .gather(to, count);
    }
    return loaded;
}

/// The range that was looked up, where it lies in one piece, else nullptr; `device` gets whose rule
/// is to be kept there.
inline std::byte* region_range(const KeyHit& hit, DeviceMemory*& device) noexcept {
    device = nullptr;
    if (!hit.indirect) [[likely]] {
        return hit.data();
    }
    const RegionMemory& memory = memory_of(hit);
    device = memory.device;
    return memory.segments.size() == 1
               ? static_cast<std::byte*>(memory.segments.front().iov_base) + hit.offset
               : nullptr;
}

}  // namespace rvt::core
