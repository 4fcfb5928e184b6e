// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Taking and freeing places of frames.
#include "core/rd_frame_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include <sys/mman.h>

#include "util/memory_room.h"

namespace rvt::core {

RdFrameRing::~RdFrameRing() {
    if (base_ != nullptr) {
        munmap(base_, bytes_);
    }
}

util::Status RdFrameRing::open(std::size_t most) noexcept {
    const std::uint64_t room = util::memory_room();
    if (room < 2 * kLeastBytes) {
        return ENOMEM;
    }
    bytes_ = static_cast<std::size_t>(
        std::clamp<std::uint64_t>(std::bit_floor(room / 4), kLeastBytes, most));
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return ENOMEM;
    }
    base_ = static_cast<std::byte*>(memory);
    return util::kOk;
}

std::byte* RdFrameRing::room(std::size_t bytes, std::size_t spare_bytes,
                             std::uint32_t spare_frames) noexcept {
    if (frames() == 0) {
        // Who sends little stays within the same few pages.
        tail_ = head_ = 0;
    }
    const std::size_t place = tail_ & (bytes_ - 1);
    const std::size_t skipped = place + bytes > bytes_ ? bytes_ - place : 0;
    if (tail_ - head_ + skipped + bytes + spare_bytes > bytes_ ||
        frames() + spare_frames >= kMaxFrames) {
        return nullptr;
    }
    return base_ + ((place + skipped) & (bytes_ - 1));
}

void RdFrameRing::take(const std::byte* begin, std::size_t bytes) noexcept {
    const auto place = static_cast<std::size_t>(begin - base_);
    const std::size_t before = tail_ & (bytes_ - 1);
    tail_ += (place >= before ? place - before : bytes_ - before + place) + bytes;
    ends_[taken_++ % kMaxFrames] = tail_;
    written_ = std::max(written_, place + bytes);
}

void RdFrameRing::trim() noexcept {
    if (is_large()) {
        // The pages are zero when they are written next; nobody reads them before.
        madvise(base_ + kKeptBytes, bytes_ - kKeptBytes, MADV_DONTNEED);
        written_ = kKeptBytes;
    }
}

void RdFrameRing::free_until(std::uint64_t count) noexcept {
    if (count > freed_) {
        freed_ = count;
        head_ = ends_[(count - 1) % kMaxFrames];
    }
}

}  // namespace rvt::core
