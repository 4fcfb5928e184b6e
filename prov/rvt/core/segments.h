// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory behind a scattered key: a region that was registered as several buffers.
#pragma once

#include <span>
#include <vector>

#include <sys/uio.h>

#include "core/key_table.h"

namespace rvt::core {

/// The segments of a scattered region: KeyAttr::addr is the address of the vector that holds them.
/// Precondition: a hit with `scattered`, in the owner's process, under a ReadPin.
inline std::span<const iovec> segments_of(const KeyHit& hit) noexcept {
    return *reinterpret_cast<const std::vector<iovec>*>(
        hit.base);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace rvt::core
