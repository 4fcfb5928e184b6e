// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How much memory the control groups of this process leave it (cgroups(7)).
//
// The kernel answers an allocation beyond the limit of a memory cgroup by killing a process, not
// with an error. Who needs more than a few pages therefore looks first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace rvt::util {

inline constexpr std::uint64_t kUnlimitedMemory = ~std::uint64_t{0};

/// Bytes that may still be allocated; kUnlimitedMemory where there is no limit, or none is visible.
/// What is promised (MemoryPromise) is not among them, up to half of what there is.
///
/// Cost: some ten system calls.
std::uint64_t memory_room() noexcept;

/// The same of the groups named in a file like /proc/self/cgroup, in hierarchies mounted below
/// `root`, as at /sys/fs/cgroup.
std::uint64_t memory_room(const std::string& groups, const std::string& root);

/// Memory for which there was room, and whose pages are taken later, as they are used: until then
/// it is no room any more for others of this process, who have half of the room all the same. Those
/// of other processes do not know of it.
///
/// Threads: one at a time for each promise.
class MemoryPromise {
  public:
    MemoryPromise() noexcept = default;
    explicit MemoryPromise(std::uint64_t bytes) noexcept;
    ~MemoryPromise() { reduce_to(0); }
    MemoryPromise(MemoryPromise&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
    MemoryPromise& operator=(MemoryPromise&& other) noexcept {
        reduce_to(0);
        bytes_ = std::exchange(other.bytes_, 0);
        return *this;
    }
    MemoryPromise(const MemoryPromise&) = delete;
    MemoryPromise& operator=(const MemoryPromise&) = delete;

    std::uint64_t bytes() const noexcept { return bytes_; }
    /// All but so many bytes have been taken by now, if there are more.
    void reduce_to(std::uint64_t bytes) noexcept;

  private:
    std::uint64_t bytes_ = 0;
};

/// What all promises of this process come to.
std::uint64_t promised_memory() noexcept;

}  // namespace rvt::util
