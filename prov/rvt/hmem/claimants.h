// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The kinds of devices that this provider knows.
#pragma once

#include "hmem/claimant.h"

namespace rvt::hmem {

/// The claimant of a kind, started. Its parameter (FI_RVT_HMEM_CUDA, ...) can switch it off.
/// Returns: ENOSYS, as Claimant::start(), or when it is switched off. Threads: any.
util::Result<Claimant*> claimant_of(Kind kind) noexcept;

/// Whether there is the library of any kind; none is initialised. Threads: any.
bool is_any_there() noexcept;

struct Claim {
    Claimant* claimant = nullptr;  // nullptr: nobody's, ordinary memory
    Allocation allocation;
};
/// Asks the claimants in turn, those whose library is there, whose memory this is.
Claim claim(const void* address, std::uint64_t bytes) noexcept;

/// fi_mr(3), FI_HMEM_DISABLE_P2P: no memory of a device is to be reached but through its owner.
bool has_no_p2p() noexcept;

/// The claimants, whether they are started or not.
Claimant& known_claimant(Kind kind) noexcept;
Claimant& cuda() noexcept;
Claimant& rocr() noexcept;
Claimant& ze() noexcept;
/// In tests alone: what one is made from.
Claimant& frame() noexcept;
/// Has claim() ask this one before the others; nullptr: nobody. For tests. Threads: while no other
/// thread is in claim().
void ask_first(Claimant* claimant) noexcept;

}  // namespace rvt::hmem
