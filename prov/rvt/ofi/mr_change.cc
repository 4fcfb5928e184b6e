// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/mr_change.h"

#include <algorithm>
#include <cstddef>

#include "core/mr.h"
#include "ofi/errors.h"
#include "ofi/mr_memory.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

bool is_of_device(const Mr& mr) noexcept {
    return mr.device != nullptr || mr.imported != nullptr;
}

int refuse_device() noexcept {
    RVT_WARN(kMr, "cannot refresh a region of a device's memory; close it, and register anew");
    return -FI_EOPNOTSUPP;
}

std::uint64_t to_number(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

int tell(const Mr& mr, util::Status why) noexcept {
    RVT_WARN(kMr, "cannot register region 0x%llx anew: %s",
             static_cast<unsigned long long>(mr.handle.key), strerrordesc_np(why.error()));
    return to_fi(why);
}

// ---- pages that have changed ----

/// Whether the part lies in one buffer, or in several that follow each other, of the region.
bool has_part(const Mr& mr, const iovec& part) noexcept {
    return std::ranges::any_of(mr.memory.segments, [&](const iovec& segment) {
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
        {.changes = MrChange::kTranslation, .attr = {.segments = mr.memory.segments}});
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
        return refuse_device();
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

}  // namespace rvt::ofi
