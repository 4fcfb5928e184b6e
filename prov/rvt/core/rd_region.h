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

/// Whose rule is to be kept where that is; nullptr: nobody's.
inline DeviceMemory* device_of(const KeyHit& hit) noexcept {
    return hit.is_ok() && hit.indirect ? memory_for_peers(hit).device : nullptr;
}

/// Calls each(memory, begin, count) for the parts in which the range lies that was looked up for a
/// peer's atomic, `bytes` in all, until it is false. The caller holds a pin. Returns: whether it
/// was true each time, and no element lies in two parts.
template <class Each>
bool for_each_part(const KeyHit& hit, std::size_t bytes, std::size_t element_bytes,
                   Each each) noexcept {
    if (!hit.indirect) [[likely]] {
        return each(hit.data(), std::size_t{0}, bytes);
    }
    std::uint64_t at = hit.offset;
    const std::span<const iovec> segments = memory_for_peers(hit).from(at);
    util::IovCursor range(segments.data(), segments.size(), at);
    for (std::size_t done = 0; done < bytes;) {
        const iovec here = range.span();
        const std::size_t part = range.skip(std::min(here.iov_len, bytes - done));
        if (part % element_bytes != 0 ||
            !each(static_cast<std::byte*>(here.iov_base), done, part)) {
            return false;
        }
        done += part;
    }
    return true;
}

}  // namespace rvt::core
