// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device that the CPU cannot map: its owner copies between it and host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "hmem/copier.h"
#include "hmem/device_region.h"
#include "util/fork_guard.h"
#include "util/lock.h"
#include "util/mutex.h"
#include "util/status.h"

namespace rvt::hmem {

/// The CPU's copy is address space of the region's size, of which only pages that an operation goes
/// through are there. So each byte of the device has one place, accesses need no memory of their
/// own, and those that overlap do what they would do on memory. Pages that are there need no fault,
/// which costs more than what a page holds is copied in. So once nobody accesses the region they
/// are given back only if there are more than kKeptBytes, and in all regions more than the user
/// lets them keep (FI_RVT_HMEM_KEPT_BYTES).
/// While all who access it hold what they need (begin_holding), pieces that none of them holds go
/// by the same rule: however long messages are, there is little more of them than that.
///
/// Pages that long copies go through again and again are pinned by the library, in pieces: it then
/// copies up to four times as fast. In a child of fork() the copy is empty: pages that parent and
/// child share would move at the parent's next write, pinned or not.
class CopiedMemory final : public DeviceRegion {
  public:
    static constexpr std::uint64_t kKeptBytes = 8u << 20;
    /// What is pinned at once, and how much must have gone through, by copies of kLongCopy bytes or
    /// more, to be worth it: all of the piece once, and kWorthPinning.
    static constexpr std::uint64_t kPiece = 4u << 20;
    static constexpr std::uint64_t kWorthPinning = 512u << 10;
    static constexpr std::uint64_t kLongCopy = 16u << 10;

    /// @param copier  Of the allocation; outlives this.
    /// @param handle  By which peers of this host may open it; an error: they may not.
    /// Returns: ENOMEM.
    static util::Result<std::unique_ptr<CopiedMemory>> make(
        Copier& copier, const Allocation& allocation,
        const util::Result<core::DeviceHandle>& handle);
    /// The same with a copier of its own, which peers know nothing of.
    static util::Result<std::unique_ptr<CopiedMemory>> make(std::unique_ptr<Copier> copier,
                                                            const Allocation& allocation);
    ~CopiedMemory() override;
    /// From now on pages are not given back: a NIC knows where they are.
    void keep_pages() noexcept;
    /// NICs may reach the memory by themselves, if the copier has a dma-buf for it.
    void let_nics_reach_it() noexcept;
    CopiedMemory(const CopiedMemory&) = delete;
    CopiedMemory& operator=(const CopiedMemory&) = delete;

    util::Status begin_cpu_access(core::CpuAccess access) noexcept override;
    void end_cpu_access(core::CpuAccess access) noexcept override;
    [[nodiscard]] File file() const noexcept override { return {}; }
    /// Made when it is first asked for.
    [[nodiscard]] File nic_file() noexcept override;
    [[nodiscard]] const core::DeviceHandle* handle() const noexcept override {
        return handle_ ? &*handle_ : nullptr;
    }
    util::Result<core::DevicePlace> device_place(std::uint32_t kind,
                                                 std::uint64_t offset) const noexcept override;

    [[nodiscard]] bool is_copy() const noexcept override { return true; }
    util::Status refresh(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    util::Status write_back(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    std::uint64_t begin_refresh(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    std::uint64_t begin_write_back(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    util::Status finish() noexcept override { return copier_.finish(allocation_); }

    void begin_holding() noexcept override;
    void end_holding() noexcept override;
    void hold(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    void let_go(std::uint64_t offset, std::uint64_t bytes) noexcept override;

  private:
    enum class Pages : std::uint8_t { kPageable, kPinned, kRefused };
    /// Of the mapping, from its first byte on.
    struct Piece {
        std::uint32_t copied = 0;   // by long copies, until it is pinned
        std::uint32_t touched = 0;  // bytes of it, at most, since it was given back
        std::uint32_t holds = 0;
        Pages pages = Pages::kPageable;
    };

    /// @param pieces  For the whole mapping; nullptr: none is ever pinned, or given back alone.
    CopiedMemory(Copier& copier, const Allocation& allocation, std::byte* mapped,
                 std::uint64_t mapped_bytes, std::unique_ptr<Piece[]> pieces) noexcept;

    [[nodiscard]] std::uint64_t into_page() const noexcept;
    [[nodiscard]] std::byte* mapped() const noexcept { return data() - into_page(); }
    template <class Copy>
    util::Status copy_pieces(std::uint64_t offset, std::uint64_t bytes, Copy copy) noexcept;
    template <class Begin>
    std::uint64_t begin_pieces(std::uint64_t offset, std::uint64_t bytes, Begin begin) noexcept;
    bool is_pinned(std::uint64_t index) noexcept;
    [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t index) const noexcept;
    [[nodiscard]] bool has_too_much() const noexcept RVT_REQUIRES(lock_);
    void give_back(std::uint64_t index) noexcept RVT_REQUIRES(lock_);
    void count(std::uint64_t index, std::uint64_t bytes) noexcept RVT_REQUIRES(lock_);
    void note_long_copy(std::uint64_t index, std::uint64_t bytes) noexcept RVT_REQUIRES(lock_);
    void unpin_all() noexcept RVT_REQUIRES(lock_);

    std::unique_ptr<Copier> own_;  // may be nullptr
    Copier& copier_;
    const Allocation allocation_;
    std::optional<core::DeviceHandle> handle_;
    const std::uint64_t mapped_bytes_;
    const std::uint64_t kept_by_all_;
    util::SpinLock lock_;  // order: innermost
    std::uint64_t accesses_ RVT_GUARDED_BY(lock_) = 0;
    std::uint64_t holders_ RVT_GUARDED_BY(lock_) = 0;  // of those, who hold what they need
    bool keeps_pages_ RVT_GUARDED_BY(lock_) = false;
    util::Mutex nic_lock_;  // order: before the copier's
    bool may_export_ RVT_GUARDED_BY(nic_lock_) = false;
    util::ProcessFd nic_fd_ RVT_GUARDED_BY(nic_lock_);
    std::uint64_t nic_offset_ RVT_GUARDED_BY(nic_lock_) = 0;
    std::uint64_t touched_bytes_ RVT_GUARDED_BY(lock_) = 0;  // since pages were given back; at most
    const std::unique_ptr<Piece[]> pieces_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::hmem
