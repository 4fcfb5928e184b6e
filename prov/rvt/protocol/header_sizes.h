// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sizes of the transport headers on the wire, in bytes. IBTA vol. 1, 9.2 and 9.3; annex A19.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protocol/opcodes.h"

namespace rvt::protocol {

inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kIcrcBytes = 4;

struct ExtSize {
    Ext ext;
    std::uint8_t bytes;
};
inline constexpr std::array<ExtSize, 9> kExtSizes = {{
    {Ext::kDeth, 8},
    {Ext::kFeth, 4},
    {Ext::kReth, 16},
    {Ext::kAtomicEth, 28},
    {Ext::kAeth, 4},
    {Ext::kAtomicAckEth, 8},
    {Ext::kImm, 4},
    {Ext::kIeth, 4},
    {Ext::kRvtAtomicEth, 4},
}};

/// The longest there is: an atomic's.
inline constexpr std::size_t kMaxHeaderBytes = 40;

}  // namespace rvt::protocol
