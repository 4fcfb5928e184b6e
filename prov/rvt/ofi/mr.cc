// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Registration. fi_mr(3). Local access needs none here, so a region is only what peers may do to
// it.
//
// | domain                | remote address of the first byte | key                            |
// |-----------------------|----------------------------------|--------------------------------|
// | FI_MR_VIRT_ADDR       | its virtual address              |                                |
// | without               | 0                                |                                |
// | FI_MR_PROV_KEY        |                                  | the table's, 32 bits           |
// | without               |                                  | the application's, 64 bits     |
#include "ofi/mr.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "core/rd_endpoint.h"
#include "core/rd_types.h"
#include "hmem/claimants.h"
#include "hmem/copied_memory.h"
#include "hmem/dma_buf_memory.h"
#include "hmem/imported_memory.h"
#include "hmem/mapped_copier.h"
#include "ofi/cntr.h"
#include "ofi/ep_rdm.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "util/fault_guard.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

// A null buffer of at least this many bytes stands for all memory.
constexpr std::size_t kAllMemory = std::size_t{1} << 47;
constexpr int kCloseTimeoutMs = 5000;
// fi_mr_reg and fi_mr_regv do not say whose the memory is.
constexpr int kAnyIface = -1;
static_assert(FI_HMEM_CUDA == 1 && FI_HMEM_ROCR == 2 && FI_HMEM_ZE == 3);
constexpr std::uint64_t kAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;
constexpr std::uint64_t kHmemFlags = FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY;
constexpr std::uint64_t kRegFlags = FI_RMA_EVENT | kMrSingleUse | kMrDmabuf | kHmemFlags;

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
    return result;
}

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

/// The table's view of the region. Precondition: mr.memory and mr.local_address are set.
core::KeyAttr to_key_attr(const Mr& mr, std::uint64_t access) noexcept {
    core::KeyAttr attr;
    attr.access = to_access(access, *mr.domain);
    attr.indirect = mr.memory.segments.size() > 1 || mr.memory.device != nullptr;
    for (const iovec& segment : mr.memory.segments) {
        attr.length += segment.iov_len;
    }
    attr.iova = mr.local_address;
    attr.addr = attr.indirect ? to_number(&mr.memory) : attr.iova;
    return attr;
}

int check(const fi_mr_attr& attr, std::uint64_t flags) noexcept {
    if ((flags & ~kRegFlags) != 0) {
        RVT_WARN(kMr, "cannot register: flags 0x%llx are not known",
                 static_cast<unsigned long long>(flags & ~kRegFlags));
        return -FI_EBADFLAGS;
    }
    if ((attr.access & ~kAccess) != 0 || attr.offset != 0 || attr.iov_count == 0 ||
        attr.mr_iov == nullptr || attr.iov_count > kMaxMrIov) {
        RVT_WARN(kMr,
                 "cannot register: access 0x%llx, offset %llu, %zu buffers; at most %zu buffers, "
                 "offset 0",
                 static_cast<unsigned long long>(attr.access),
                 static_cast<unsigned long long>(attr.offset), attr.iov_count, kMaxMrIov);
        return -FI_EINVAL;
    }
    return 0;
}

// ---- ordinary memory ----

