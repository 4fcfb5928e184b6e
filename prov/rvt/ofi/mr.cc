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
#include <utility>

#include "core/rd_endpoint.h"
#include "core/rd_types.h"
#include "ofi/cntr.h"
#include "ofi/ep_rdm.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/mr_change.h"
#include "ofi/mr_memory.h"
#include "util/fault_guard.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;
/// Applications name what they do with a region beside the access to it; no provider minds.
constexpr std::uint64_t kOperations = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
constexpr std::uint64_t kHmemFlags = FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY;
constexpr std::uint64_t kRegFlags =
    FI_RMA_EVENT | kMrSingleUse | kMrDmabuf | kHmemFlags | kWishFlags;

int check(const fi_mr_attr& attr, std::uint64_t flags) noexcept {
    if ((flags & ~kRegFlags) != 0) {
        RVT_WARN(kMr, "cannot register: flags 0x%llx are not known",
                 static_cast<unsigned long long>(flags & ~kRegFlags));
        return -FI_EBADFLAGS;
    }
    if (const int refused = check_access(attr.access); refused != 0) {
        return refused;
    }
    if (attr.offset != 0) {
        RVT_WARN(kMr, "cannot register: offset %llu asked; it has to be 0",
                 static_cast<unsigned long long>(attr.offset));
        return -FI_EINVAL;
    }
    return check_buffers(attr.mr_iov, attr.iov_count);
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
    const core::KeyAttr key_attr =
        to_key_attr(*mr.memory, mr.local_address, to_access(attr.access, *mr.domain));
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

/// fi_domain_bind(3) with FI_REG_MR: the outcome is an event as well.
void report(const Mr& mr) {
    if (mr.domain->eq != nullptr && mr.domain->eq_flags != 0) {
        const fi_eq_entry event{const_cast<fid*>(&mr.handle.fid), mr.handle.fid.context, 0};
        mr.domain->eq->push(FI_MR_COMPLETE, &event, sizeof event, event.fid);
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

/// Of a NIC's domain. What the NIC keeps is there to be closed once more.
util::Status deregister(Mr& mr) noexcept {
    const util::Status ended = core::dereg_mr(mr.nic_region.get());
    if (ended.is_ok()) {
        static_cast<void>(mr.nic_region.release());
    } else {
        RVT_WARN(kMr, "cannot close region 0x%llx: the NIC keeps it: %s",
                 static_cast<unsigned long long>(mr.handle.key), strerrordesc_np(ended.error()));
    }
    return ended;
}

/// From the call on the key fails.
util::Status withdraw(Mr& mr) noexcept {
    const util::Status removed =
        mr.domain->keys->remove(mr.table_key, kCloseTimeoutMs, marks_of(*mr.domain));
    if (removed.is_ok()) {
        withdraw_from_peers(mr);
    } else {
        RVT_WARN(kMr, "cannot close region 0x%llx: a peer uses its memory: %s",
                 static_cast<unsigned long long>(mr.handle.key), strerrordesc_np(removed.error()));
    }
    return removed;
}

/// Once withdrawn, the key of a region that cannot be closed yet may be that of another one, which
/// has a counter of its own.
void stop_counting(Mr& mr) noexcept {
    if (mr.remote_write != nullptr) {
        mr.domain->unwatch_key(mr.handle.key);
        std::exchange(mr.remote_write, nullptr)->users.drop();
    }
}

int mr_close(fid* self) noexcept {
    Mr& mr = Mr::from(self);
    stop_counting(mr);
    const util::Status removed = mr.nic_region != nullptr ? deregister(mr) : withdraw(mr);
    if (!removed.is_ok()) {
        return to_fi(removed);
    }
    if (mr.domain->eq != nullptr) {
        mr.domain->eq->forget(self);
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
    if (mr.domain->nic != nullptr) {
        RVT_WARN(kMr, "cannot bind a counter: the NIC does not tell what peers write");
        return -FI_EOPNOTSUPP;
    }
    return entry([&]() -> int {
        Cntr& cntr = Cntr::from(other);
        if (cntr.domain != mr.domain) {
            return -FI_EDOMAIN;
        }
        if (mr.remote_write != nullptr) {
            return -FI_EALREADY;
        }
        const util::Status watched = mr.domain->watch_key(mr.handle.key, cntr);
        if (!watched.is_ok()) {
            return to_fi(watched);
        }
        mr.remote_write = &cntr;
        if ((mr.domain->caps & FI_RMA_EVENT) == 0) {
            RVT_WARN(kMr,
                     "a counter that is bound to a region misses what peers of this host write by "
                     "themselves: FI_RMA_EVENT was not asked for");
        }
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
        case FI_REFRESH:
            return mr_refresh(Mr::from(self), *static_cast<const fi_mr_modify*>(argument));
        default: return -FI_ENOSYS;
    }
}

fi_ops mr_fid_ops = fid_ops(mr_close, mr_bind, mr_control, mr_ops_open);

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
    made->wishes = to_wishes(flags);
    made->handle.fid = {FI_CLASS_MR, attr.context, &mr_fid_ops};
    const std::span<const iovec> buffers{attr.mr_iov, attr.iov_count};
    const int taken =
        is_dma_buf
            ? take_dma_buf(*made, *reinterpret_cast<const MrDmabuf*>(attr.mr_iov), attr.access)
            : take_memory(*made, buffers, iface, attr.access, flags);
    if (taken != 0) {
        return taken;
    }
    const int added =
        domain.nic != nullptr ? register_with_nic(*made, attr.access) : add_key(*made, attr);
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

Access to_wishes(std::uint64_t flags) noexcept {
    const auto wish = [flags](std::uint64_t flag, Access access) {
        return (flags & flag) != 0 ? access : Access::kNone;
    };
    return wish(FI_RVT_MR_ON_DEMAND, Access::kOnDemand) |
           wish(FI_RVT_MR_RELAXED_ORDERING, Access::kRelaxedOrdering);
}

int check_access(std::uint64_t access) noexcept {
    const std::uint64_t unknown = access & ~(kAccess | kOperations);
    if (unknown != 0) {
        RVT_WARN(kMr, "cannot register: access 0x%llx is not known",
                 static_cast<unsigned long long>(unknown));
        return -FI_EINVAL;
    }
    return 0;
}

int check_buffers(const iovec* buffers, std::size_t count) noexcept {
    if (count == 0 || buffers == nullptr || count > kMaxMrIov) {
        RVT_WARN(kMr, "cannot register: %zu buffers%s; a region is of 1 to %zu", count,
                 buffers == nullptr ? " at a null pointer" : "", kMaxMrIov);
        return -FI_EINVAL;
    }
    return 0;
}

core::KeyAttr to_key_attr(const core::RegionMemory& memory, std::uint64_t address, Access access) {
    core::KeyAttr attr;
    attr.access = access;
    attr.indirect = memory.segments.size() > 1 || memory.device != nullptr;
    for (const iovec& segment : memory.segments) {
        attr.length += segment.iov_len;
    }
    attr.iova = address;
    attr.addr = attr.indirect ? reinterpret_cast<std::uintptr_t>(&memory) : address;
    return attr;
}

core::PeerMarks marks_of(Domain& domain) noexcept {
    return {.are_gone = no_peer_uses, .context = &domain};
}

void withdraw_from_peers(const Mr& mr) noexcept {
    const std::lock_guard guard(mr.domain->endpoints_lock);
    for (core::RdEndpoint* endpoint : mr.domain->endpoints) {
        endpoint->withdraw_key(mr.table_key);
    }
}

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
