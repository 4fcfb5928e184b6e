// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether something that a thread does makes a system call (syscall user dispatch, prctl(2)).
#pragma once

namespace fab {

/// Watches the thread that makes it, while it lives. One at a time in a process.
class CallWatch {
  public:
    static constexpr long kNone = -1;

    /// Skips the test where the kernel does not offer it.
    CallWatch();
    ~CallWatch();
    CallWatch(const CallWatch&) = delete;
    CallWatch& operator=(const CallWatch&) = delete;

    /// Runs `action`; its system calls are made.
    /// Returns: the number of the first one (syscall(2)), or kNone.
    template <class Action>
    long first_call_of(Action action) const {
        watch();
        action();
        return take_first();
    }

  private:
    static void watch();
    static long take_first();
};

}  // namespace fab
