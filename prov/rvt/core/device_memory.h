// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory that belongs to a device. What the CPU does to it happens between a begin and an end, at
// which caches are made consistent and the device's own work is waited for (the kernel's rule for
// dma-bufs that the CPU has mapped, "CPU Access to DMA Buffer Objects"). Where the CPU cannot have
// it mapped, it works on a copy: it has bytes refreshed before it reads them, and written back
// after it has written them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/peer_device.h"
#include "util/status.h"

namespace rvt::core {

enum class CpuAccess : std::uint8_t { kRead, kWrite };

/// Threads: any. Accesses may overlap and nest.
class DeviceMemory {
  public:
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    /// Returns: an error when the CPU may not touch the memory now; there is no end then.
    virtual util::Status begin_cpu_access(CpuAccess access) noexcept = 0;
    virtual void end_cpu_access(CpuAccess access) noexcept = 0;

    /// What another process of this host maps to reach the same memory.
    struct File {
        int fd = -1;               // stays the owner's; -1: nobody can map it
        std::uint64_t offset = 0;  // of the memory in it
    };
    [[nodiscard]] virtual File file() const noexcept = 0;
    /// What a NIC imports to reach it by itself: a dma-buf.
    [[nodiscard]] virtual File nic_file() noexcept { return file(); }
    /// By which another process's library of the device reaches the same memory; nullptr: by none.
    [[nodiscard]] virtual const DeviceHandle* handle() const noexcept { return nullptr; }

    /// Whether the CPU has a copy, and has to say what it reads and what it has written.
    [[nodiscard]] virtual bool is_copy() const noexcept { return false; }
    /// During an access: brings the copy of these bytes up to date. Returns: EIO.
    virtual util::Status refresh(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) noexcept {
        return util::kOk;
    }
    /// During an access: has the device take over what the copy holds. Returns: EIO.
    virtual util::Status write_back(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) noexcept {
        return util::kOk;
    }

  protected:
    DeviceMemory() = default;
    ~DeviceMemory() = default;
};

/// One access, if the memory is a device's at all.
class CpuAccessScope {
  public:
    CpuAccessScope(DeviceMemory* memory, CpuAccess access) noexcept
        : memory_(memory), access_(access) {
        if (memory_ != nullptr) {
            status_ = memory_->begin_cpu_access(access);
        }
    }
    ~CpuAccessScope() {
        if (memory_ != nullptr && status_.is_ok()) {
            memory_->end_cpu_access(access_);
        }
    }
    CpuAccessScope(const CpuAccessScope&) = delete;
    CpuAccessScope& operator=(const CpuAccessScope&) = delete;

    [[nodiscard]] util::Status status() const noexcept { return status_; }

  private:
    DeviceMemory* const memory_;
    const CpuAccess access_;
    util::Status status_;
};

/// Accesses to several devices at once, to each of them once.
class DeviceAccesses {
  public:
    static constexpr std::ptrdiff_t kMax = 4;

    DeviceAccesses() noexcept = default;
    ~DeviceAccesses() {
        if (count_ != 0) [[unlikely]] {
            end();
        }
    }
    DeviceAccesses(const DeviceAccesses&) = delete;
    DeviceAccesses& operator=(const DeviceAccesses&) = delete;

    /// Whether memory is to be read or written is not known here: a write is announced, which is
    /// both. Returns: false when the device refuses, or there are too many.
    bool begin(DeviceMemory& device) noexcept {
        if (holds(device)) {
            return true;
        }
        if (count_ == kMax || !device.begin_cpu_access(CpuAccess::kWrite).is_ok()) {
            return false;
        }
        devices_[count_++] = &device;
        return true;
    }
    void end() noexcept {
        while (count_ != 0) {
            devices_[--count_]->end_cpu_access(CpuAccess::kWrite);
        }
    }
    [[nodiscard]] bool has_room_for(const DeviceAccesses& others) const noexcept {
        return count_ + others.count_ <= kMax;
    }
    /// Makes the accesses of others its own. Precondition: has_room_for(others).
    void take_over(DeviceAccesses& others) noexcept {
        while (others.count_ != 0) {
            DeviceMemory* const device = others.devices_[--others.count_];
            if (holds(*device)) {
                device->end_cpu_access(CpuAccess::kWrite);
            } else {
                devices_[count_++] = device;
            }
        }
    }

