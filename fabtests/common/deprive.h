// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ways to take from this process what a program may have to do without: system calls, limits,
// its user. Each holds until the process ends, unless it says otherwise.
#pragma once

#include <initializer_list>

#include <sys/resource.h>

namespace fab {

/// From now on these system calls fail with `error` and do nothing, as under the filters of
/// container engines or on an older kernel. Skips the test where no filter may be installed.
void refuse_calls(std::initializer_list<int> calls, int error);

/// Sets the soft limit, which may be raised again.
void set_limit(__rlimit_resource_t what, rlim_t value);

/// Becomes the user nobody; skips the test for those who cannot.
void become_nobody();

}  // namespace fab
