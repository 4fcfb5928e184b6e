// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Operations whose local buffers are memory of a device, named by a descriptor: fi_mr(3),
// FI_MR_HMEM. The CPU's access to it lasts from the call to the completion.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <sys/uio.h>

#include "core/device_memory.h"
#include "core/rd_types.h"
#include "hmem/device_region.h"
#include "util/lock.h"

namespace rvt::ofi {

class DeviceUse;
class DomainLock;
struct Mr;

/// The operations of an endpoint that hold memory of devices.
/// Threads: any.
class DeviceUses {
  public:
    DeviceUses() = default;
    /// Ends those that are left. Precondition: nobody works on them any more.
    ~DeviceUses();
    DeviceUses(const DeviceUses&) = delete;
    DeviceUses& operator=(const DeviceUses&) = delete;

    /// Whether operations work on copies of such memory. Else they are refused where nothing else
    /// reaches it.
    void set_may_copy(bool may_copy) noexcept {
        may_copy_.store(may_copy, std::memory_order_relaxed);  // relaxed: a flag on its own
    }
    [[nodiscard]] bool may_copy() const noexcept {
        return may_copy_.load(std::memory_order_relaxed);  // relaxed: as above
    }

  private:
    friend class DeviceUse;
    std::atomic<bool> may_copy_{true};
    util::SpinLock lock_;  // order: innermost
    DeviceUse* first_ RVT_GUARDED_BY(lock_) = nullptr;
};

/// What one operation holds.
class DeviceUse final : public core::BufferUse {
  public:
    explicit DeviceUse(DeviceUses& all) noexcept;
    ~DeviceUse();
    DeviceUse(const DeviceUse&) = delete;
    DeviceUse& operator=(const DeviceUse&) = delete;

    /// Begins an access to the region, once however often it is named.
    /// Returns: -FI_EACCES for writing to one that can be read alone, -FI_EINVAL when a use names
    ///          more regions than an operation has buffers, else what the exporter says.
    int add(const std::shared_ptr<hmem::DeviceRegion>& memory, core::CpuAccess access) noexcept;

    /// A buffer of the operation in memory that the CPU has a copy of. An operation reads all of
    /// its parts, or fills all of them.
    struct Part {
        hmem::DeviceRegion* memory = nullptr;  // which has been added
        std::uint64_t place = 0;               // of its first byte in the message, or the results
        std::uint64_t offset = 0;              // in the region
        std::uint64_t bytes = 0;
    };
    /// Remembers that the operation fills it. Precondition: at most kMaxIov of them.
    void add_filled(const Part& part) noexcept { parts_[part_count_++] = part; }
    /// Remembers that the operation reads it, and that refresh() is to bring it here.
    void add_read(const Part& part) noexcept {
        parts_[part_count_++] = part;
        is_to_refresh_ = true;
    }
    /// Peers may open the region of what add_read() was told.
    void set_source(const Source& source) noexcept {
        source_ = source;
        has_source_ = true;
    }
    /// It is the operation's only buffer.
    void set_nic_place(const NicPlace& place) noexcept {
        nic_place_ = place;
        has_nic_place_ = true;
    }
    /// One of the buffers is memory of a device that the CPU has mapped.
    void note_mapped() noexcept { has_mapped_ = true; }
    /// It is told of its bytes by stage() alone, before they are touched: no more of a copy has to
    /// be there than those. Precondition: all buffers have been added; what it reads by add_read().
    void work_in_stages() noexcept;

    using core::BufferUse::set_first;

    util::Status filled(std::uint64_t begin, std::uint64_t end) noexcept override;
    void part_done() noexcept override;
    void release() noexcept override { delete this; }
    util::Status refresh(std::uint64_t end) noexcept override;
    void arrived(std::uint64_t end) noexcept override;
    util::Status stage(std::uint64_t begin, std::uint64_t end) noexcept override;
    [[nodiscard]] const Source* source() const noexcept override {
        return has_source_ ? &source_ : nullptr;
    }
    [[nodiscard]] const NicPlace* nic_place() const noexcept override {
        return has_nic_place_ ? &nic_place_ : nullptr;
    }
    util::Result<core::DevicePlace> device_place(std::uint32_t kind,
                                                 const void* here) const noexcept override;

  private:
    friend class DeviceUses;
    // Of a long message, copied at once while others are under way. Much less takes a GPU longer
    // for each byte.
    static constexpr std::uint64_t kChunk = 512u << 10;

