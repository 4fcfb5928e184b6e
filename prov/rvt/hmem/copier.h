// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who copies between memory of a device and the host's.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::hmem {

/// Memory of a device. What `context` and `queue` are is the copier's own affair; they live as
/// long as the library.
struct Allocation {
    std::uint64_t address = 0;  // of the device: nothing for the CPU to follow
    std::uint64_t bytes = 0;
    void* context = nullptr;
    void* queue = nullptr;
};

/// Threads: any.
class Copier {
  public:
    virtual ~Copier() = default;
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    /// The hmem::Kind of the library that copies, which also does between two of its devices; -1:
    /// none does.
    [[nodiscard]] virtual int device_kind() const noexcept = 0;

    /// A dma-buf for the allocation; the descriptor is the caller's.
    struct DmaBuf {
        util::UniqueFd fd;
        std::uint64_t offset = 0;  // of the allocation in it
    };
    /// Returns: EOPNOTSUPP when the library, the device or the kernel has none for it.
    virtual util::Result<DmaBuf> dma_buf(const Allocation& /*of*/) noexcept { return EOPNOTSUPP; }

    /// Copies bytes of the allocation to host memory; they are there on return, with all that the
    /// device had done to them before.
    /// Returns: EIO.
    virtual util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                                  std::uint64_t bytes) noexcept = 0;
    /// The other direction: what the device does after the return finds them.
    virtual util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                                 std::uint64_t bytes) noexcept = 0;

    /// Has host memory stay where it is, which lets the library copy between it and memory of its
    /// devices at once. A copy names memory that is all within one such range, or not at all.
    /// Takes some 100 us for each MiB.
    /// @param for_copies  Whose context is taken.
    /// Returns: EOPNOTSUPP when the library cannot, or will not.
    virtual util::Status pin(const Allocation& /*for_copies*/, std::byte* /*begin*/,
                             std::uint64_t /*bytes*/) noexcept {
        return EOPNOTSUPP;
    }
    /// Precondition: `begin` has been pinned with `for_copies`, and no copy names the range.
    virtual void unpin(const Allocation& /*for_copies*/, std::byte* /*begin*/) noexcept {}
    /// As copy_out() and copy_in(), of memory that has been pinned for the allocation; done only
    /// after finish().
    /// Returns: EIO.
    virtual util::Status begin_copy_out(const Allocation& /*from*/, std::uint64_t /*offset*/,
                                        std::byte* /*to*/, std::uint64_t /*bytes*/) noexcept {
        return EIO;
    }
    virtual util::Status begin_copy_in(const Allocation& /*to*/, std::uint64_t /*offset*/,
                                       const std::byte* /*from*/,
                                       std::uint64_t /*bytes*/) noexcept {
        return EIO;
    }
    /// Waits for all copies to and from the allocation that have been begun.
    /// Returns: EIO when one has failed.
    virtual util::Status finish(const Allocation& /*of*/) noexcept { return util::kOk; }

  protected:
    Copier() = default;
};

}  // namespace rvt::hmem
