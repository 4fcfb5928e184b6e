// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device between two processes of one host: the owner gives a handle away, and the
// other's library of that device opens it. Data then goes from device to device, or between a
// device and the host, once, and the owner's CPU has no part in it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "util/status.h"

namespace rvt::core {

/// What the library of a device says to have memory opened elsewhere. Passed on as it is.
struct DeviceHandle {
    std::uint32_t kind = 0;  // of device: hmem::Kind
    std::uint32_t unused = 0;
    std::uint64_t offset = 0;  // of the memory in what is opened
    std::array<std::byte, 64> bytes{};
};

/// Memory of this process that is copied to or from a peer's.
struct DevicePlace {
    std::uintptr_t address = 0;  // of the CPU's, or as the device's library knows it
    bool is_device = false;
};

/// A peer's memory, opened here. Closed by the destructor.
/// Threads: any.
class PeerDeviceMemory {
  public:
    virtual ~PeerDeviceMemory() = default;
    PeerDeviceMemory(const PeerDeviceMemory&) = delete;
    PeerDeviceMemory& operator=(const PeerDeviceMemory&) = delete;

    /// Of which kind the device is: places that are a device's must be of the same.
    [[nodiscard]] virtual std::uint32_t kind() const noexcept = 0;
    /// Copies from the peer's memory, `offset` bytes into it; done on return. Returns: EIO.
    virtual util::Status read(std::uint64_t offset, DevicePlace to,
                              std::uint64_t bytes) noexcept = 0;
    /// The other direction.
    virtual util::Status write(std::uint64_t offset, DevicePlace from,
                               std::uint64_t bytes) noexcept = 0;

  protected:
    PeerDeviceMemory() = default;
};

/// The libraries of this process.
/// Threads: any.
class DeviceOpener {
  public:
    DeviceOpener(const DeviceOpener&) = delete;
    DeviceOpener& operator=(const DeviceOpener&) = delete;

    /// Whether this process uses memory of any device. None is initialised for a peer's sake.
    [[nodiscard]] virtual bool is_ready() const noexcept = 0;
    /// Returns: EOPNOTSUPP when the kind is not in use here, or its library cannot open this one.
    virtual util::Result<std::unique_ptr<PeerDeviceMemory>> open(
        const DeviceHandle& handle) noexcept = 0;

  protected:
    DeviceOpener() = default;
    ~DeviceOpener() = default;
};

}  // namespace rvt::core
