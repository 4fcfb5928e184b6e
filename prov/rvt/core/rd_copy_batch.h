// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Small pieces of memory that are copied between a peer's process and ours in one system call,
// which costs as much as copying a few KiB.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <sys/uio.h>

#include "util/status.h"

namespace rvt::core {

class RdCopyBatch {
  public:
    static constexpr std::size_t kMaxPieces = 4;

    std::size_t size() const noexcept { return size_; }
    bool is_full() const noexcept { return size_ == kMaxPieces; }

    /// Precondition: not full. `there` is an address of the peer.
    void add(void* here, std::uint64_t there, std::uint64_t length) noexcept {
        here_[size_] = {here, length};
        there_[size_++] = {reinterpret_cast<void*>(there), length};
    }

    /// Copies all pieces; after an error any part of them may have been copied.
    /// Returns: as Path::copy_memory().
    template <class Path>
    util::Status write_to(Path& path) const noexcept {
        return path.copy_memory(true, here_.data(), there_.data(), size_);
    }
    template <class Path>
    util::Status read_from(Path& path) const noexcept {
        return path.copy_memory(false, here_.data(), there_.data(), size_);
    }

  private:
    std::size_t size_ = 0;
    std::array<iovec, kMaxPieces> here_;
    std::array<iovec, kMaxPieces> there_;
};

}  // namespace rvt::core
