// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory regions, fi_mr(3), as keys in the domain's table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <rdma/fi_ext_rvt.h>

#include "core/key_table.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/pieces.h"
#include "core/segments.h"
#include "hmem/device_region.h"
#include "hmem/imported_memory.h"
#include "ofi/compat.h"
#include "ofi/domain.h"
#include "rvt/types.h"

namespace rvt::ofi {

struct Cntr;

/// Buffers of one region, at most, but with a NIC, which takes one. Accesses to all of them at once
/// fit into a list of pieces.
inline constexpr std::size_t kMaxMrIov = core::PieceList::kMax;

struct Mr {
    static Mr& from(fid_mr* self) noexcept { return *reinterpret_cast<Mr*>(self); }
    static Mr& from(fid* self) noexcept { return *reinterpret_cast<Mr*>(self); }

    fid_mr handle{};
    Domain* domain = nullptr;
    std::uint32_t table_key = 0;
    // In a NIC's domain: the memory of a device that the NIC has imported.
    std::unique_ptr<hmem::ImportedMemory> imported;
    core::Owned<core::Mr> nic_region;  // in a NIC's domain, in place of an entry in the table
    std::uint64_t base_address = 0;    // remote address of the first byte
    // Ordinary memory has another one once it is registered anew.
    std::unique_ptr<core::RegionMemory> memory = std::make_unique<core::RegionMemory>();
    // Of a region that is a device's; operations that use it hold it, too.
    std::shared_ptr<hmem::DeviceRegion> device;
    // What peers read of a copied region (RegionMemory::for_peers), if they may.
    std::unique_ptr<hmem::DeviceRegion> device_for_peers;
    core::RegionMemory memory_for_peers;
    bool is_staged = false;           // its operations work on a copy, which `device` has
    std::uint64_t local_address = 0;  // by which the application names its first byte
    Cntr* remote_write = nullptr;     // bound: counts what peers write into the region
    Access wishes = Access::kNone;    // kOnDemand, kRelaxedOrdering: of a NIC
};

// FI_RVT_MR_ON_DEMAND and FI_RVT_MR_RELAXED_ORDERING.
inline constexpr std::uint64_t kWishFlags = FI_RVT_MR_ON_DEMAND | FI_RVT_MR_RELAXED_ORDERING;
Access to_wishes(std::uint64_t flags) noexcept;

/// Returns: 0, or -FI_EINVAL for what is no access, which has been logged.
int check_access(std::uint64_t access) noexcept;
/// The same of a count of buffers.
int check_buffers(const iovec* buffers, std::size_t count) noexcept;

/// The table's view of a region of this memory, which outlives the key.
/// @param address  By which the application names its first byte.
core::KeyAttr to_key_attr(const core::RegionMemory& memory, std::uint64_t address, Access access);

/// Those that may be using a region's memory by the domain's table.
core::PeerMarks marks_of(Domain& domain) noexcept;
/// What peers know of a region, by their NICs or as what they have opened, they are to know no
/// more.
void withdraw_from_peers(const Mr& mr) noexcept;

/// Names a buffer by the region of a NIC's domain whose descriptor it came with. Returns: false
/// where copy_is_needed(): then it has to be in the copy.
inline bool to_nic(Sge& element, const void* desc) noexcept {
    const Mr& mr = *static_cast<const Mr*>(desc);
    element.lkey = mr.nic_region->lkey();
    return !mr.is_staged;
}
/// Whether the NIC reaches the region's memory by itself, where the CPU cannot follow.
inline bool is_imported(const void* desc) noexcept {
    return static_cast<const Mr*>(desc)->imported != nullptr;
}
/// A buffer as an element of a pair's request.
/// @param element  Names ordinary memory; changed for memory of a device.
/// @param desc     Of the buffer's region.
/// Returns: false for a buffer that is not within its region, or where copy_is_needed().
bool to_device(Sge& element, const void* desc) noexcept;
/// Whether any of these buffers is memory that the CPU has a copy of.
bool copy_is_needed(void* const* desc, std::size_t count) noexcept;

extern fi_ops_mr domain_mr_ops;

/// FI_MAP_RAW_MR and FI_UNMAP_KEY, fi_mr(3): a raw key is the key, it needs no mapping.
int domain_map_raw_key(struct fi_mr_map_raw* map) noexcept;

/// core::RdKeys.accessed of a domain: tells the counters bound to regions.
void count_region_access(void* domain, std::uint64_t key, std::uint64_t wc_flags) noexcept;

}  // namespace rvt::ofi
