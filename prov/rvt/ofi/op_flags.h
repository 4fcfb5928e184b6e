// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The default flags of an endpoint's two sides, as fi_control(3) reads and changes them: the
// argument says by FI_TRANSMIT or FI_RECV which side it means.
#pragma once

#include <cstdint>

#include "ofi/compat.h"

namespace rvt::ofi {

struct OpFlags {
    std::uint64_t tx = 0;
    std::uint64_t rx = 0;
};

/// FI_GETOPSFLAG. Returns: 0, or -FI_EINVAL where not one side is named.
inline int get_op_flags(const OpFlags& present, std::uint64_t& flags) noexcept {
    const bool is_tx = (flags & FI_TRANSMIT) != 0;
    const bool is_rx = (flags & FI_RECV) != 0;
    if (is_tx == is_rx) {
        return -FI_EINVAL;
    }
    flags = is_tx ? present.tx : present.rx;
    return 0;
}

/// FI_SETOPSFLAG. Returns: as get_op_flags(), and for flags that are not `offered`.
inline int set_op_flags(std::uint64_t& tx, std::uint64_t& rx, const OpFlags& offered,
                        std::uint64_t flags) noexcept {
    const bool is_tx = (flags & FI_TRANSMIT) != 0;
    const bool is_rx = (flags & FI_RECV) != 0;
    const std::uint64_t wanted = flags & ~std::uint64_t{FI_TRANSMIT | FI_RECV};
    if (is_tx == is_rx || (wanted & ~(is_tx ? offered.tx : offered.rx)) != 0) {
        return -FI_EINVAL;
    }
    (is_tx ? tx : rx) = wanted;
    return 0;
}

}  // namespace rvt::ofi
