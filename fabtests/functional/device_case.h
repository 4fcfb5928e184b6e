// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What cases about dma-bufs and those about memory of GPUs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "functional/case.h"

namespace fab {

inline constexpr std::size_t kPage = 4096;

/// Bytes that depend on their place and on `seed`.
inline void fill(char* memory, std::size_t length, unsigned seed) {
    for (std::size_t i = 0; i < length; ++i) memory[i] = static_cast<char>(seed + i * 7);
}

/// Who keeps memory of devices to itself, and by what.
inline constexpr int kNobody = -1;
enum class Keeps : std::uint8_t { kByEnvironment, kByOption };

/// Precondition: nothing has been asked of the provider yet, which reads its environment once.
template <int kWho, Keeps kHow>
EpSpec spec_of_keeper(const Rank& self, std::uint64_t caps) {
    EpSpec spec{
        .caps = caps, .tx_op_flags = FI_DELIVERY_COMPLETE, .mr_mode = kAnyMrMode | FI_MR_HMEM};
    if (self.rank == kWho && kHow == Keeps::kByEnvironment) setenv("FI_HMEM_DISABLE_P2P", "1", 1);
    if (self.rank == kWho && kHow == Keeps::kByOption) spec.hmem_p2p = FI_HMEM_P2P_DISABLED;
    return spec;
}

}  // namespace fab
