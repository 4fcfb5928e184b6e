// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a region's memory is, and how it is reached: the CPU's own, or a device's that is mapped,
// copied, or imported by the domain's NIC. docs/hmem.md.
#pragma once

#include <cstdint>
#include <span>

#include <sys/uio.h>

#include "ofi/compat.h"
#include "ofi/domain.h"
#include "ofi/mr.h"
#include "rvt/types.h"

namespace rvt::ofi {

// fi_mr_reg and fi_mr_regv do not say whose the memory is.
inline constexpr int kAnyIface = -1;

/// What FI_SEND ... FI_REMOTE_WRITE of fi_mr(3) let peers and the backend do.
Access to_access(std::uint64_t access, const Domain& domain) noexcept;

/// The same in the domain of a NIC, and what the application wishes of it.
Access to_nic_access(const Mr& mr, std::uint64_t access) noexcept;

/// Makes these buffers the region's memory: sets `memory` and `local_address`, and `device` and the
/// descriptor where they are a device's. Precondition: mr.domain is set, there is a buffer.
/// @param iface  FI_HMEM_SYSTEM, one of a claimant, or kAnyIface: the claimants are asked. Of no
///               account in a domain without FI_HMEM.
/// @param flags  Of fi_mr_regattr(3): FI_HMEM_DEVICE_ONLY counts here.
/// Returns: 0, or -FI_ errno, which has been logged.
int take_memory(Mr& mr, std::span<const iovec> buffers, int iface, std::uint64_t access,
                std::uint64_t flags);
/// The same for a dma-buf, whose descriptor stays the caller's.
int take_dma_buf(Mr& mr, const MrDmabuf& part, std::uint64_t access);

/// Takes these buffers, of ordinary memory, for a region that is registered anew. Precondition:
/// there is one. Returns: 0, or -FI_ errno, which has been logged.
int take_host_memory(const Domain& domain, std::span<const iovec> buffers,
                     core::RegionMemory& memory);

/// In a NIC's domain: tells by which key and address peers name the region now.
void name_by_nic(Mr& mr) noexcept;

/// In a NIC's domain, after its memory was taken: has the NIC know the region, unless it has
/// imported it already, and names it by the NIC's key and a descriptor, which local access needs
/// there. Returns: as take_memory().
int register_with_nic(Mr& mr, std::uint64_t access);

}  // namespace rvt::ofi
