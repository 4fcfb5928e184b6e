// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/copied_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace rvt::hmem {
namespace {

constexpr std::uint64_t kPage = 4096;

/// Bytes of copies that may be there, of all regions together.
class Touched {
  public:
    void add(std::uint64_t bytes) noexcept {
        // relaxed: a sum, by which nothing else is ordered.
        sum_.fetch_add(bytes, std::memory_order_relaxed);
    }
    void take(std::uint64_t bytes) noexcept {
        // relaxed: as in add().
        sum_.fetch_sub(bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t sum() const noexcept {
        // relaxed: as in add().
        return sum_.load(std::memory_order_relaxed);
    }

  private:
    std::atomic<std::uint64_t> sum_{0};
};
constinit Touched touched;

}  // namespace

util::Result<std::unique_ptr<CopiedMemory>> CopiedMemory::make(Claimant& claimant,
                                                               const Allocation& allocation,
                                                               bool may_share) {
    const std::uint64_t bytes = (allocation.bytes + kPage) / kPage * kPage;
    // As far into its page as on the device: what is aligned there is aligned here.
    const std::uint64_t into_page = allocation.address % kPage;
    void* const mapped = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return ENOMEM;
    }
    std::unique_ptr<CopiedMemory> made(new (std::nothrow) CopiedMemory(
        claimant, allocation, static_cast<std::byte*>(mapped) + into_page, bytes + kPage));
    if (made == nullptr) {
        munmap(mapped, bytes + kPage);
        return ENOMEM;
    }
    const util::Result<core::DeviceHandle> handle =
        may_share ? claimant.share(allocation) : util::Result<core::DeviceHandle>(EOPNOTSUPP);
    if (handle.is_ok()) {
        made->handle_ = handle.value();
    }
    return made;
}

CopiedMemory::~CopiedMemory() {
    touched.take(touched_bytes_);
    munmap(data() - allocation_.address % kPage, mapped_bytes_);
}

util::Result<core::DevicePlace> CopiedMemory::device_place(std::uint32_t kind,
                                                           std::uint64_t offset) const noexcept {
    if (kind != static_cast<std::uint32_t>(claimant_.kind())) {
        return EOPNOTSUPP;
    }
    return core::DevicePlace{.address = allocation_.address + offset, .is_device = true};
}

util::Status CopiedMemory::begin_cpu_access(core::CpuAccess /*access*/) noexcept {
    const util::Guard guard(lock_);
    ++accesses_;
    return util::kOk;
}

void CopiedMemory::end_cpu_access(core::CpuAccess /*access*/) noexcept {
    const util::Guard guard(lock_);
    if (--accesses_ == 0 && touched_bytes_ > kKeptBytes && touched.sum() > kKeptByAll) {
        madvise(data() - allocation_.address % kPage, mapped_bytes_, MADV_DONTNEED);
        touched.take(std::exchange(touched_bytes_, 0));
    }
}

/// Counts pages that may come. Those of one region are no more than it has.
void CopiedMemory::touch(std::uint64_t count) noexcept {
    const util::Guard guard(lock_);
    const std::uint64_t more = std::min(count, DeviceRegion::bytes() - touched_bytes_);
    touched_bytes_ += more;
    touched.add(more);
}

util::Status CopiedMemory::refresh(std::uint64_t offset, std::uint64_t bytes) noexcept {
    touch(bytes);
    return bytes == 0 ? util::kOk : claimant_.copy_out(allocation_, offset, data() + offset, bytes);
}

util::Status CopiedMemory::write_back(std::uint64_t offset, std::uint64_t bytes) noexcept {
    touch(bytes);
    return bytes == 0 ? util::kOk : claimant_.copy_in(allocation_, offset, data() + offset, bytes);
}

}  // namespace rvt::hmem
