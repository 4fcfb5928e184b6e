// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How much memory the control groups of this process leave it (cgroups(7)).
//
// The kernel answers an allocation beyond the limit of a memory cgroup by killing a process, not
// with an error. Who needs more than a few pages therefore looks first.
#pragma once

#include <cstdint>
#include <string>

namespace rvt::util {

inline constexpr std::uint64_t kUnlimitedMemory = ~std::uint64_t{0};

/// Bytes that may still be allocated; kUnlimitedMemory where there is no limit, or none is visible.
///
/// Cost: some ten system calls.
std::uint64_t memory_room() noexcept;

/// The same of the groups named in a file like /proc/self/cgroup, in hierarchies mounted below
/// `root`, as at /sys/fs/cgroup.
std::uint64_t memory_room(const std::string& groups, const std::string& root);

}  // namespace rvt::util
