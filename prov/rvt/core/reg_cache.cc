// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Finding, keeping and forgetting registrations.
#include "core/reg_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/device.h"
#include "util/log.h"

namespace rvt::core {
namespace {

using util::PageRange;

/// For whatever requests may do to the memory.
Access kept_access(const Device& device) noexcept {
    const Access access = Access::kLocalWrite | Access::kRemoteRead;
    return device.limits().reads_need_remote_write ? access | Access::kRemoteWrite : access;
}

// Of regions that begin at the same page or before, so many are looked at for one that is long
// enough; a further registration does no harm.
constexpr int kLooks = 16;

}  // namespace

std::string describe_registrations(const Device& nic) {
    const auto count = [&](Stat stat) { return std::to_string(nic.stats().sum(stat)); };
    return "registrations found " + count(Stat::kRegionsFound) + ", kept " +
           count(Stat::kRegionsKept) + ", for one use " + count(Stat::kRegionsOnce) +
           ", dropped for want of room " + count(Stat::kRegionsDropped) +
           ", of memory that changed " + count(Stat::kRegionsStale);
}

RegCache::RegCache(RegCacheAttr attr) : attr_(std::move(attr)) {
    if (keeps()) {
        index_.reserve(attr_.max_regions);
        position_ = attr_.watch->position();
    }
}

RegCache::~RegCache() {
    if (!keeps()) {
        return;
    }
    RVT_INFO(kMr, "NIC %s: %s", attr_.pd->device().name().c_str(),
             describe_registrations(attr_.pd->device()).c_str());
    forget_all();
}

Stats& RegCache::stats() const noexcept {
    return attr_.pd->device().stats();
}

// ---- use ----

Result<CachedRegion*> RegCache::take(const void* address, std::size_t length, Nic use,
                                     Want want) noexcept {
    const PageRange range = PageRange::of(address, length);
    const bool is_sure = keeps() && is_current();
    if (CachedRegion* const found = is_sure ? find(range) : nullptr) [[likely]] {
        if (found->uses_++ == 0) {
            unlink(*found);
        }
        stats().add(Stat::kRegionsFound);
        return found;
    }
    const Result<CachedRegion*> made = is_sure ? keep(range) : Result<CachedRegion*>(EOPNOTSUPP);
    return made.is_ok() || want == Want::kKept ? made : register_once(range, use);
}

void RegCache::give_back(CachedRegion& region) noexcept {
    if (--region.uses_ != 0) {
        return;
    }
    if (region.is_kept_) {
        link(region);
    } else {
        delete &region;
    }
}

/// Heeds what has changed. Returns: whether that is all.
bool RegCache::is_current() noexcept {
    if (!attr_.watch->is_settled()) [[unlikely]] {
        return false;
    }
    if (!attr_.watch->changes_since(position_, [this](const util::MemoryChange& change) noexcept {
            forget_changed(change);
        })) [[unlikely]] {
        forget_all();
    }
    return true;
}

// ---- the index ----

RegCache::Index::iterator RegCache::place_of(const PageRange& range) noexcept {
    return std::lower_bound(
        index_.begin(), index_.end(), range, [](const CachedRegion* a, const PageRange& b) {
            return a->range_.begin != b.begin ? a->range_.begin < b.begin : a->range_.end < b.end;
        });
}

CachedRegion* RegCache::find(const PageRange& range) const noexcept {
    auto at = std::upper_bound(
        index_.begin(), index_.end(), range.begin,
        [](std::uintptr_t begin, const CachedRegion* a) { return begin < a->range_.begin; });
    for (int looks = 0; looks < kLooks && at != index_.begin(); ++looks) {
        if ((*--at)->range_.end >= range.end) {
            return *at;
        }
    }
    return nullptr;
}

// ---- registering ----

Result<CachedRegion*> RegCache::make(const PageRange& range, Access access) noexcept {
    auto* const region = new (std::nothrow) CachedRegion;
    if (region == nullptr) {
        return ENOMEM;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const iovec pages{reinterpret_cast<void*>(range.begin), range.bytes()};
    Status made = EAGAIN;
    do {
        made =
            core::keep(region->mr_, reg_mr(*attr_.pd, {.segments = {&pages, 1}, .access = access}));
        // What is kept for later may be what there is too much of now.
    } while (!made.is_ok() && made.error() != EFAULT && drop_oldest());
    if (!made.is_ok()) {
        delete region;
        return made;
    }
    region->range_ = range;
    region->uses_ = 1;
    return region;
}

/// Watches before it registers, so that no change goes unnoticed in between.
Result<CachedRegion*> RegCache::keep(const PageRange& range) noexcept {
    if (attr_.watch->has_shared(range) || !make_room(range)) {
        return EOPNOTSUPP;
    }
    if (const Status watched = attr_.watch->add(range); !watched.is_ok()) {
        return EOPNOTSUPP;
    }
    auto made = make(range, kept_access(attr_.pd->device()));
    if (!made.is_ok()) {
        attr_.watch->remove(range);
        return made;
    }
    CachedRegion& region = *made.value();
    region.is_kept_ = true;
    index_.insert(place_of(range), &region);
    bytes_ += range.bytes();
    stats().add(Stat::kRegionsKept);
    if (!attr_.watch->is_private(range) || !is_current()) {
        forget(region, false);
    }
    return &region;
}

Result<CachedRegion*> RegCache::register_once(const PageRange& range, Nic use) noexcept {
    auto made = make(range, kept_access(attr_.pd->device()));
    if (!made.is_ok() && use == Nic::kReads) {
        made = make(range, Access::kRemoteRead);  // the application may not write it either
    }
    if (made.is_ok()) {
        stats().add(Stat::kRegionsOnce);
    }
    return made;
}

// ---- forgetting ----

bool RegCache::make_room(const PageRange& range) noexcept {
    if (range.bytes() > attr_.max_bytes) {
        return false;
    }
    while (bytes_ + range.bytes() > attr_.max_bytes || index_.size() >= attr_.max_regions) {
        if (!drop_oldest()) {
            return false;
        }
    }
    return true;
}

/// Returns: whether there was one.
bool RegCache::drop_oldest() noexcept {
    if (oldest_ == nullptr) {
        return false;
    }
    stats().add(Stat::kRegionsDropped);
    forget(*oldest_, false);
    return true;
}

/// It is not found any more, and ends with its last use.
void RegCache::forget(CachedRegion& region, bool is_unmapped) noexcept {
    const auto place = std::find(place_of(region.range_), index_.end(), &region);
    index_.erase(place);
    bytes_ -= region.range_.bytes();
    attr_.watch->remove(region.range_, is_unmapped);
    region.is_kept_ = false;
    if (region.uses_ == 0) {
        unlink(region);
        delete &region;
    }
}

void RegCache::forget_changed(const util::MemoryChange& change) noexcept {
    for (std::size_t i = 0; i < index_.size();) {
        CachedRegion& region = *index_[i];
        if (region.range_.begin >= change.range.end) {
            break;
        }
        if (region.range_.overlaps(change.range)) {
            stats().add(Stat::kRegionsStale);
            forget(region, change.is_unmapped);
        } else {
            ++i;
        }
    }
}

void RegCache::forget_all() noexcept {
    while (!index_.empty()) {
        forget(*index_.back(), false);
    }
}

// ---- those not in use ----

void RegCache::link(CachedRegion& region) noexcept {
    region.older_ = newest_;
    region.newer_ = nullptr;
    (newest_ != nullptr ? newest_->newer_ : oldest_) = &region;
    newest_ = &region;
}

void RegCache::unlink(CachedRegion& region) noexcept {
    (region.older_ != nullptr ? region.older_->newer_ : oldest_) = region.newer_;
    (region.newer_ != nullptr ? region.newer_->older_ : newest_) = region.older_;
    region.older_ = region.newer_ = nullptr;
}

}  // namespace rvt::core