  private:
    [[nodiscard]] bool holds(const DeviceMemory& device) const noexcept {
        return std::find(devices_.begin(), devices_.begin() + count_, &device) !=
               devices_.begin() + count_;
    }

    std::array<DeviceMemory*, kMax> devices_;  // only the first count_ are written
    std::ptrdiff_t count_ = 0;
};

/// Tells the owner of an operation's buffers when the engine has done with them. Handed over with
/// the operation: from its acceptance on the engine calls release() exactly once, before the
/// completion can be seen. Calls are made under the domain's lock.
class BufferUse {
  public:
    BufferUse(const BufferUse&) = delete;
    BufferUse& operator=(const BufferUse&) = delete;

    /// These bytes of the message have been written to the buffers it was received or read into, or
    /// of an atomic's results. Said before the operation is reported, and before the peer is told.
    /// Returns: EIO when they cannot be had to where they belong.
    virtual util::Status filled(std::uint64_t begin, std::uint64_t end) noexcept = 0;
    /// A part has been filled, and is reported; further parts may follow.
    virtual void part_done() noexcept = 0;
    /// The last use. May delete this.
    virtual void release() noexcept = 0;

    /// Brings the CPU's copies of at least the first `end` bytes that the operation reads up to
    /// date, if that has not been done. Precedes each look at the buffers of one that reads.
    /// Returns: EIO, every time.
    virtual util::Status refresh(std::uint64_t end) noexcept = 0;
    /// The first `end` bytes that filled() will be told of have come: they may be taken to where
    /// they belong while others are on their way. What filled() returns is also of these. Not of
    /// buffers that several messages go to.
    virtual void arrived(std::uint64_t end) noexcept = 0;
    /// Instead of both, where an operation goes through its buffers from front to back: precedes
    /// each look at, or write to, the message's bytes from `begin` until `end`. Those before are
    /// done with: they have left, or have come. Who goes back has them read again, or come again.
    /// Calls are made under the lock of the pair's direction.
    /// Returns: EIO when they cannot be read; what is filled says so in filled().
    virtual util::Status stage(std::uint64_t /*begin*/, std::uint64_t end) noexcept {
        return refresh(end);
    }
    /// How a peer of this host that has opened or mapped the memory names the whole message.
    struct Source {
        std::uint32_t key;       // of the region, in the domain's table
        std::uint64_t address;   // as KeyQuery::addr
        bool is_mapped = false;  // here, and by peers: the CPU copies it as it does its own memory
    };
    /// nullptr: the message is not in one piece, or its memory cannot be opened elsewhere.
    [[nodiscard]] virtual const Source* source() const noexcept = 0;
    /// The one buffer of an operation in a region that a NIC may import, as the NIC is to name
    /// them.
    struct NicPlace {
        DeviceMemory* memory;   // of the region
        std::uint32_t key;      // of the region, in the domain's table
        std::uint64_t begin;    // the region's first byte
        std::uint64_t bytes;    // of the region
        std::uint64_t address;  // the buffer's first byte
    };
    /// nullptr: there are several, or no NIC may.
    [[nodiscard]] virtual const NicPlace* nic_place() const noexcept { return nullptr; }
    /// Where the library of a device finds the bytes that the CPU has at `here`. Memory of the host
    /// it finds there.
    /// Returns: EOPNOTSUPP when they are in memory of another kind, or of a device that is mapped.
    virtual util::Result<DevicePlace> device_place(std::uint32_t kind,
                                                   const void* here) const noexcept = 0;

    /// How far into the first buffer an address is.
    [[nodiscard]] std::uint64_t place_of(const void* address) const noexcept {
        return reinterpret_cast<std::uintptr_t>(address) - first_;
    }
    /// What the application calls an address in the first buffer: completions name it so.
    [[nodiscard]] void* name_of(void* address) const noexcept {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) + shift_);
    }

  protected:
    BufferUse() = default;
    ~BufferUse() = default;
    /// @param here   Where the CPU has the first buffer.
    /// @param named  What the application calls it.
    void set_first(const void* here, const void* named) noexcept {
        first_ = reinterpret_cast<std::uintptr_t>(here);
        shift_ = reinterpret_cast<std::uintptr_t>(named) - first_;
    }

  private:
    std::uintptr_t first_ = 0;
    std::uintptr_t shift_ = 0;  // from where the CPU has it to the application's name
};

}  // namespace rvt::core
