// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Aliases of endpoints, fi_endpoint(3): the same endpoint with other default flags.
#pragma once

#include "ofi/compat.h"

namespace rvt::ofi {

struct EpRdm;

/// FI_ALIAS. `flags` holds FI_TRANSMIT or FI_RECV, to say whose, and the new op_flags.
int ep_alias_open(EpRdm& owner, struct fi_alias& alias) noexcept;

}  // namespace rvt::ofi
