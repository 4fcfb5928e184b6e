// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies between a message and a registered region, which may be one range, a list of segments, or
// memory of a device.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "core/key_table.h"
#include "core/segments.h"
#include "util/fault_guard.h"
#include "util/iov_cursor.h"
#include "util/status.h"

namespace rvt::core {

/// Copies into the range that was looked up for a peer, `offset` bytes into it. The caller has
/// checked the bounds and holds a pin. Returns: EFAULT when the memory is not there; else as
/// DeviceMemory::begin_cpu_access() and
///          write_back().
inline util::Status copy_to_region(const KeyHit& hit, std::uint64_t offset, const std::byte* from,
                                   std::size_t count) noexcept {
    if (count == 0) {
        return util::kOk;  // a zero-length access is granted without a region
    }
    if (!hit.indirect) [[likely]] {
        return util::copy_guarded(hit.data() + offset, from, count) ? util::kOk
                                                                    : util::Status(EFAULT);
    }
    const RegionMemory& memory = memory_for_peers(hit);
    const CpuAccessScope access(memory.device, CpuAccess::kWrite);
    if (!access.status().is_ok()) {
        return access.status();
    }
    std::uint64_t at = hit.offset + offset;
    const std::span<const iovec> segments = memory.from(at);
    util::IovCursor to(segments.data(), segments.size(), at);
    for (std::size_t done = 0; done < count;) {
        const iovec here = to.span();
        const std::size_t part = to.skip(std::min(here.iov_len, count - done));
        if (!util::copy_guarded(here.iov_base, from + done, part)) {
            return EFAULT;
        }
        done += part;
    }
    return memory.device != nullptr ? memory.device->write_back(hit.offset + offset, count)
                                    : util::kOk;
}

/// The other direction, for a peer. Returns: EFAULT, or as DeviceMemory::begin_cpu_access() and
/// refresh().
inline util::Status copy_from_region(const KeyHit& hit, std::uint64_t offset, std::byte* to,
                                     std::size_t count) noexcept {
    if (count == 0) {
        return util::kOk;
    }
    if (!hit.indirect) [[likely]] {
        return util::copy_guarded(to, hit.data() + offset, count) ? util::kOk
                                                                  : util::Status(EFAULT);
    }
    const RegionMemory& memory = memory_for_peers(hit);
    const CpuAccessScope access(memory.device, CpuAccess::kRead);
    if (!access.status().is_ok()) {
        return access.status();
    }
    const util::Status loaded =
        memory.device != nullptr ? memory.device->refresh(hit.offset + offset, count) : util::kOk;
    std::uint64_t at = hit.offset + offset;
    const std::span<const iovec> segments = memory.from(at);
    util::IovCursor from(segments.data(), segments.size(), at);
    for (std::size_t done = 0; loaded.is_ok() && done < count;) {
        const iovec here = from.span();
        const std::size_t part = from.skip(std::min(here.iov_len, count - done));
        if (!util::copy_guarded(to + done, here.iov_base, part)) {
            return EFAULT;
        }
        done += part;
    }
    return loaded;
}

/// The range that was looked up for a peer's atomic, of so many bytes, where it lies in one piece,
/// else nullptr; `device` gets whose rule is to be kept there.
inline std::byte* region_range(const KeyHit& hit, std::uint64_t bytes,
                               DeviceMemory*& device) noexcept {
    device = nullptr;
    if (!hit.indirect) [[likely]] {
        return hit.data();
    }
    const RegionMemory& memory = memory_for_peers(hit);
    device = memory.device;
    std::uint64_t at = hit.offset;
    const std::span<const iovec> segments = memory.from(at);
    const iovec piece = util::IovCursor(segments.data(), segments.size(), at).span();
    return bytes <= piece.iov_len ? static_cast<std::byte*>(piece.iov_base) : nullptr;
}

}  // namespace rvt::core
