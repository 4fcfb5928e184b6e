// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The sizes of the RD service as the user's parameters set them.
#pragma once

#include "core/rd_tuning.h"

namespace rvt {

core::RdTuning rdm_tuning() noexcept;

}  // namespace rvt
