// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory of frames.
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

void RdFrameRing::trim() noexcept {
    if (is_large()) {
        // The pages are zero when they are written next; nobody reads them before.
        madvise(base_ + kKeptBytes, bytes_ - kKeptBytes, MADV_DONTNEED);
        written_ = kKeptBytes;
    }
}

}  // namespace rvt::core
