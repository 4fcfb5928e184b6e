// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device that a peer of this host has shared, opened by this process's library of it.
#pragma once

#include "core/peer_device.h"

namespace rvt::hmem {

/// All kinds.
core::DeviceOpener& opener() noexcept;

}  // namespace rvt::hmem
