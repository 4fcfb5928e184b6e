// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a device may be out of when it makes no region or no pair, for the log.
#pragma once

#include <string>

#include "util/status.h"

namespace rvt::core {

class Device;

/// @param why  What reg_mr() returned: ENOSPC when the device has no more regions, ENOMEM also when
///             the process may not lock more memory, EDQUOT when its control group may not have
///             more.
/// Returns: what goes behind the words for `why`; nothing where that is not a want of room.
std::string region_shortage(const Device& device, util::Status why);
/// The same of create_qp().
std::string pair_shortage(const Device& device, util::Status why);

}  // namespace rvt::core
