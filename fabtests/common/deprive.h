// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ways to take from this process what a program may have to do without: system calls, limits,
// memory, its user. Each holds until the process ends, unless it says otherwise.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include <sys/resource.h>

namespace fab {

/// From now on these system calls fail with `error` and do nothing, as under the filters of
/// container engines or on an older kernel. Skips the test where no filter may be installed.
void refuse_calls(std::initializer_list<int> calls, int error);

/// Sets the soft limit, which may be raised again.
void set_limit(__rlimit_resource_t what, rlim_t value);

/// Becomes the user nobody; skips the test for those who cannot.
void become_nobody();

/// A memory cgroup of its own, which this process leaves again at the end.
class MemoryCgroup {
  public:
    /// Skips the test where none can be made: that takes root and a memory controller.
    MemoryCgroup();
    ~MemoryCgroup();
    MemoryCgroup(const MemoryCgroup&) = delete;
    MemoryCgroup& operator=(const MemoryCgroup&) = delete;

    /// Moves this process in and lets it have `bytes` from now on.
    void enter(std::size_t bytes) const;
    void leave() const;

  private:
    std::string home_;
    std::string path_;
    bool is_v2_ = false;
};

}  // namespace fab
