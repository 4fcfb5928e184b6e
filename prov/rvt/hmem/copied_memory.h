// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device that the CPU cannot map: its owner copies between it and host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "hmem/claimant.h"
#include "hmem/device_region.h"
#include "util/lock.h"
#include "util/status.h"

namespace rvt::hmem {

/// The CPU's copy is address space of the region's size, of which only pages that an operation goes
/// through are there. So each byte of the device has one place, accesses need no memory of their
/// own, and those that overlap do what they would do on memory. Pages that are there need no fault,
/// which costs more than what a page holds is copied in. So once nobody accesses the region they
/// are given back only if there are more than kKeptBytes, and more than kKeptByAll in all regions.
class CopiedMemory final : public DeviceRegion {
  public:
    static constexpr std::uint64_t kKeptBytes = 8u << 20;
    static constexpr std::uint64_t kKeptByAll = 256u << 20;

    /// @param claimant  Whose the allocation is.
    /// @param may_share  Peers of this host may open it, if the claimant can have it opened.
    /// Returns: ENOMEM.
    static util::Result<std::unique_ptr<CopiedMemory>> make(Claimant& claimant,
                                                            const Allocation& allocation,
                                                            bool may_share);
    ~CopiedMemory() override;
    CopiedMemory(const CopiedMemory&) = delete;
    CopiedMemory& operator=(const CopiedMemory&) = delete;

    util::Status begin_cpu_access(core::CpuAccess access) noexcept override;
    void end_cpu_access(core::CpuAccess access) noexcept override;
    [[nodiscard]] File file() const noexcept override { return {}; }
    [[nodiscard]] const core::DeviceHandle* handle() const noexcept override {
        return handle_ ? &*handle_ : nullptr;
    }
    util::Result<core::DevicePlace> device_place(std::uint32_t kind,
                                                 std::uint64_t offset) const noexcept override;

    [[nodiscard]] bool is_copy() const noexcept override { return true; }
    util::Status refresh(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    util::Status write_back(std::uint64_t offset, std::uint64_t bytes) noexcept override;

  private:
    void touch(std::uint64_t bytes) noexcept;

    CopiedMemory(Claimant& claimant, const Allocation& allocation, std::byte* copy,
                 std::uint64_t mapped_bytes) noexcept
        : DeviceRegion(copy, allocation.bytes, true),
          claimant_(claimant),
          allocation_(allocation),
          mapped_bytes_(mapped_bytes) {}

    Claimant& claimant_;
    const Allocation allocation_;
    std::optional<core::DeviceHandle> handle_;
    const std::uint64_t mapped_bytes_;
    util::SpinLock lock_;  // order: innermost
    std::uint64_t accesses_ RVT_GUARDED_BY(lock_) = 0;
    std::uint64_t touched_bytes_ RVT_GUARDED_BY(lock_) = 0;  // since pages were given back; at most
};

}  // namespace rvt::hmem
