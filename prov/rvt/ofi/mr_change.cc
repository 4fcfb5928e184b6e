// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/mr_change.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "core/mr.h"
#include "ofi/errors.h"
#include "ofi/mr_memory.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

bool is_of_device(const Mr& mr) noexcept {
    return mr.device != nullptr || mr.imported != nullptr;
}

int refuse_device(const char* what) noexcept {
    RVT_WARN(kMr, "cannot %s a region of a device's memory; close it, and register anew", what);
    return -FI_EOPNOTSUPP;
}

std::uint64_t to_number(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

// ---- other buffers, other access ----

struct Change {
    std::unique_ptr<core::RegionMemory> memory;  // nullptr: that which it has
    std::uint64_t access;                        // FI_SEND ... FI_REMOTE_WRITE
    Access wishes;
};

int tell(const Mr& mr, util::Status why) noexcept {
    RVT_WARN(kMr, "cannot register region 0x%llx anew: %s%s",
             static_cast<unsigned long long>(mr.handle.key),
             why.error() == EBUSY ? "a peer uses its memory: " : "", strerrordesc_np(why.error()));
    return to_fi(why);
}

void take(Mr& mr, Change& change) noexcept {
    if (change.memory != nullptr) {
        mr.memory = std::move(change.memory);
        mr.local_address = to_number(mr.memory->segments.front().iov_base);
    }
    mr.wishes = change.wishes;
}

/// Nobody uses what the key stood for. While it fails, the NICs of flows are told as well: who
/// asked them now for a key of the former memory would get it for the new one.
bool is_withdrawn(void* region, std::uint32_t key) noexcept {
    const Mr& mr = *static_cast<const Mr*>(region);
    const core::PeerMarks marks = marks_of(*mr.domain);
    if (!marks.are_gone(marks.context, key)) {
        return false;
    }
    withdraw_from_peers(mr);
    return true;
}

/// In the domain's table the key fails until nobody uses what it stood for.
int change_in_table(Mr& mr, Change& change) {
    const core::RegionMemory& memory = change.memory != nullptr ? *change.memory : *mr.memory;
    const core::KeyAttr attr = to_key_attr(memory, to_number(memory.segments.front().iov_base),
                                           to_access(change.access, *mr.domain));
    const util::Status replaced = mr.domain->keys->replace(
        mr.table_key, attr, kCloseTimeoutMs, {.are_gone = is_withdrawn, .context = &mr});
    if (!replaced.is_ok()) {
        return tell(mr, replaced);
    }
    take(mr, change);
    mr.base_address = mr.domain->mr_mode.has_virtual_addresses ? attr.iova : 0;
    return 0;
}

int change_at_nic(Mr& mr, Change& change) {
    const Access before = std::exchange(mr.wishes, change.wishes);
    core::MrRereg to{.changes = MrChange::kAccess,
                     .attr = {.access = to_nic_access(mr, change.access)}};
    if (change.memory != nullptr) {
        to.changes = to.changes | MrChange::kTranslation;
        to.attr.segments = change.memory->segments;
    }
    const util::Status changed = core::rereg_mr(*mr.nic_region, to);
    if (!changed.is_ok()) {
        mr.wishes = before;
        return tell(mr, changed);
    }
    take(mr, change);
    name_by_nic(mr);
    return 0;
}

int reregister(Mr& mr, std::span<const iovec> buffers, std::uint64_t access, std::uint64_t flags) {
    if (is_of_device(mr)) {
        return refuse_device("change");
    }
    Change change{.memory = nullptr, .access = access, .wishes = to_wishes(flags)};
    if (!buffers.empty()) {
        change.memory = std::make_unique<core::RegionMemory>();
        const int taken = take_host_memory(*mr.domain, buffers, *change.memory);
        if (taken != 0) {
            return taken;
        }
    }
    return mr.nic_region != nullptr ? change_at_nic(mr, change) : change_in_table(mr, change);
}

int mr_reregister(fid_mr* self, const iovec* buffers, std::size_t count, std::uint64_t access,
                  std::uint64_t flags) noexcept {
    if ((flags & ~kWishFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    const bool has_buffers = buffers != nullptr || count != 0;
    if (const int refused = has_buffers ? check_buffers(buffers, count) : 0; refused != 0) {
        return refused;
    }
    if (const int refused = check_access(access); refused != 0) {
        return refused;
    }
    return entry([&] { return reregister(Mr::from(self), {buffers, count}, access, flags); });
}

// ---- advice ----

std::uint64_t bytes_of(const core::RegionMemory& memory) noexcept {
    std::uint64_t bytes = 0;
    for (const iovec& segment : memory.segments) {
        bytes += segment.iov_len;
    }
    return bytes;
}

util::Status advise(const Mr& mr, MrAdvice advice, std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t all =
        mr.nic_region != nullptr ? mr.nic_region->length() : bytes_of(*mr.memory);
    if (offset > all || bytes > all - offset) {
        return EINVAL;
    }
    if (is_of_device(mr)) {
        return util::kOk;
    }
    if (mr.nic_region != nullptr) {
        return core::advise_mr(*mr.nic_region, advice, offset, bytes);
    }
    return bytes != 0 ? core::prefetch(*mr.memory, advice, offset, bytes) : util::kOk;
}

int mr_advise(fid_mr* self, fi_rvt_mr_advice advice, std::uint64_t offset,
              std::uint64_t bytes) noexcept {
    static_assert(static_cast<int>(MrAdvice::kPrefetch) == FI_RVT_MR_PREFETCH &&
                  static_cast<int>(MrAdvice::kPrefetchWrite) == FI_RVT_MR_PREFETCH_WRITE &&
                  static_cast<int>(MrAdvice::kPrefetchNoFault) == FI_RVT_MR_PREFETCH_NO_FAULT);
    if (static_cast<unsigned>(advice) > FI_RVT_MR_PREFETCH_NO_FAULT) {
        return -FI_EINVAL;
    }
    return to_fi(ofi::advise(Mr::from(self), static_cast<MrAdvice>(advice), offset, bytes));
}

fi_rvt_ops_mr mr_extension = {
    .size = sizeof(fi_rvt_ops_mr),
    .reregister = mr_reregister,
    .advise = mr_advise,
};

// ---- pages that have changed ----

/// Whether the part lies in one buffer, or in several that follow each other, of the region.
bool has_part(const Mr& mr, const iovec& part) noexcept {
    return std::ranges::any_of(mr.memory->segments, [&](const iovec& segment) {
        const std::uint64_t at = to_number(part.iov_base) - to_number(segment.iov_base);
        return at <= segment.iov_len && part.iov_len <= segment.iov_len - at;
    });
}

/// A NIC that has pinned what was there registers it anew, all of it.
int refresh_at_nic(Mr& mr) {
    if (has_any(mr.nic_region->access(), Access::kOnDemand)) {
        return 0;
    }
    const util::Status changed = core::rereg_mr(
        *mr.nic_region,
        {.changes = MrChange::kTranslation, .attr = {.segments = mr.memory->segments}});
    if (!changed.is_ok()) {
        return tell(mr, changed);
    }
    name_by_nic(mr);
    return 0;
}

/// The CPU finds the pages by itself. But a peer may have mapped the file that was there, or its
/// NIC may know them.
int refresh_in_table(const Mr& mr) {
    const util::Status renewed = mr.domain->keys->renew(mr.table_key);
    if (!renewed.is_ok()) {
        return tell(mr, renewed);
    }
    withdraw_from_peers(mr);
    return 0;
}

}  // namespace

int mr_refresh(Mr& mr, const fi_mr_modify& of) noexcept {
    if (of.flags != 0) {
        return -FI_EBADFLAGS;
    }
    const std::size_t count = of.attr.iov_count;
    if (of.attr.mr_iov == nullptr && count != 0) {
        return -FI_EINVAL;
    }
    if (is_of_device(mr)) {
        return refuse_device("refresh");
    }
    if (!std::all_of(of.attr.mr_iov, of.attr.mr_iov + count,
                     [&](const iovec& part) { return has_part(mr, part); })) {
        RVT_WARN(kMr, "cannot refresh region 0x%llx: a part of the %zu is not within it",
                 static_cast<unsigned long long>(mr.handle.key), count);
        return -FI_EINVAL;
    }
    return entry(
        [&] { return mr.nic_region != nullptr ? refresh_at_nic(mr) : refresh_in_table(mr); });
}

int mr_ops_open(fid* /*self*/, const char* name, std::uint64_t flags, void** ops,
                void* /*context*/) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (std::strcmp(name, FI_RVT_MR_OPS) != 0) {
        return -FI_ENOSYS;
    }
    *ops = &mr_extension;
    return 0;
}

}  // namespace rvt::ofi
