// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_trywait(3): may the application sleep on the wait objects of these queues and counters?
#pragma once

#include "ofi/compat.h"

namespace rvt::ofi {

/// Arms one object. Returns: 0 when it is safe to sleep, -FI_EAGAIN when it has something,
/// -FI_EINVAL for another class.
int try_wait(fid* object) noexcept;

/// fi_ops_fabric.trywait.
int fabric_trywait(fid_fabric* fabric, fid** fids, int count) noexcept;

}  // namespace rvt::ofi
