// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/copied_memory.h"

#include "util/params.h"

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

CopiedMemory::CopiedMemory(Copier& copier, const Allocation& allocation, std::byte* mapped,
                           std::uint64_t mapped_bytes, std::unique_ptr<Piece[]> pieces) noexcept
    // As far into its page as on the device: what is aligned there is aligned here.
    : DeviceRegion(mapped + allocation.address % kPage, allocation.bytes, true),
      copier_(copier),
      allocation_(allocation),
      mapped_bytes_(mapped_bytes),
      kept_by_all_(static_cast<std::uint64_t>(util::param_number(util::ParamId::kHmemKeptBytes))),
      pieces_(std::move(pieces)) {}

util::Result<std::unique_ptr<CopiedMemory>> CopiedMemory::make(
    Copier& copier, const Allocation& allocation, const util::Result<core::DeviceHandle>& handle) {
    const std::uint64_t bytes = (allocation.bytes + kPage) / kPage * kPage + kPage;
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return ENOMEM;
    }
    std::unique_ptr<Piece[]> pieces;
    if (madvise(mapped, bytes, MADV_WIPEONFORK) == 0) {
        pieces.reset(new (std::nothrow) Piece[(bytes + kPiece - 1) / kPiece]);
    }
    std::unique_ptr<CopiedMemory> made(new (std::nothrow) CopiedMemory(
        copier, allocation, static_cast<std::byte*>(mapped), bytes, std::move(pieces)));
    if (made == nullptr) {
        munmap(mapped, bytes);
        return ENOMEM;
    }
    if (handle.is_ok()) {
        made->handle_ = handle.value();
    }
    return made;
}

util::Result<std::unique_ptr<CopiedMemory>> CopiedMemory::make(std::unique_ptr<Copier> copier,
                                                               const Allocation& allocation) {
    auto made = make(*copier, allocation, util::Status(EOPNOTSUPP));
    if (made.is_ok()) {
        made.value()->own_ = std::move(copier);
    }
    return made;
}

CopiedMemory::~CopiedMemory() {
    {
        const util::Guard guard(lock_);
        unpin_all();
        touched.take(touched_bytes_);
    }
    munmap(mapped(), mapped_bytes_);
}

void CopiedMemory::keep_pages() noexcept {
    const util::Guard guard(lock_);
    keeps_pages_ = true;
}

void CopiedMemory::let_nics_reach_it() noexcept {
    const util::Guard guard(nic_lock_);
    may_export_ = true;
}

auto CopiedMemory::nic_file() noexcept -> File {
    const util::Guard guard(nic_lock_);
    if (std::exchange(may_export_, false)) {
        auto exported = copier_.dma_buf(allocation_);
        if (exported.is_ok()) {
            Copier::DmaBuf made = exported.take();
            nic_fd_ = util::ProcessFd(std::move(made.fd));
            nic_offset_ = made.offset;
        }
    }
    return {.fd = nic_fd_.get(), .offset = nic_offset_};
}

std::uint64_t CopiedMemory::into_page() const noexcept {
    return allocation_.address % kPage;
}

