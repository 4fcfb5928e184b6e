// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Aliases of endpoints, fi_endpoint(3): the same endpoint with other default flags.
#pragma once

#include <cstdint>

#include "ofi/ep_rdm.h"

namespace rvt::ofi {

struct EpAlias {
    static EpAlias& from(fid_ep* self) noexcept { return *reinterpret_cast<EpAlias*>(self); }
    static EpAlias& from(fid* self) noexcept { return *reinterpret_cast<EpAlias*>(self); }

    fid_ep handle{};
    EpRdm* owner = nullptr;
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
};

/// FI_ALIAS. `flags` holds FI_TRANSMIT or FI_RECV, to say whose, and the new op_flags.
int ep_alias_open(EpRdm& owner, struct fi_alias& alias) noexcept;

}  // namespace rvt::ofi
