// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory behind an indirect key: a region that was registered as several buffers, or memory of
// a device.
#pragma once

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
};

/// Precondition: a hit with `indirect`, in the owner's process, under a ReadPin.
inline const RegionMemory& memory_of(const KeyHit& hit) noexcept {
    return *reinterpret_cast<const RegionMemory*>(hit.base);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace rvt::core
