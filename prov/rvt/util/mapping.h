// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Shared memory with one owner: a sealed memory file of ours, or a read-only view of a peer's.
//
// A forked child gets none of it: its copies are exchanged for private zero pages, so that it
// neither keeps memory alive nor writes into what its parent sends (fork_guard.h).
#pragma once

#include <cstddef>
#include <utility>

#include "util/fork_guard.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::util {

/// A mapped memory file (memfd_create(2)). Nothing of it has a name, so nothing is left behind.
///
/// Threads: a Mapping belongs to one thread at a time; different ones are independent.
class Mapping {
  public:
    Mapping() noexcept = default;
    ~Mapping() { reset(); }
    Mapping(Mapping&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)),
          length_(std::exchange(other.length_, 0)),
          fd_(std::move(other.fd_)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        if (this != &other) {
            reset();
            address_ = std::exchange(other.address_, nullptr);
            length_ = std::exchange(other.length_, 0);
            fd_ = std::move(other.fd_);
        }
        return *this;
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    /// Makes a memory file, maps it for writing and seals it: nobody can shrink, grow or unseal it,
    /// and nobody but this mapping can write to it (F_SEAL_FUTURE_WRITE).
    ///
    /// @param name     For /proc/PID/maps only.
    /// @param reserve  Leading bytes whose pages are allocated now, so that a full machine is an
    ///                 error here and not a signal later.
    /// Returns: ENOMEM or ENOSPC (no memory), EMFILE, EFBIG (RLIMIT_FSIZE), ENOSYS (no memfd).
    static Result<Mapping> create(const char* name, std::size_t length, std::size_t reserve);

    /// Maps a file received from a peer, read-only, after checking that it cannot shrink under us.
    /// Keeps no descriptor. Returns: EPROTO when seals are missing, the file is shorter than
    /// `length` or of huge pages; the error of mmap(2).
    static Result<Mapping> view(UniqueFd fd, std::size_t length);

    /// Maps a part of any file, as it is: the caller has decided that this is safe. Keeps no
    /// descriptor. Returns: the error of mmap(2).
    static Result<Mapping> attach(UniqueFd fd, std::size_t offset, std::size_t length,
                                  bool is_writable);

    /// Allocates the pages of a part; works without the descriptor too (madvise(2), Linux 5.14).
    /// Returns: as create(), ENOSYS when the kernel is older and the descriptor is closed.
    Status reserve(std::size_t offset, std::size_t length) noexcept;

    /// Closes the descriptor once nobody new shall map the file; the memory stays.
    void close_file() noexcept;

    template <class T>
    T* at(std::size_t offset) const noexcept {
        return reinterpret_cast<T*>(static_cast<char*>(address_) + offset);
    }
    bool is_mapped() const noexcept { return address_ != nullptr; }
    std::size_t length() const noexcept { return length_; }
    int fd() const noexcept { return fd_.get(); }
    void reset() noexcept;

  private:
    static Result<Mapping> map(UniqueFd fd, std::size_t offset, std::size_t length, int protection);

    void* address_ = nullptr;
    std::size_t length_ = 0;
    ProcessFd fd_;
};

}  // namespace rvt::util
