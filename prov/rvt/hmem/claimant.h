// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One kind of devices: what rvt asks of the library that drives them. That library is loaded when
// an application first registers memory of the kind, and never linked. docs/hmem.md says how a kind
// is added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::hmem {

enum class Kind : std::uint8_t { kCuda, kRocr, kZe };

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

  protected:
    Claimant() = default;
    ~Claimant() = default;
};

}  // namespace rvt::hmem
