// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One kind of devices: what rvt asks of the library that drives them. That library is loaded when
// an application first registers memory of the kind, and never linked. docs/hmem.md says how a kind
// is added.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "core/peer_device.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::hmem {

enum class Kind : std::uint8_t { kCuda, kRocr, kZe };
inline constexpr std::size_t kKinds = 3;

/// Memory of a device. What `context` and `queue` are is the claimant's own affair; they live as
/// long as the library.
struct Allocation {
    std::uint64_t address = 0;  // of the device: nothing for the CPU to follow
    std::uint64_t bytes = 0;
    void* context = nullptr;
    void* queue = nullptr;
};

/// Threads: any. All but start() only after it has succeeded.
class Claimant {
  public:
    Claimant(const Claimant&) = delete;
    Claimant& operator=(const Claimant&) = delete;

    /// What messages call the kind, and its parameter.
    [[nodiscard]] virtual Kind kind() const noexcept = 0;
    [[nodiscard]] virtual const char* name() const noexcept = 0;

    /// Loads and initialises the library, once. Says what is missing at log level info.
    /// Returns: ENOSYS when there is none, or none of use, on this host.
    virtual util::Status start() noexcept = 0;

    /// Finds out about memory that the CPU cannot touch or should not.
    ///
    /// Returns: EFAULT when the range is not memory of this kind, or not all of one allocation.
    virtual util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept = 0;

    /// A dma-buf for the allocation.
    struct DmaBuf {
        util::UniqueFd fd;
        std::uint64_t offset = 0;  // of the allocation in it
    };
    /// Returns: EOPNOTSUPP when the library, the device or the kernel has none for it.
    virtual util::Result<DmaBuf> dma_buf(const Allocation& of) noexcept = 0;

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

    /// By what other processes of this host open the allocation.
    /// Returns: EOPNOTSUPP when they cannot.
    virtual util::Result<core::DeviceHandle> share(const Allocation& /*of*/) noexcept {
        return EOPNOTSUPP;
    }
    /// Whether memory of this kind has been found in this process; may be asked before start().
    [[nodiscard]] virtual bool is_in_use() const noexcept { return false; }
    /// Opens what another process has shared. Precondition: is_in_use().
    /// Returns: where it is, without its length; EOPNOTSUPP when this process cannot reach it.
    virtual util::Result<Allocation> open(const core::DeviceHandle& /*handle*/) noexcept {
        return EOPNOTSUPP;
    }
    /// Precondition: from open(), and nobody copies to or from it.
    virtual void close(const Allocation& /*opened*/, const core::DeviceHandle& /*by*/) noexcept {}
    /// Copies between memory of this kind's devices, on the queue of `opened`; done on return.
    /// Returns: EIO.
    virtual util::Status copy_across(const Allocation& /*opened*/, std::uint64_t /*to*/,
                                     std::uint64_t /*from*/, std::uint64_t /*bytes*/) noexcept {
        return EIO;
    }

  protected:
    Claimant() = default;
    ~Claimant() = default;
};

}  // namespace rvt::hmem
