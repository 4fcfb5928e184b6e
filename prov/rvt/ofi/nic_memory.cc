// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lending registered memory to requests of a NIC's domain.
#include "ofi/nic_memory.h"

#include <algorithm>

#include <sys/mman.h>

#include "core/device.h"
#include "core/shortage.h"
#include "util/log.h"
#include "util/long_copy.h"
#include "util/memory_watch.h"
#include "util/params.h"

namespace rvt::ofi {
namespace {

using util::ParamId;

std::byte* place_of(const Sge& element) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<std::byte*>(element.addr);
}

core::RegCacheAttr attr_of(core::Pd& pd) {
    core::RegCacheAttr attr = registrations_of_params();
    attr.pd = &pd;
    return attr;
}

}  // namespace

bool keeps_registrations() noexcept {
    if (!util::param_is_set(ParamId::kMrCache)) {
        return false;
    }
    // A system that has allowed it once goes on to do so.
    static const bool kIsWatched = util::MemoryWatch::acquire().is_ok();
    return kIsWatched;
}

core::RegCacheAttr registrations_of_params() {
    core::RegCacheAttr attr{
        .max_bytes = static_cast<std::uint64_t>(util::param_number(ParamId::kMrCacheBytes)),
        .max_regions = static_cast<std::size_t>(util::param_number(ParamId::kMrCacheCount))};
    if (keeps_registrations()) {
        auto watch = util::MemoryWatch::acquire();
        attr.watch = watch.is_ok() ? watch.take() : nullptr;
    }
    return attr;
}

void NicMemory::Unmap::operator()(std::byte* memory) const noexcept {
    munmap(memory, kCopies * kCopyBytes);
}

NicMemory::NicMemory(core::Pd& pd) : pd_(pd), cache_(attr_of(pd)) {}

NicMemory::~NicMemory() = default;

/// Where the limit of locked memory leaves no room for them, there are none.
bool NicMemory::has_copies() noexcept {
    if (has_tried_copies_) {
        return free_count_ != 0;
    }
    has_tried_copies_ = true;
    constexpr std::size_t kBytes = kCopies * kCopyBytes;
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    copies_.reset(static_cast<std::byte*>(memory));
    const iovec all{memory, kBytes};
    if (!core::keep(copies_region_, core::reg_mr(pd_, {.segments = {&all, 1}})).is_ok()) {
        copies_.reset();
        return false;
    }
    for (; free_count_ < kCopies; ++free_count_) {
        free_[free_count_] = copies_.get() + free_count_ * kCopyBytes;
    }
    return true;
}

util::Status NicMemory::lend_to_send(MsgOp& op, std::span<Sge> elements,
                                     std::size_t& count) noexcept {
    std::uint64_t bytes = 0;
    for (const Sge& element : elements) {
        bytes += element.length;
    }
    if (bytes > kCopyBytes || !has_copies()) {
        return lend(op, elements, core::RegCache::Nic::kReads);
    }
    std::byte* const copy = free_[--free_count_];
    std::byte* to = copy;
    for (const Sge& element : elements) {
        util::copy_bytes(to, place_of(element), element.length);
        to += element.length;
    }
    elements[0] = {.addr = reinterpret_cast<std::uintptr_t>(copy),
                   .length = static_cast<std::uint32_t>(bytes),
                   .lkey = copies_region_->lkey()};
    count = 1;
    op.lent.copy = copy;
    return util::kOk;
}

util::Status NicMemory::lend_in_place(MsgOp& op, std::span<Sge> elements) noexcept {
    return lend(op, elements, core::RegCache::Nic::kReads);
}

util::Status NicMemory::lend_to_receive(MsgOp& op, std::span<Sge> elements) noexcept {
    return lend(op, elements, core::RegCache::Nic::kWrites);
}

util::Status NicMemory::lend(MsgOp& op, std::span<Sge> elements, core::RegCache::Nic use) noexcept {
    for (Sge& element : elements) {
        if (element.lkey != kNone) {
            continue;
        }
        const auto region =
            op.lent.count < op.lent.regions.size()
                ? cache_.take(place_of(element), element.length, use, core::RegCache::Want::kAny)
                : util::Result<core::CachedRegion*>(EINVAL);
        if (!region.is_ok()) [[unlikely]] {
            tell(region.status(), element.length);
            give_back(op);
            return region.status();
        }
        element.lkey = region.value()->lkey();
        op.lent.regions[op.lent.count++] = region.value();
    }
    return util::kOk;
}

void NicMemory::end(MsgOp& op) noexcept {
    for (; op.lent.count != 0; --op.lent.count) {
        cache_.give_back(*op.lent.regions[op.lent.count - 1]);
    }
    if (op.lent.copy != nullptr) {
        free_[free_count_++] = std::exchange(op.lent.copy, nullptr);
    }
}

/// Once, as the application may try again and again.
void NicMemory::tell(util::Status error, std::size_t bytes) noexcept {
    if (!std::exchange(has_told_, true)) {
        RVT_WARN(kMr, "cannot register %zu bytes with NIC %s: %s%s", bytes,
                 pd_.device().name().c_str(), strerrordesc_np(error.error()),
                 core::region_shortage(pd_.device(), error).c_str());
    }
}

}  // namespace rvt::ofi