util::Result<core::DevicePlace> CopiedMemory::device_place(std::uint32_t kind,
                                                           std::uint64_t offset) const noexcept {
    if (copier_.device_kind() != static_cast<int>(kind)) {
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
    if (--accesses_ == 0 && has_too_much() && !keeps_pages_) {
        unpin_all();
        madvise(mapped(), mapped_bytes_, MADV_DONTNEED);
        touched.take(std::exchange(touched_bytes_, 0));
    }
}

bool CopiedMemory::has_too_much() const noexcept {
    return touched_bytes_ > kKeptBytes && touched.sum() > kept_by_all_;
}

std::uint64_t CopiedMemory::piece_bytes(std::uint64_t index) const noexcept {
    return std::min(kPiece, mapped_bytes_ - index * kPiece);
}

/// Counts pages that may come. Those of one piece, or region, are no more than it has.
void CopiedMemory::count(std::uint64_t index, std::uint64_t bytes) noexcept {
    const bool has_pieces = pieces_ != nullptr;
    const std::uint64_t room =
        has_pieces ? piece_bytes(index) - pieces_[index].touched : mapped_bytes_ - touched_bytes_;
    const std::uint64_t more = std::min(bytes, room);
    if (has_pieces) {
        pieces_[index].touched += static_cast<std::uint32_t>(more);
    }
    touched_bytes_ += more;
    touched.add(more);
}

void CopiedMemory::begin_holding() noexcept {
    const util::Guard guard(lock_);
    ++holders_;
}

void CopiedMemory::end_holding() noexcept {
    const util::Guard guard(lock_);
    --holders_;
}

void CopiedMemory::hold(std::uint64_t offset, std::uint64_t bytes) noexcept {
    const util::Guard guard(lock_);
    const std::uint64_t end = into_page() + offset + bytes;
    for (std::uint64_t at = end - bytes; at != end;) {
        const std::uint64_t part = std::min(end - at, kPiece - at % kPiece);
        count(at / kPiece, part);
        if (pieces_ != nullptr) {
            ++pieces_[at / kPiece].holds;
        }
        at += part;
    }
}

void CopiedMemory::let_go(std::uint64_t offset, std::uint64_t bytes) noexcept {
    const util::Guard guard(lock_);
    if (pieces_ == nullptr) {
        return;
    }
    const std::uint64_t end = into_page() + offset + bytes;
    for (std::uint64_t at = end - bytes; at != end;) {
        const bool is_free = --pieces_[at / kPiece].holds == 0;
        if (is_free && has_too_much() && holders_ == accesses_ && !keeps_pages_) {
            give_back(at / kPiece);
        }
        at += std::min(end - at, kPiece - at % kPiece);
    }
}

void CopiedMemory::give_back(std::uint64_t index) noexcept {
    Piece& piece = pieces_[index];
    std::byte* const begin = mapped() + index * kPiece;
    if (piece.pages == Pages::kPinned) {
        copier_.unpin(allocation_, begin);
    }
    madvise(begin, piece_bytes(index), MADV_DONTNEED);
    touched.take(piece.touched);
    touched_bytes_ -= piece.touched;
    piece = {};
}

void CopiedMemory::note_long_copy(std::uint64_t index, std::uint64_t bytes) noexcept {
    Piece& piece = pieces_[index];
    if (piece.pages != Pages::kPageable) {
        return;
    }
    const std::uint64_t begin = index * kPiece;
    const std::uint64_t length = piece_bytes(index);
    const std::uint64_t enough = std::max(length, kWorthPinning);
    piece.copied = static_cast<std::uint32_t>(std::min(piece.copied + bytes, enough));
    if (piece.copied == enough && touched.sum() + length <= kept_by_all_) {
        count(index, length);
        piece.pages = copier_.pin(allocation_, mapped() + begin, length).is_ok() ? Pages::kPinned
                                                                                 : Pages::kRefused;
    }
}

void CopiedMemory::unpin_all() noexcept {
    if (pieces_ == nullptr) {
        return;
    }
    for (std::uint64_t begin = 0; begin < mapped_bytes_; begin += kPiece) {
        Piece& piece = pieces_[begin / kPiece];
        if (piece.pages == Pages::kPinned) {
            copier_.unpin(allocation_, mapped() + begin);
        }
        piece = {};
    }
}

/// Copies that lie in one piece each: one is pinned, or it is not.
template <class Copy>
util::Status CopiedMemory::copy_pieces(std::uint64_t offset, std::uint64_t bytes,
                                       Copy copy) noexcept {
    while (bytes != 0) {
        const std::uint64_t place = into_page() + offset;
        const std::uint64_t part = std::min(bytes, kPiece - place % kPiece);
        {
            const util::Guard guard(lock_);
            count(place / kPiece, part);
            if (part >= kLongCopy && pieces_ != nullptr) {
                note_long_copy(place / kPiece, part);
            }
        }
        const util::Status copied = (copier_.*copy)(allocation_, offset, data() + offset, part);
        if (!copied.is_ok()) {
            return copied;
        }
        offset += part;
        bytes -= part;
    }
    return util::kOk;
}

util::Status CopiedMemory::refresh(std::uint64_t offset, std::uint64_t bytes) noexcept {
    return copy_pieces(offset, bytes, &Copier::copy_out);
}

util::Status CopiedMemory::write_back(std::uint64_t offset, std::uint64_t bytes) noexcept {
    return copy_pieces(offset, bytes, &Copier::copy_in);
}

bool CopiedMemory::is_pinned(std::uint64_t index) noexcept {
    const util::Guard guard(lock_);
    return pieces_ != nullptr && pieces_[index].pages == Pages::kPinned;
}

/// Of what is pinned: the library copies anything else before it returns.
template <class Begin>
std::uint64_t CopiedMemory::begin_pieces(std::uint64_t offset, std::uint64_t bytes,
                                         Begin begin) noexcept {
    const std::uint64_t end = offset + bytes;
    std::uint64_t at = offset;
    while (at != end) {
        const std::uint64_t place = into_page() + at;
        const std::uint64_t part = std::min(end - at, kPiece - place % kPiece);
        if (!is_pinned(place / kPiece) ||
            !(copier_.*begin)(allocation_, at, data() + at, part).is_ok()) {
            break;
        }
        at += part;
    }
    return at - offset;
}

std::uint64_t CopiedMemory::begin_refresh(std::uint64_t offset, std::uint64_t bytes) noexcept {
    return begin_pieces(offset, bytes, &Copier::begin_copy_out);
}

std::uint64_t CopiedMemory::begin_write_back(std::uint64_t offset, std::uint64_t bytes) noexcept {
    return begin_pieces(offset, bytes, &Copier::begin_copy_in);
}

}  // namespace rvt::hmem
