// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a fork may not duplicate. A child that kept copies of sockets would hide its parent's death
// from peers, and one that kept shared memory would write into what its parent sends. So the
// child's copies of both are exchanged, under the same numbers and addresses, for files and pages
// that lead nowhere: objects that the child inherits stay safe to use and to destroy, and reach
// nobody.
//
// vfork(2) and posix_spawn(3) need none of this (all descriptors are close-on-exec); a bare
// clone(2) escapes it.
#pragma once

#include <cstddef>
#include <utility>

#include "util/unique_fd.h"

namespace rvt::util {

/// How many forks lie between the first process and this one. An object that remembers another
/// value than the present one was inherited: the threads that it counts on are not there.
unsigned fork_generation() noexcept;

/// While one exists no other thread of the process forks. Nests within a thread.
class ForkHold {
  public:
    ForkHold() noexcept;
    ~ForkHold();
    ForkHold(const ForkHold&) = delete;
    ForkHold& operator=(const ForkHold&) = delete;
};

/// Lets go of an outermost ForkHold of this thread for a while: foreign code runs that may take
/// long.
class ForkRelease {
  public:
    ForkRelease() noexcept;
    ~ForkRelease();
    ForkRelease(const ForkRelease&) = delete;
    ForkRelease& operator=(const ForkRelease&) = delete;
};

/// Names shared memory that a forked child finds exchanged for zero pages.
void fork_forgets_memory(void* address, std::size_t length);
void fork_keeps_memory(void* address) noexcept;

/// A descriptor that stays with the process that made it.
class ProcessFd {
  public:
    ProcessFd() noexcept = default;
    explicit ProcessFd(UniqueFd fd);
    ~ProcessFd() { reset(); }
    ProcessFd(ProcessFd&& other) noexcept : fd_(std::move(other.fd_)) {}
    ProcessFd& operator=(ProcessFd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::move(other.fd_);
        }
        return *this;
    }
    ProcessFd(const ProcessFd&) = delete;
    ProcessFd& operator=(const ProcessFd&) = delete;

    int get() const noexcept { return fd_.get(); }
    bool is_open() const noexcept { return fd_.is_open(); }
    void reset() noexcept;
    /// From now on a descriptor as any other.
    UniqueFd release() noexcept;

  private:
    UniqueFd fd_;
};

}  // namespace rvt::util
