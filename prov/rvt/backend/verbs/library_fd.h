// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Descriptors that rdma-core opens and closes itself. A forked child would have the same open
// files, by which the kernel knows pairs, regions and connections: what it destroys of the objects
// that it inherits would be destroyed for its parent, and while it lives, its parent's death would
// not end connections. So its copies lead nowhere, as those of sockets: util/fork_guard.h.
#pragma once

#include <utility>

#include "util/fork_guard.h"

namespace rvt::verbs {

/// Ends before rdma-core closes the descriptor. Threads: one at a time.
class LibraryFd {
  public:
    LibraryFd() noexcept = default;
    explicit LibraryFd(int fd) : fd_(util::UniqueFd(fd)) {}
    ~LibraryFd() { let_go(); }
    LibraryFd(LibraryFd&& other) noexcept = default;
    LibraryFd& operator=(LibraryFd&& other) noexcept {
        let_go();
        fd_ = std::move(other.fd_);
        return *this;
    }
    LibraryFd(const LibraryFd&) = delete;
    LibraryFd& operator=(const LibraryFd&) = delete;

  private:
    void let_go() noexcept { static_cast<void>(fd_.release().release()); }

    util::ProcessFd fd_;
};

}  // namespace rvt::verbs
