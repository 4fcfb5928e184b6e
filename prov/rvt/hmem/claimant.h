// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One kind of devices: what rvt asks of the library that drives them. That library is loaded when
// an application first registers memory of the kind, and never linked. docs/hmem.md says how a kind
// is added.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "core/peer_device.h"
#include "hmem/copier.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::hmem {

enum class Kind : std::uint8_t { kCuda, kRocr, kZe };
inline constexpr std::size_t kKinds = 3;

/// Threads: any. All but start() only after it has succeeded.
class Claimant : public Copier {
  public:
    /// What messages call the kind, and its parameter.
    [[nodiscard]] virtual Kind kind() const noexcept = 0;
    [[nodiscard]] virtual const char* name() const noexcept = 0;
    [[nodiscard]] int device_kind() const noexcept final { return static_cast<int>(kind()); }

    /// Loads and initialises the library, once. Says what is missing at log level info.
    /// Returns: ENOSYS when there is none, or none of use, on this host.
    virtual util::Status start() noexcept = 0;

    /// Finds out about memory that the CPU cannot touch or should not.
    ///
    /// Returns: EFAULT when the range is not memory of this kind, or not all of one allocation.
    virtual util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept = 0;

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
    ~Claimant() override = default;
};

}  // namespace rvt::hmem
