// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Data-path tables of RDM endpoints whose buffers may be memory of a device (FI_HMEM).
#pragma once

#include "ofi/ep_tables.h"

namespace rvt::ofi {

/// The tables for an EpRdm whose engine has these.
EpTables device_tables(const EpTables& engine) noexcept;

}  // namespace rvt::ofi
