// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One kind of devices: what rvt asks of the library that drives them. That library is loaded when
// an application asks for all that there is, or first registers memory, and never linked.
// docs/hmem.md says how a kind is added.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "core/peer_device.h"
#include "hmem/copier.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::hmem {

enum class Kind : std::uint8_t { kCuda, kRocr, kZe };
inline constexpr std::size_t kKinds = 3;

/// Threads: any. All but is_there() and start() only after the latter has succeeded.
class Claimant : public Copier {
  public:
    /// What messages call the kind, and its parameter.
    [[nodiscard]] virtual Kind kind() const noexcept = 0;
    [[nodiscard]] virtual const char* name() const noexcept = 0;
    [[nodiscard]] int device_kind() const noexcept final { return static_cast<int>(kind()); }

    /// Loads the library, once, and leaves it at that: processes that are forked may yet use it.
    /// Says what is missing at log level info.
    [[nodiscard]] bool is_there() noexcept {
        std::call_once(loaded_once_, [this] { is_there_ = load(); });
        return is_there_;
    }
    /// Loads it and initialises it, once. Says what is missing, likewise.
    /// Returns: ENOSYS when there is none, or none of use, on this host.
    util::Status start() noexcept {
        std::call_once(started_once_,
                       [this] { started_ = is_there() ? initialise() : util::Status(ENOSYS); });
        return started_;
    }

    /// Finds out about memory that the CPU cannot touch or should not.
    ///
    /// Returns: EFAULT when the range is not memory of this kind, or not all of one allocation.
    virtual util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept = 0;

    /// Whether it is memory of the host that the library has allocated, or pinned, for the
    /// application: ordinary memory.
    [[nodiscard]] virtual bool is_of_host(const void* address) noexcept = 0;

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

  private:
    /// Returns: whether the library is there, with all functions.
    virtual bool load() noexcept = 0;
    /// Returns: ENOSYS when the library has no device.
    virtual util::Status initialise() noexcept = 0;

    std::once_flag loaded_once_;
    std::once_flag started_once_;
    bool is_there_ = false;
    util::Status started_;
};

}  // namespace rvt::hmem
