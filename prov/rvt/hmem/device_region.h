// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device as a registered region has it: where the CPU finds it, mapped or as a copy.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "core/device_memory.h"
#include "util/status.h"

namespace rvt::hmem {

class DeviceRegion : public core::DeviceMemory {
  public:
    virtual ~DeviceRegion() = default;

    /// Where the region's first byte is.
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool is_writable() const noexcept { return is_writable_; }
    /// Where the library of a device has the byte at `offset`. Returns: EOPNOTSUPP when the region
    /// is of another kind, or needs no library.
    virtual util::Result<core::DevicePlace> device_place(std::uint32_t /*kind*/,
                                                         std::uint64_t /*offset*/) const noexcept {
        return EOPNOTSUPP;
    }

    /// As refresh() and write_back(), of the first bytes that can be copied while the CPU does
    /// other things; done only after finish().
    /// Returns: how many bytes that are.
    virtual std::uint64_t begin_refresh(std::uint64_t /*offset*/,
                                        std::uint64_t /*bytes*/) noexcept {
        return 0;
    }
    virtual std::uint64_t begin_write_back(std::uint64_t /*offset*/,
                                           std::uint64_t /*bytes*/) noexcept {
        return 0;
    }
    /// During the same access. Returns: EIO when a copy that was begun has failed.
    virtual util::Status finish() noexcept { return util::kOk; }

    /// The access that has just begun touches nothing but what it holds, for as long as it does: of
    /// a copy, anything else may be given back meanwhile.
    virtual void begin_holding() noexcept {}
    /// Just before the end of that access, which holds nothing any more.
    virtual void end_holding() noexcept {}
    virtual void hold(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) noexcept {}
    /// Precondition: this very range is held by the access, and no copy of it is under way.
    virtual void let_go(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) noexcept {}

  protected:
    DeviceRegion(std::byte* data, std::uint64_t bytes, bool is_writable) noexcept
        : data_(data), bytes_(bytes), is_writable_(is_writable) {}

  private:
    std::byte* const data_;
    const std::uint64_t bytes_;
    const bool is_writable_;
};

}  // namespace rvt::hmem