int take_buffers(Mr& mr, std::span<const iovec> buffers) {
    for (const iovec& buffer : buffers) {
        if (buffer.iov_base == nullptr && buffer.iov_len != 0 && buffer.iov_len < kAllMemory) {
            RVT_WARN(kMr, "cannot register: %zu bytes at a null pointer", buffer.iov_len);
            return -FI_EINVAL;
        }
    }
    mr.memory.segments = merge(buffers);
    mr.memory.index();
    mr.local_address = to_number(mr.memory.segments.front().iov_base);
    return 0;
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
    mr.memory.segments = {{mr.device->data(), mr.device->bytes()}};
    mr.memory.device = mr.device.get();
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

int take_device(Mr& mr, const hmem::Claim& owner, std::uint64_t access) {
    auto opened = open_device(owner, access);
    if (!opened.is_ok()) {
        RVT_WARN(kMr, "cannot register %llu bytes of %s: %s",
                 static_cast<unsigned long long>(owner.allocation.bytes), owner.claimant->name(),
                 strerrordesc_np(opened.error()));
        return to_fi(opened.status());
    }
    RVT_INFO(kMr, "%llu bytes of %s at 0x%llx are %s",
             static_cast<unsigned long long>(owner.allocation.bytes), owner.claimant->name(),
             static_cast<unsigned long long>(owner.allocation.address),
             opened.value()->is_copy() ? "copied to and from the host" : "mapped");
    set_device(mr, opened.take(), owner.allocation.address);
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
int take_dma_buf(Mr& mr, const MrDmabuf& part, std::uint64_t access) {
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
             mr.memory.segments.size(), mr.memory.segments.front().iov_len, mr.domain->name(),
             strerrordesc_np(why.error()),
             why.error() == ENOMEM ? "; look at the limit of locked memory (ulimit -l)" : "");
    return to_fi(why);
}

/// With the NIC. Returns: as core::reg_mr().
util::Status add_to_nic(Mr& mr, std::span<const iovec> segments, std::uint64_t access,
                        core::DeviceMemory* device) {
    Access rights = to_access(access, *mr.domain);
    if ((mr.domain->caps & FI_ATOMIC) == 0) {
        rights = without(rights, Access::kRemoteAtomic);
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
    const util::Status made = add_to_nic(mr, mr.memory.segments, access, nullptr);
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

int take_dma_buf_for_nic(Mr& mr, const MrDmabuf& part, std::uint64_t access) {
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

/// Memory that the application says is of this interface.
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
    const auto found = claimant.value()->find(buffer.iov_base, buffer.iov_len);
    if (!found.is_ok()) {
        RVT_WARN(kMr, "cannot register %zu bytes at %p: they are not in one allocation of %s",
                 buffer.iov_len, buffer.iov_base, claimant.value()->name());
        return found.status();
    }
    return hmem::Claim{.claimant = claimant.value(), .allocation = found.value()};
}

/// Whatever a domain with FI_HMEM is given by address.
/// @param iface  FI_HMEM_SYSTEM, one of a claimant, or kAnyIface: the claimants are asked.
int take_any(Mr& mr, std::span<const iovec> buffers, int iface, std::uint64_t access,
             std::uint64_t flags) {
    const iovec& first = buffers.front();
    hmem::Claim owner;
    if (iface == kAnyIface) {
        owner = first.iov_len != 0 ? hmem::claim(first.iov_base, first.iov_len) : owner;
    } else if (iface != FI_HMEM_SYSTEM) {
        auto found = find_owner(static_cast<fi_hmem_iface>(iface), first);
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
    if (buffers.size() != 1 || first.iov_len == 0) {
        RVT_WARN(kMr, "cannot register: %zu buffers of a device's memory; one that is not empty",
                 buffers.size());
        return -FI_EINVAL;
    }
    return mr.domain->nic != nullptr ? take_device_for_nic(mr, owner, access)
                                     : take_device(mr, owner, access);
}

/// Who may name one: fi_mr(3), "dmabuf".
int check_dma_buf(const Domain& domain, const fi_mr_attr& attr) noexcept {
    if ((domain.caps & FI_HMEM) == 0) {
        RVT_WARN(kMr, "cannot register: FI_MR_DMABUF asked; a domain opened with FI_HMEM has it");
        return -FI_EBADFLAGS;
    }
    if (attr.iov_count != 1) {
        RVT_WARN(kMr, "cannot register: %zu dma-bufs asked; one region is of one", attr.iov_count);
        return -FI_EINVAL;
    }
    return 0;
}

/// Whose memory it is, as far as flags and interface say. Returns: an error when they contradict.
int check_owner(const Domain& domain, int& iface, std::uint64_t flags) noexcept {
    const std::uint64_t asked = flags & kHmemFlags;
    if (asked == 0) {
        return 0;
    }
    if ((domain.caps & FI_HMEM) == 0) {
        RVT_WARN(kMr, "cannot register: flags 0x%llx are for a domain opened with FI_HMEM",
                 static_cast<unsigned long long>(asked));
        return -FI_EBADFLAGS;
    }
    if (asked == kHmemFlags || (flags & kMrDmabuf) != 0) {
        RVT_WARN(kMr, "cannot register: flags 0x%llx contradict each other",
                 static_cast<unsigned long long>(flags));
        return -FI_EINVAL;
    }
    // Memory of the host that a device's interface has allocated is the CPU's as any other.
    iface = asked == FI_HMEM_HOST_ALLOC ? FI_HMEM_SYSTEM : iface;
    return 0;
}

int add_key(Mr& mr, const fi_mr_attr& attr) {
    util::catch_faults();
    const core::KeyAttr key_attr = to_key_attr(mr, attr.access);
    const bool has_provider_keys = mr.domain->mr_mode.has_provider_keys;
    const util::Result<std::uint32_t> key =
        has_provider_keys ? mr.domain->keys->add(key_attr)
                          : mr.domain->keys->add_user(key_attr, attr.requested_key);
    if (!key.is_ok()) {
        RVT_WARN(kMr, "cannot register %llu bytes under key 0x%llx: %s",
                 static_cast<unsigned long long>(key_attr.length),
                 static_cast<unsigned long long>(attr.requested_key), strerrordesc_np(key.error()));
        // fi_mr(3): FI_ENOKEY is a requested key that is in use.
        return key.error() == EEXIST ? -FI_ENOKEY : to_fi(key.status());
    }
    mr.table_key = key.value();
    mr.handle.key = has_provider_keys ? key.value() : attr.requested_key;
    mr.base_address = mr.domain->mr_mode.has_virtual_addresses ? key_attr.iova : 0;
    return 0;
}

/// Local access needs the region's descriptor there.
int register_with_nic(Mr& mr, const fi_mr_attr& attr) {
    if (mr.nic_region == nullptr) {
        const util::Status made = add_to_nic(mr, mr.memory.segments, attr.access, nullptr);
        if (!made.is_ok()) {
            return refuse_memory(mr, made);
        }
    }
    mr.handle.key = mr.nic_region->rkey();
    mr.handle.mem_desc = &mr;
    mr.base_address = mr.local_address;
    return 0;
}

/// fi_domain_bind(3) with FI_REG_MR: the outcome is an event as well.
void report(const Mr& mr) {
    if (mr.domain->eq != nullptr && mr.domain->eq_flags != 0) {
        const fi_eq_entry event{const_cast<fid*>(&mr.handle.fid), mr.handle.fid.context, 0};
        mr.domain->eq->push(FI_MR_COMPLETE, &event, sizeof event);
    }
}

bool no_peer_uses(void* domain, std::uint32_t key) noexcept {
    auto& opened = *static_cast<Domain*>(domain);
    const std::lock_guard guard(opened.endpoints_lock);
    for (core::RdEndpoint* endpoint : opened.endpoints) {
        if (endpoint->uses_key(key)) {
            return false;
        }
    }
    return true;
}

/// From the call on the key fails.
util::Status withdraw(Mr& mr) noexcept {
    if (mr.nic_region != nullptr) {
        mr.nic_region.reset();
        return util::kOk;
    }
    const util::Status removed =
        mr.domain->keys->remove(mr.table_key, kCloseTimeoutMs, {no_peer_uses, mr.domain});
    if (removed.is_ok()) {
        const std::lock_guard guard(mr.domain->endpoints_lock);
        for (core::RdEndpoint* endpoint : mr.domain->endpoints) {
            endpoint->withdraw_key(mr.table_key);
        }
    }
    return removed;
}

int mr_close(fid* self) noexcept {
    Mr& mr = Mr::from(self);
    const util::Status removed = withdraw(mr);
    if (!removed.is_ok()) {
        RVT_WARN(kMr, "cannot close region 0x%llx: a peer uses its memory: %s",
                 static_cast<unsigned long long>(mr.handle.key), strerrordesc_np(removed.error()));
        return to_fi(removed);
    }
    if (mr.remote_write != nullptr) {
        mr.domain->unwatch_key(mr.handle.key);
        mr.remote_write->users.drop();
    }
    mr.domain->users.drop();
    delete &mr;
    return 0;
}

/// Endpoints may be bound where FI_MR_ENDPOINT is the application's habit; a counter counts what
/// peers write.
int mr_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    Mr& mr = Mr::from(self);
    if (other == nullptr) {
        return -FI_EINVAL;
    }
    if (other->fclass == FI_CLASS_EP) {
        return flags == 0 ? 0 : -FI_EBADFLAGS;
    }
    if (other->fclass != FI_CLASS_CNTR) {
        return -FI_EINVAL;
    }
    if (flags != FI_REMOTE_WRITE) {
        return -FI_EBADFLAGS;
    }
    return entry([&]() -> int {
        if (mr.remote_write != nullptr) {
            return -FI_EALREADY;
        }
        mr.domain->watch_key(mr.handle.key, &Cntr::from(other));
        mr.remote_write = &Cntr::from(other);
        mr.remote_write->users.add();
        return 0;
    });
}

int raw_attributes(const Mr& mr, const struct fi_mr_raw_attr& raw) noexcept {
    const std::size_t room = *raw.key_size;
    *raw.key_size = sizeof mr.handle.key;
    if (raw.base_addr != nullptr) {
        *raw.base_addr = mr.base_address;
    }
    if (room < sizeof mr.handle.key || raw.raw_key == nullptr) {
        return -FI_ETOOSMALL;
    }
    std::memcpy(raw.raw_key, &mr.handle.key, sizeof mr.handle.key);
    return 0;
}

/// A region is usable from its registration on; fi_mr_enable has nothing left to do.
int mr_control(fid* self, int command, void* argument) noexcept {
    switch (command) {
        case FI_ENABLE: return 0;
        case FI_GET_RAW_MR:
            return raw_attributes(Mr::from(self), *static_cast<struct fi_mr_raw_attr*>(argument));
        default: return -FI_ENOSYS;
    }
}

fi_ops mr_fid_ops = fid_ops(mr_close, mr_bind, mr_control);

int reg(Domain& domain, const fi_mr_attr& attr, int iface, std::uint64_t flags, fid_mr** mr) {
    const int refused = check(attr, flags);
    if (refused != 0) {
        return refused;
    }
    const bool is_dma_buf = (flags & kMrDmabuf) != 0;
    if (const int unfit = is_dma_buf ? check_dma_buf(domain, attr) : 0; unfit != 0) {
        return unfit;
    }
    if (const int unfit = check_owner(domain, iface, flags); unfit != 0) {
        return unfit;
    }
    auto made = std::make_unique<Mr>();
    made->domain = &domain;
    made->handle.fid = {FI_CLASS_MR, attr.context, &mr_fid_ops};
    const auto& dma_buf = *reinterpret_cast<const MrDmabuf*>(attr.mr_iov);
    const int taken =
        is_dma_buf ? (domain.nic != nullptr ? take_dma_buf_for_nic(*made, dma_buf, attr.access)
                                            : take_dma_buf(*made, dma_buf, attr.access))
        : (domain.caps & FI_HMEM) != 0
            ? take_any(*made, {attr.mr_iov, attr.iov_count}, iface, attr.access, flags)
            : take_buffers(*made, {attr.mr_iov, attr.iov_count});
    if (taken != 0) {
        return taken;
    }
    const int added = domain.nic != nullptr ? register_with_nic(*made, attr) : add_key(*made, attr);
    if (added != 0) {
        return added;
    }
    report(*made);
    domain.users.add();
    *mr = &made.release()->handle;
    return 0;
}

int mr_regv(fid* self, const iovec* buffers, std::size_t count, std::uint64_t access,
            std::uint64_t offset, std::uint64_t requested_key, std::uint64_t flags, fid_mr** mr,
            void* context) noexcept {
    if ((flags & kMrDmabuf) != 0) {
        RVT_WARN(kMr, "cannot register: FI_MR_DMABUF asked; fi_mr_regattr has it");
        return -FI_EBADFLAGS;
    }
    fi_mr_attr attr{};
    attr.mr_iov = buffers;
    attr.iov_count = count;
    attr.access = access;
    attr.offset = offset;
    attr.requested_key = requested_key;
    attr.context = context;
    return entry([&] { return reg(Domain::from(self), attr, kAnyIface, flags, mr); });
}

int mr_reg(fid* self, const void* buffer, std::size_t bytes, std::uint64_t access,
           std::uint64_t offset, std::uint64_t requested_key, std::uint64_t flags, fid_mr** mr,
           void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), bytes};
    return mr_regv(self, &one, 1, access, offset, requested_key, flags, mr, context);
}

int mr_regattr(fid* self, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** mr) noexcept {
    if (attr == nullptr) {
        return -FI_EINVAL;
    }
    Domain& domain = Domain::from(self);
    // The fields after `context` exist for callers of their version only.
    constexpr std::uint32_t kVersionAuthKey = FI_VERSION(1, 5);
    constexpr std::uint32_t kVersionIface = FI_VERSION(1, 9);
    if (domain.version() >= kVersionAuthKey && attr->auth_key_size != 0) {
        return -FI_EINVAL;
    }
    // A dma-buf is reached by its descriptor, whatever device it is of.
    const bool has_iface = domain.version() >= kVersionIface && (domain.caps & FI_HMEM) != 0;
    const int iface = has_iface && (flags & kMrDmabuf) == 0 ? attr->iface : FI_HMEM_SYSTEM;
    if (iface < FI_HMEM_SYSTEM || iface > FI_HMEM_ZE) {
        RVT_WARN(kMr,
                 "cannot register: memory of iface %d; FI_HMEM_SYSTEM, _CUDA, _ROCR and _ZE (0 to "
                 "3), and FI_MR_DMABUF of any, are offered",
                 iface);
        return -FI_ENOSYS;
    }
    fi_mr_attr copy{};
    copy.mr_iov = attr->mr_iov;
    copy.iov_count = attr->iov_count;
    copy.access = attr->access;
    copy.offset = attr->offset;
    copy.requested_key = attr->requested_key;
    copy.context = attr->context;
    return entry([&] { return reg(domain, copy, iface, flags, mr); });
}

}  // namespace

