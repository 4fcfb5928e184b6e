// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/device_use.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>
#include <utility>

#include "ofi/compat.h"
#include "ofi/domain_lock.h"
#include "ofi/errors.h"
#include "ofi/mr.h"
#include "util/log.h"

namespace rvt::ofi {

DeviceUses::~DeviceUses() {
    // Each takes itself out of the list.
    while (first_ != nullptr) {
        delete first_;
    }
}

DeviceUse::DeviceUse(DeviceUses& all) noexcept : all_(all) {
    const util::Guard guard(all_.lock_);
    next_ = all_.first_;
    if (next_ != nullptr) {
        next_->previous_ = this;
    }
    all_.first_ = this;
}

DeviceUse::~DeviceUse() {
    static_cast<void>(finish());
    let_go_until(held_to_);
    for (std::size_t i = 0; i < count_; ++i) {
        if (is_in_stages_) {
            held_[i].memory->end_holding();
        }
        held_[i].memory->end_cpu_access(held_[i].access);
    }
    const util::Guard guard(all_.lock_);
    (previous_ != nullptr ? previous_->next_ : all_.first_) = next_;
    if (next_ != nullptr) {
        next_->previous_ = previous_;
    }
}

int DeviceUse::add(const std::shared_ptr<hmem::DeviceRegion>& memory,
                   core::CpuAccess access) noexcept {
    if (access == core::CpuAccess::kWrite && !memory->is_writable()) {
        return -FI_EACCES;
    }
    const auto end = held_.begin() + static_cast<std::ptrdiff_t>(count_);
    const bool is_held = std::any_of(held_.begin(), end, [&](const Held& each) {
        return each.memory == memory && each.access == access;
    });
    if (is_held) {
        return 0;
    }
    if (count_ == held_.size()) {
        return -FI_EINVAL;
    }
    const util::Status begun = memory->begin_cpu_access(access);
    if (!begun.is_ok()) {
        RVT_WARN(kMr, "the device's memory is not to be had: %s", strerrordesc_np(begun.error()));
        return to_fi(begun);
    }
    held_[count_++] = {.memory = memory, .access = access};
    return 0;
}

/// What lies between an end and the next begin is the application's to read. A copy has none: what
/// has been written back is the application's, and others may have something under way in it.
void DeviceUse::part_done() noexcept {
    for (std::size_t i = 0; i < count_;) {
        Held& each = held_[i];
        if (each.memory->is_copy()) {
            ++i;
            continue;
        }
        each.memory->end_cpu_access(each.access);
        if (each.memory->begin_cpu_access(each.access).is_ok()) {
            ++i;
        } else {
            each = std::move(held_[--count_]);  // the exporter has lost it; nothing is left to end
        }
    }
}

/// Calls `copy` with what of each part is in that piece of the message, until one fails.
template <class Copy>
util::Status DeviceUse::copy_parts(std::uint64_t begin, std::uint64_t end, Copy copy) noexcept {
    for (const Part& part : std::span(parts_).first(part_count_)) {
        const std::uint64_t from = std::max(begin, part.place);
        const std::uint64_t to = std::min(end, part.place + part.bytes);
        const util::Status copied =
            from < to ? copy(*part.memory, part.offset + (from - part.place), to - from)
                      : util::kOk;
        if (!copied.is_ok()) {
            return copied;
        }
    }
    return util::kOk;
}

util::Status DeviceUse::write_back(std::uint64_t begin, std::uint64_t end) noexcept {
    return copy_parts(begin, end,
                      [](hmem::DeviceRegion& to, std::uint64_t at, std::uint64_t bytes) {
                          return to.write_back(at, bytes);
                      });
}

/// Waits for copies that have been begun.
util::Status DeviceUse::finish() noexcept {
    return std::exchange(is_copying_, false) ? parts_[0].memory->finish() : util::kOk;
}

util::Status DeviceUse::filled(std::uint64_t begin, std::uint64_t end) noexcept {
    if (begin != last_begin_ || end != last_end_) {
        const util::Status rest =
            early_.is_ok() ? write_back(std::max(begin, copied_), end) : early_;
        const util::Status first = finish();
        last_ = rest.is_ok() ? first : rest;
        last_begin_ = begin;
        last_end_ = end;
    }
    return last_;
}

void DeviceUse::arrived(std::uint64_t end) noexcept {
    if (early_.is_ok() && end >= copied_ + kChunk) {
        early_ = write_back_early(copied_, end);
        copied_ = end;
    }
}

/// Where all of the message goes to one buffer, copies run while more of it arrives.
util::Status DeviceUse::write_back_early(std::uint64_t begin, std::uint64_t end) noexcept {
    if (part_count_ != 1) {
        return write_back(begin, end);
    }
    return copy_parts(
        begin, end, [&](hmem::DeviceRegion& to, std::uint64_t at, std::uint64_t bytes) {
            const std::uint64_t begun = to.begin_write_back(at, bytes);
            is_copying_ = is_copying_ || begun != 0;
            return begun == bytes ? util::kOk : to.write_back(at + begun, bytes - begun);
        });
}

util::Status DeviceUse::refresh(std::uint64_t end) noexcept {
    if (!is_to_refresh_ || end <= copied_) {
        return util::kOk;
    }
    const bool has_begun = is_copying_;
    util::Status refreshed = finish();
    if (has_begun && refreshed.is_ok()) {
        copied_ = begun_;
    }
    if (refreshed.is_ok() && end > copied_) {
        const std::uint64_t ahead = std::max(end, copied_ + kChunk);
        refreshed = copy_parts(copied_, ahead,
                               [](hmem::DeviceRegion& from, std::uint64_t at, std::uint64_t bytes) {
                                   return from.refresh(at, bytes);
                               });
        copied_ = refreshed.is_ok() ? ahead : copied_;
    }
    if (refreshed.is_ok()) {
        begin_refresh();
    }
    return refreshed;
}

/// What will be asked for next, where all of the message comes from one buffer.
void DeviceUse::begin_refresh() noexcept {
    const Part& part = parts_[0];
    if (part_count_ != 1 || copied_ < part.place || copied_ >= part.place + part.bytes) {
        return;
    }
    const std::uint64_t done = copied_ - part.place;
    const std::uint64_t begun =
        part.memory->begin_refresh(part.offset + done, std::min(kChunk, part.bytes - done));
    is_copying_ = begun != 0;
    begun_ = copied_ + begun;
}

void DeviceUse::work_in_stages() noexcept {
    is_in_stages_ = true;
    for (const Held& each : std::span(held_).first(count_)) {
        each.memory->begin_holding();
    }
}

util::Status DeviceUse::stage(std::uint64_t begin, std::uint64_t end) noexcept {
    if (begin < held_from_) {
        go_back_to(begin);
    }
    if (!is_to_refresh_) {
        take_away(begin);
        hold_until(end);
        return util::kOk;
    }
    let_go_until(begin);
    hold_until(end + 2 * kChunk);  // refresh() copies one chunk ahead, and begins with another
    return refresh(end);
}

/// Has the message come from there on, or read, once more.
void DeviceUse::go_back_to(std::uint64_t begin) noexcept {
    const util::Status finished = finish();
    early_ = early_.is_ok() && !is_to_refresh_ ? finished : early_;
    let_go_until(held_to_);
    held_from_ = held_to_ = begin / kChunk * kChunk;
    copied_ = is_to_refresh_ ? held_from_ : begin;
}

/// As arrived(); and what has been copied may go.
void DeviceUse::take_away(std::uint64_t end) noexcept {
    if (end < copied_ + kChunk) {
        return;
    }
    const util::Status finished = finish();
    early_ = early_.is_ok() ? finished : early_;
    let_go_until(copied_);
    early_ = early_.is_ok() ? write_back_early(copied_, end) : early_;
    copied_ = end;
}

void DeviceUse::hold_until(std::uint64_t end) noexcept {
    for (; held_to_ < end; held_to_ += kChunk) {
        static_cast<void>(
            copy_parts(held_to_, held_to_ + kChunk,
                       [](hmem::DeviceRegion& memory, std::uint64_t at, std::uint64_t bytes) {
                           memory.hold(at, bytes);
                           return util::Status(util::kOk);
                       }));
    }
}

/// Of chunks that end there.
void DeviceUse::let_go_until(std::uint64_t end) noexcept {
    for (; held_from_ < held_to_ && held_from_ + kChunk <= end; held_from_ += kChunk) {
        static_cast<void>(
            copy_parts(held_from_, held_from_ + kChunk,
                       [](hmem::DeviceRegion& memory, std::uint64_t at, std::uint64_t bytes) {
                           memory.let_go(at, bytes);
                           return util::Status(util::kOk);
                       }));
    }
}

util::Result<core::DevicePlace> DeviceUse::device_place(std::uint32_t kind,
                                                        const void* here) const noexcept {
    if (has_mapped_) {
        return EOPNOTSUPP;
    }
    for (const Part& part : std::span(parts_).first(part_count_)) {
        const auto into_region =
            static_cast<std::uint64_t>(static_cast<const std::byte*>(here) - part.memory->data());
        if (into_region < part.memory->bytes()) {
            return part.memory->device_place(kind, into_region);
        }
    }
    return core::DevicePlace{.address = reinterpret_cast<std::uintptr_t>(here)};
}

int DeviceBuffers::take_one(iovec& buffer, const void* desc, std::uint64_t place,
                            core::CpuAccess access, Refresh when) noexcept {
    const Mr& mr = *static_cast<const Mr*>(desc);
    if (imported_ == Imported::kStays && mr.imported != nullptr) {
        return 0;
    }
    if (mr.device == nullptr) {
        // With a NIC, ordinary memory has a descriptor, too.
        return mr.imported == nullptr ? 0 : -FI_EOPNOTSUPP;
    }
    if (!all_.may_copy()) {
        return -FI_EOPNOTSUPP;
    }
    hmem::DeviceRegion& memory = *mr.device;
    const auto at = reinterpret_cast<std::uintptr_t>(buffer.iov_base) - mr.local_address;
    if (at > memory.bytes() || buffer.iov_len > memory.bytes() - at) {
        return -FI_EINVAL;
    }
    if (use_ == nullptr) {
        use_.reset(new (std::nothrow) DeviceUse(all_));
        if (use_ == nullptr) {
            return -FI_ENOMEM;
        }
    }
    const int added = use_->add(mr.device, access);
    if (added != 0) {
        return added;
    }
    buffer.iov_base = memory.data() + at;
    if (!memory.is_copy()) {
        use_->note_mapped();
        if (access == core::CpuAccess::kRead && memory.file().fd >= 0) {
            use_->set_source(
                {.key = mr.table_key, .address = mr.base_address + at, .is_mapped = true});
        }
        return 0;
    }
    const DeviceUse::Part part{
        .memory = &memory, .place = place, .offset = at, .bytes = buffer.iov_len};
    if (access == core::CpuAccess::kWrite) {
        use_->add_filled(part);
        return 0;
    }
    if (when == Refresh::kNow) {
        unread_[unread_count_++] = part;
        return 0;
    }
    use_->add_read(part);
    if (memory.handle() != nullptr) {
        use_->set_source({.key = mr.table_key, .address = mr.base_address + at});
    }
    return 0;
}

util::Status DeviceBuffers::refresh_all() noexcept {
    for (const DeviceUse::Part& part : std::span(unread_).first(unread_count_)) {
        const util::Status refreshed = part.memory->refresh(part.offset, part.bytes);
        if (!refreshed.is_ok()) {
            return refreshed;
        }
    }
    return util::kOk;
}

int DeviceBuffers::refresh() noexcept {
    if (unread_count_ == 0) {
        return 0;
    }
    if (lock_ == nullptr) {
        return to_fi(refresh_all());
    }
    const util::Guard<DomainLock> guard(*lock_);
    return to_fi(refresh_all());
}

void DeviceBuffers::name_for_nics(const Mr& mr, const void* named) noexcept {
    use_->set_nic_place({.memory = mr.device.get(),
                         .key = mr.table_key,
                         .begin = mr.local_address,
                         .bytes = mr.device->bytes(),
                         .address = reinterpret_cast<std::uintptr_t>(named)});
}

int DeviceBuffers::take(iovec* iov, void* const* desc, std::size_t count, core::CpuAccess access,
                        Refresh when) noexcept {
    std::uint64_t place = 0;
    for (std::size_t i = 0; desc != nullptr && i < count; ++i) {
        void* const named = iov[i].iov_base;
        const int refused = desc[i] != nullptr ? take_one(iov[i], desc[i], place, access, when) : 0;
        if (refused != 0) {
            return refused;
        }
        if (i == 0 && use_ != nullptr && access == core::CpuAccess::kWrite) {
            use_->set_first(iov[0].iov_base, named);
        }
        if (count == 1 && desc[0] != nullptr && use_ != nullptr) {
            name_for_nics(*static_cast<const Mr*>(desc[0]), named);
        }
        place += iov[i].iov_len;
    }
    return 0;
}

}  // namespace rvt::ofi
