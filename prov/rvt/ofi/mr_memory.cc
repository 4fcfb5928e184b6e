// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/mr_memory.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/shortage.h"
#include "hmem/claimants.h"
#include "hmem/copied_memory.h"
#include "hmem/dma_buf_memory.h"
#include "hmem/imported_memory.h"
#include "hmem/mapped_copier.h"
#include "ofi/errors.h"
#include "ofi/msg_nic.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

// A null buffer of at least this many bytes stands for all memory.
constexpr std::size_t kAllMemory = std::size_t{1} << 47;
static_assert(FI_HMEM_CUDA == 1 && FI_HMEM_ROCR == 2 && FI_HMEM_ZE == 3);

/// Buffers that follow each other in memory are one range.
std::vector<iovec> merge(std::span<const iovec> buffers) {
    std::vector<iovec> merged;
    for (const iovec& buffer : buffers) {
        if (!merged.empty() &&
            static_cast<char*>(merged.back().iov_base) + merged.back().iov_len == buffer.iov_base) {
            merged.back().iov_len += buffer.iov_len;
        } else {
            merged.push_back(buffer);
        }
    }
    return merged;
}

std::uint64_t to_number(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

// ---- ordinary memory ----

int take_buffers(core::RegionMemory& memory, std::span<const iovec> buffers) {
    for (const iovec& buffer : buffers) {
        if (buffer.iov_base == nullptr && buffer.iov_len != 0 && buffer.iov_len < kAllMemory) {
            RVT_WARN(kMr, "cannot register: %zu bytes at a null pointer", buffer.iov_len);
            return -FI_EINVAL;
        }
    }
    memory.segments = merge(buffers);
    memory.index();
    return 0;
}

int take_buffers(Mr& mr, std::span<const iovec> buffers) {
    const int taken = take_buffers(*mr.memory, buffers);
    mr.local_address = taken == 0 ? to_number(mr.memory->segments.front().iov_base) : 0;
    return taken;
}

// ---- memory of devices ----

/// Whether peers, or our own operations, may write the region.
bool is_written(std::uint64_t access) noexcept {
    return (access & (FI_RECV | FI_READ | FI_REMOTE_WRITE)) != 0;
}

/// What a refusal of DmaBufMemory::map() means, and what to do about it.
const char* reason_of(int error) noexcept {
    switch (error) {
        case EBADF: return "the descriptor is not open";
        case EINVAL: return "it is no dma-buf, or the part has no bytes or is not within it";
        case EACCES: return "the descriptor is for reading only, the access asked for writes";
        case EOPNOTSUPP: return "its exporter lets the CPU not map it";
        default: return strerrordesc_np(error);
    }
}

void set_device(Mr& mr, std::unique_ptr<hmem::DeviceRegion> device, std::uint64_t address) {
    mr.device = std::move(device);
    mr.memory->segments = {{mr.device->data(), mr.device->bytes()}};
    mr.memory->device = mr.device.get();
    mr.is_staged = mr.device->is_copy();
    mr.local_address = address;
    mr.handle.mem_desc = &mr;
}

/// What the CPU maps of the allocation's dma-buf.
util::Result<std::unique_ptr<hmem::DmaBufMemory>> map_dma_buf_of(const hmem::Claim& owner,
                                                                 std::uint64_t access) {
    auto exported = owner.claimant->dma_buf(owner.allocation);
    if (!exported.is_ok()) {
        return exported.status();
    }
    const hmem::Claimant::DmaBuf dma_buf = exported.take();
    return hmem::DmaBufMemory::map(
        {.fd = dma_buf.fd.get(), .offset = dma_buf.offset, .bytes = owner.allocation.bytes},
        is_written(access));
}

/// With a copy where peers can open the memory, as the device's own copies are faster than loads of
/// the CPU, which is all that a mapping has to offer; else mapped if that is possible.
util::Result<std::unique_ptr<hmem::DeviceRegion>> open_device(const hmem::Claim& owner,
                                                              std::uint64_t access) {
    using Region = std::unique_ptr<hmem::DeviceRegion>;
    const bool is_reachable = !hmem::has_no_p2p();
    const auto handle = is_reachable ? owner.claimant->share(owner.allocation)
                                     : util::Result<core::DeviceHandle>(EOPNOTSUPP);
    if (is_reachable && !handle.is_ok()) {
        auto mapped = map_dma_buf_of(owner, access);
        if (mapped.is_ok()) {
            return Region(mapped.take());
        }
    }
    auto copied = hmem::CopiedMemory::make(*owner.claimant, owner.allocation, handle);
    if (!copied.is_ok()) {
        return copied.status();
    }
    if (is_reachable) {
        copied.value()->let_nics_reach_it();
    }
    return Region(copied.take());
}

util::Status copy_for_peers(Mr& mr, const hmem::Claim& owner) {
    auto copied =
        hmem::CopiedMemory::make(*owner.claimant, owner.allocation, util::Status(EOPNOTSUPP));
    if (!copied.is_ok()) {
        return copied.status();
    }
    mr.device_for_peers = copied.take();
    mr.memory_for_peers = {
        .segments = {{mr.device_for_peers->data(), mr.device_for_peers->bytes()}},
        .device = mr.device_for_peers.get()};
    mr.memory->for_peers = &mr.memory_for_peers;
    return util::kOk;
}

int refuse_device(const hmem::Claim& owner, util::Status why) {
    RVT_WARN(kMr, "cannot register %llu bytes of %s: %s",
             static_cast<unsigned long long>(owner.allocation.bytes), owner.claimant->name(),
             strerrordesc_np(why.error()));
    return to_fi(why);
}

int take_device(Mr& mr, const hmem::Claim& owner, std::uint64_t access) {
    auto opened = open_device(owner, access);
    if (!opened.is_ok()) {
        return refuse_device(owner, opened.status());
    }
    RVT_INFO(kMr, "%llu bytes of %s at 0x%llx are %s",
             static_cast<unsigned long long>(owner.allocation.bytes), owner.claimant->name(),
             static_cast<unsigned long long>(owner.allocation.address),
             opened.value()->is_copy() ? "copied to and from the host" : "mapped");
    set_device(mr, opened.take(), owner.allocation.address);
    if (mr.is_staged && (access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0) {
        const util::Status copied = copy_for_peers(mr, owner);
        return copied.is_ok() ? 0 : refuse_device(owner, copied);
    }
    return 0;
}

int refuse_dma_buf(const MrDmabuf& part, util::Status why) {
    RVT_WARN(kMr, "cannot register %zu bytes at %llu of dma-buf descriptor %d: %s", part.len,
             static_cast<unsigned long long>(part.offset), part.fd, reason_of(why.error()));
    return to_fi(why);
}

/// Whose the memory at a dma-buf's address is, which may be nobody's.
hmem::Claim owner_of(const MrDmabuf& part) {
    return part.base_addr != nullptr
               ? hmem::claim(static_cast<const std::byte*>(part.base_addr) + part.offset, part.len)
               : hmem::Claim{};
}

/// One that the CPU cannot map is copied by its owner, if that can be told by its address.
int map_dma_buf(Mr& mr, const MrDmabuf& part, std::uint64_t access) {
    auto mapped = hmem::DmaBufMemory::map({.fd = part.fd, .offset = part.offset, .bytes = part.len},
                                          is_written(access));
    if (mapped.error() == EOPNOTSUPP) {
        const hmem::Claim owner = owner_of(part);
        if (owner.claimant != nullptr) {
            return take_device(mr, owner, access);
        }
    }
    if (!mapped.is_ok()) {
        return refuse_dma_buf(part, mapped.status());
    }
    set_device(mr, mapped.take(), to_number(part.base_addr) + part.offset);
    return 0;
}

// ---- memory of devices in a NIC's domain ----

int refuse_memory(const Mr& mr, util::Status why) {
    RVT_WARN(kMr, "cannot register %zu buffers, the first of %zu bytes, with NIC %s: %s%s",
             mr.memory->segments.size(), mr.memory->segments.front().iov_len, mr.domain->name(),
             strerrordesc_np(why.error()),
             core::region_shortage(mr.domain->nic->device(), why).c_str());
    return to_fi(why);
}

/// With the NIC. Returns: as core::reg_mr().
util::Status add_to_nic(Mr& mr, std::span<const iovec> segments, std::uint64_t access,
                        core::DeviceMemory* device) {
    Access rights = to_nic_access(mr, access);
    if (device != nullptr || mr.device != nullptr) {
        rights = without(rights, Access::kOnDemand);
    }
    return core::keep(mr.nic_region,
                      core::reg_mr(*mr.domain->nic_pd,
                                   {.segments = segments, .access = rights, .device = device}));
}

/// Has the NIC reach the memory by its dma-buf. Returns: EOPNOTSUPP when the NIC does not, which is
/// logged; errors of ImportedMemory::make().
util::Status import_to_nic(Mr& mr, const hmem::DmaBufPart& part, std::uint64_t address,
                           std::uint64_t access) {
    auto imported = hmem::ImportedMemory::make(part, is_written(access));
    if (!imported.is_ok()) {
        return imported.status();
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the device's
    const iovec named{reinterpret_cast<void*>(address), part.bytes};
    const util::Status made = add_to_nic(mr, {&named, 1}, access, imported.value().get());
    if (!made.is_ok()) {
        RVT_INFO(kMr, "NIC %s does not import %llu bytes of a device's memory: %s",
                 mr.domain->name(), static_cast<unsigned long long>(part.bytes),
                 strerrordesc_np(made.error()));
        return EOPNOTSUPP;
    }
    RVT_INFO(kMr, "NIC %s reaches %llu bytes of a device's memory at 0x%llx by itself",
             mr.domain->name(), static_cast<unsigned long long>(part.bytes),
             static_cast<unsigned long long>(address));
    mr.imported = imported.take();
    mr.local_address = address;
    return util::kOk;
}

/// A copy for what the CPU has to do to the memory: all, where the NIC has not imported it.
/// @param whose  For the log.
int copy_for_nic(Mr& mr, util::Result<std::unique_ptr<hmem::CopiedMemory>> copied,
                 std::uint64_t address, std::uint64_t access, const char* whose) {
    if (!copied.is_ok()) {
        return to_fi(copied.status());
    }
    hmem::CopiedMemory& copy = *copied.value();
    set_device(mr, copied.take(), address);
    mr.is_staged = mr.imported == nullptr;
    if (!mr.is_staged) {
        return 0;
    }
    if ((access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0) {
        RVT_WARN(kMr,
                 "cannot register %llu bytes of %s for peers: NIC %s does not reach them, or may "
                 "not (FI_HMEM_DISABLE_P2P); without FI_REMOTE_READ and FI_REMOTE_WRITE they are "
                 "copied",
                 static_cast<unsigned long long>(copy.bytes()), whose, mr.domain->name());
        return -FI_EOPNOTSUPP;
    }
    copy.keep_pages();
    const util::Status made = add_to_nic(mr, mr.memory->segments, access, nullptr);
    return made.is_ok() ? 0 : refuse_memory(mr, made);
}

int copy_for_nic(Mr& mr, const hmem::Claim& owner, std::uint64_t access) {
    return copy_for_nic(
        mr, hmem::CopiedMemory::make(*owner.claimant, owner.allocation, util::Status(EOPNOTSUPP)),
        owner.allocation.address, access, owner.claimant->name());
}

int take_device_for_nic(Mr& mr, const hmem::Claim& owner, std::uint64_t access) {
    if (!hmem::has_no_p2p()) {
        auto exported = owner.claimant->dma_buf(owner.allocation);
        if (exported.is_ok()) {
            const hmem::Claimant::DmaBuf dma_buf = exported.take();
            [[maybe_unused]] const util::Status imported = import_to_nic(
                mr,
                {.fd = dma_buf.fd.get(), .offset = dma_buf.offset, .bytes = owner.allocation.bytes},
                owner.allocation.address, access);
        }
    }
    return copy_for_nic(mr, owner, access);
}

int import_dma_buf(Mr& mr, const MrDmabuf& part, std::uint64_t access) {
    const hmem::DmaBufPart wanted{.fd = part.fd, .offset = part.offset, .bytes = part.len};
    const util::Status imported =
        hmem::has_no_p2p()
            ? util::Status(EOPNOTSUPP)
            : import_to_nic(mr, wanted, to_number(part.base_addr) + part.offset, access);
    if (!imported.is_ok() && imported.error() != EOPNOTSUPP) {
        return refuse_dma_buf(part, imported);
    }
    const std::uint64_t address = to_number(part.base_addr) + part.offset;
    auto mapped = hmem::DmaBufMemory::map(wanted, is_written(access));
    if (mapped.is_ok()) {
        return copy_for_nic(
            mr,
            hmem::CopiedMemory::make(std::make_unique<hmem::MappedCopier>(mapped.take()),
                                     {.address = address, .bytes = part.len}),
            address, access, "a dma-buf");
    }
    const hmem::Claim owner = owner_of(part);
    if (owner.claimant != nullptr) {
        return copy_for_nic(mr, owner, access);
    }
    if (imported.is_ok()) {
        return 0;
    }
    if (mapped.error() == EOPNOTSUPP) {
        RVT_WARN(kMr,
                 "NIC %s does not import dma-buf descriptor %d, or may not (FI_HMEM_DISABLE_P2P), "
                 "and no library of a device that copies it knows base_addr",
                 mr.domain->name(), part.fd);
    }
    return refuse_dma_buf(part, mapped.status());
}

/// Memory that the application says is of this interface, by which it may have allocated memory of
/// the host.
util::Result<hmem::Claim> find_owner(fi_hmem_iface iface, const iovec& buffer) {
    const auto kind = static_cast<hmem::Kind>(iface - FI_HMEM_CUDA);
    const util::Result<hmem::Claimant*> claimant = hmem::claimant_of(kind);
    if (!claimant.is_ok()) {
        RVT_WARN(kMr,
                 "cannot register: memory of iface %d; its library is not here, does not work, or "
                 "is switched off (FI_LOG_LEVEL=info says which)",
                 static_cast<int>(iface));
        return claimant.status();
    }
    if (claimant.value()->is_of_host(buffer.iov_base)) {
        return hmem::Claim{};
    }
    const auto found = claimant.value()->find(buffer.iov_base, buffer.iov_len);
    if (!found.is_ok()) {
        RVT_WARN(kMr, "cannot register %zu bytes at %p: they are not in one allocation of %s",
                 buffer.iov_len, buffer.iov_base, claimant.value()->name());
        return found.status();
    }
    return hmem::Claim{.claimant = claimant.value(), .allocation = found.value()};
}

/// Of the first buffer that has an owner.
util::Result<hmem::Claim> find_owner(int iface, std::span<const iovec> buffers) {
    for (const iovec& each : buffers) {
        hmem::Claim owner;
        if (iface != kAnyIface) {
            const auto found = find_owner(static_cast<fi_hmem_iface>(iface), each);
            if (!found.is_ok()) {
                return found;
            }
            owner = found.value();
        } else if (each.iov_len != 0) {
            owner = hmem::claim(each.iov_base, each.iov_len);
        }
        if (owner.claimant != nullptr) {
            return owner;
        }
    }
    return hmem::Claim{};
}

}  // namespace

Access to_access(std::uint64_t access, const Domain& domain) noexcept {
    Access result = domain.mr_mode.has_virtual_addresses ? Access::kNone : Access::kZeroBased;
    if ((access & FI_REMOTE_READ) != 0) {
        result = result | Access::kRemoteRead;
    }
    if ((access & FI_REMOTE_WRITE) != 0) {
        result = result | Access::kRemoteWrite | Access::kRemoteAtomic | Access::kLocalWrite;
    }
    if ((access & (FI_RECV | FI_READ)) != 0) {
        result = result | Access::kLocalWrite;
    }
    if ((access & FI_READ) != 0 && domain.nic != nullptr &&
        domain.nic->device().limits().reads_need_remote_write) {
        result = result | Access::kRemoteWrite;
    }
    return result;
}

Access to_nic_access(const Mr& mr, std::uint64_t access) noexcept {
    const Access rights = to_access(access, *mr.domain) | mr.wishes;
    return (mr.domain->caps & FI_ATOMIC) != 0 ? rights : without(rights, Access::kRemoteAtomic);
}

int take_host_memory(const Domain& domain, std::span<const iovec> buffers,
                     core::RegionMemory& memory) {
    if ((domain.caps & FI_HMEM) != 0) {
        const auto found = find_owner(kAnyIface, buffers);
        if (!found.is_ok() || found.value().claimant != nullptr) {
            RVT_WARN(kMr, "cannot register anew: a buffer is memory of a device");
            return -FI_EOPNOTSUPP;
        }
    }
    return take_buffers(memory, buffers);
}

int take_memory(Mr& mr, std::span<const iovec> buffers, int iface, std::uint64_t access,
                std::uint64_t flags) {
    if ((mr.domain->caps & FI_HMEM) == 0) {
        return take_buffers(mr, buffers);
    }
    hmem::Claim owner;
    if (iface != FI_HMEM_SYSTEM) {
        const auto found = find_owner(iface, buffers);
        if (!found.is_ok()) {
            return to_fi(found.status());
        }
        owner = found.value();
    }
    if (owner.claimant == nullptr) {
        if ((flags & FI_HMEM_DEVICE_ONLY) != 0) {
            RVT_WARN(kMr, "cannot register: FI_HMEM_DEVICE_ONLY asked for memory of no device");
            return -FI_EINVAL;
        }
        return take_buffers(mr, buffers);
    }
    if (buffers.size() != 1 || buffers.front().iov_len == 0) {
        RVT_WARN(kMr, "cannot register: %zu buffers of a device's memory; one that is not empty",
                 buffers.size());
        return -FI_EINVAL;
    }
    return mr.domain->nic != nullptr ? take_device_for_nic(mr, owner, access)
                                     : take_device(mr, owner, access);
}

int take_dma_buf(Mr& mr, const MrDmabuf& part, std::uint64_t access) {
    return mr.domain->nic != nullptr ? import_dma_buf(mr, part, access)
                                     : map_dma_buf(mr, part, access);
}

void name_by_nic(Mr& mr) noexcept {
    mr.handle.key = mr.nic_region->rkey();
    mr.base_address = mr.local_address;
}

int register_with_nic(Mr& mr, std::uint64_t access) {
    if (mr.nic_region == nullptr) {
        const util::Status made = add_to_nic(mr, mr.memory->segments, access, nullptr);
        if (!made.is_ok()) {
            return refuse_memory(mr, made);
        }
    }
    mr.handle.mem_desc = &mr;
    name_by_nic(mr);
    return 0;
}

}  // namespace rvt::ofi