bool to_device(Sge& element, const void* desc) noexcept {
    const Mr& mr = *static_cast<const Mr*>(desc);
    const std::uint64_t at = element.addr - mr.local_address;
    // Without virtual addresses a region begins at 0 for its own process, too.
    element.addr = mr.domain->mr_mode.has_virtual_addresses ? element.addr : at;
    element.lkey = mr.table_key;
    return at <= mr.device->bytes() && element.length <= mr.device->bytes() - at && !mr.is_staged;
}

bool copy_is_needed(void* const* desc, std::size_t count) noexcept {
    return std::any_of(desc, desc + count, [](const void* each) {
        return each != nullptr && static_cast<const Mr*>(each)->is_staged;
    });
}

constinit fi_ops_mr domain_mr_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = mr_reg,
    .regv = mr_regv,
    .regattr = mr_regattr,
};

int domain_map_raw_key(struct fi_mr_map_raw* map) noexcept {
    if (map->key_size != sizeof(std::uint64_t)) {
        return -FI_EINVAL;
    }
    std::memcpy(map->key, map->raw_key, sizeof(std::uint64_t));
    return 0;
}

void count_region_access(void* domain, std::uint64_t key, std::uint64_t wc_flags) noexcept {
    if ((wc_flags & FI_REMOTE_WRITE) != 0) {
        static_cast<Domain*>(domain)->count_key(key);
    }
}

}  // namespace rvt::ofi