    template <class Copy>
    util::Status copy_parts(std::uint64_t begin, std::uint64_t end, Copy copy) noexcept;
    util::Status write_back(std::uint64_t begin, std::uint64_t end) noexcept;
    void begin_refresh() noexcept;
    util::Status write_back_early(std::uint64_t begin, std::uint64_t end) noexcept;
    util::Status finish() noexcept;
    void go_back_to(std::uint64_t begin) noexcept;
    void take_away(std::uint64_t end) noexcept;
    void hold_until(std::uint64_t end) noexcept;
    void let_go_until(std::uint64_t end) noexcept;

    struct Held {
        std::shared_ptr<hmem::DeviceRegion> memory;
        core::CpuAccess access = core::CpuAccess::kRead;
    };

    DeviceUses& all_;
    DeviceUse* previous_ = nullptr;  // under the lock of all_
    DeviceUse* next_ = nullptr;
    std::array<Held, 3 * core::kMaxIov> held_;
    std::size_t count_ = 0;
    std::array<Part, core::kMaxIov> parts_;  // only the first part_count_ are written
    std::size_t part_count_ = 0;
    std::uint64_t copied_ = 0;  // bytes from the first on that refresh() or arrived() has copied
    std::uint64_t begun_ = 0;   // if more: what refresh() has begun to copy
    util::Status early_;        // what arrived() came to
    bool is_copying_ = false;   // a copy has been begun, and not waited for
    bool is_to_refresh_ = false;
    bool is_in_stages_ = false;
    std::uint64_t held_from_ = 0;  // what it holds of copies: whole chunks of the message
    std::uint64_t held_to_ = 0;
    bool has_mapped_ = false;
    bool has_source_ = false;
    bool has_nic_place_ = false;
    Source source_{};       // with has_source_
    NicPlace nic_place_{};  // with has_nic_place_
    // What filled() was told last, and how it went.
    std::uint64_t last_begin_ = 0;
    std::uint64_t last_end_ = 0;
    util::Status last_;
};

/// The buffers of one call, where the CPU finds them.
class DeviceBuffers {
  public:
    /// Whether what a NIC reaches by itself stays where it is, or is copied as well.
    enum class Imported : std::uint8_t { kIsCopied, kStays };

    /// @param lock  The domain's, which keeps copies to the host from replacing what a peer writes
    ///              beside them; nullptr: the caller holds it, or fills buffers alone.
    DeviceBuffers(DeviceUses& all, DomainLock* lock,
                  Imported imported = Imported::kIsCopied) noexcept
        : all_(all), lock_(lock), imported_(imported) {}

    /// When what the operation reads is copied to the host: in the call, by refresh(), or if the
    /// engine asks for it (BufferUse::refresh).
    enum class Refresh : std::uint8_t { kNow, kLater };

    /// Replaces what `desc` says is a device's, in place. A null descriptor, or list of them, is
    /// ordinary memory.
    /// Precondition: at most kMaxIov buffers of each list of an operation.
    /// @param when  kLater: for one list of an operation that has no other.
    /// Returns: 0, -FI_EINVAL for a buffer that is not within its region, -FI_ENOMEM,
    ///          -FI_EOPNOTSUPP for what only a NIC reaches, or the CPU may not copy, or as
    ///          DeviceUse::add().
    int take(iovec* iov, void* const* desc, std::size_t count, core::CpuAccess access,
             Refresh when = Refresh::kNow) noexcept;
    /// Copies to the host what was taken to be read now. Behind all that may refuse the call: it
    /// takes as long as the buffers are.
    /// Returns: 0, -FI_EIO when that fails.
    int refresh() noexcept;

    /// Gives a request the use that belongs to it, if there is one. The engine owns it from the
    /// acceptance on: then keep().
    template <class Request>
    void put_into(Request& request) const noexcept {
        if (use_ != nullptr) {
            request.flags = request.flags | core::RdFlags::kHasUse;
            request.use = use_.get();
        }
    }
    void keep() noexcept { static_cast<void>(use_.release()); }
    /// Still its own; nullptr: nothing is a device's.
    [[nodiscard]] DeviceUse* use() const noexcept { return use_.get(); }
    /// The same, for who has no request to put it into; nullptr: nothing is a device's.
    [[nodiscard]] DeviceUse* release() noexcept { return use_.release(); }

  private:
    int take_one(iovec& buffer, const void* desc, std::uint64_t place, core::CpuAccess access,
                 Refresh when) noexcept;
    util::Status refresh_all() noexcept;
    void name_for_nics(const Mr& mr, const void* named) noexcept;

    DeviceUses& all_;
    DomainLock* const lock_;
    const Imported imported_;
    std::unique_ptr<DeviceUse> use_;
    std::array<DeviceUse::Part, 3 * core::kMaxIov> unread_;  // only the first unread_count_
    std::size_t unread_count_ = 0;
};

}  // namespace rvt::ofi
