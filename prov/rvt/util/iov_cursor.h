// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A position in a list of buffers: gathers from it, scatters into it.
#pragma once

#include <algorithm>
#include <cstddef>

#include <sys/uio.h>

#include "util/cpu.h"
#include "util/long_copy.h"
#include "util/saturate.h"

namespace rvt::util {

/// Total bytes of a list of buffers; kMaxSize where they are more than that.
inline std::size_t iov_length(const iovec* iov, std::size_t count) noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        total = saturating_add(total, iov[i].iov_len);
    }
    return total;
}

/// Whether the list has at most `most` buffers, and an address for each that has bytes.
inline bool iov_is_usable(const iovec* iov, std::size_t count, std::size_t most) noexcept {
    return count <= most && std::none_of(iov, iov + count, [](const iovec& buffer) {
               return buffer.iov_base == nullptr && buffer.iov_len != 0;
           });
}

/// Does not own the list, which must outlive it. Never moves past the end.
class IovCursor {
  public:
    IovCursor() noexcept = default;
    /// Starts `offset` bytes into the list.
    IovCursor(const iovec* iov, std::size_t count, std::size_t offset = 0) noexcept
        : iov_(iov), count_(count) {
        skip(offset);
    }

    /// The bytes from here to the end of the current buffer.
    iovec span() noexcept {
        while (count_ != 0 && offset_ == iov_->iov_len) {
            ++iov_;
            --count_;
            offset_ = 0;
        }
        return count_ == 0
                   ? iovec{nullptr, 0}
                   : iovec{static_cast<char*>(iov_->iov_base) + offset_, iov_->iov_len - offset_};
    }
    /// Moves on by at most `bytes`. Returns: how far it went.
    std::size_t skip(std::size_t bytes) noexcept {
        return walk(bytes, [](void*, std::size_t, std::size_t) {});
    }
    /// Copies the next bytes of the list out. Returns: how many there were.
    std::size_t gather(void* to, std::size_t bytes) noexcept {
        return walk(bytes, [to](void* here, std::size_t part, std::size_t done) {
            copy_bytes(static_cast<char*>(to) + done, here, part);
        });
    }
    /// Has the processor fetch the next bytes of the current buffer, which are about to be written.
    void expect_writes(std::size_t bytes) noexcept {
        const iovec next = span();
        const std::size_t end = std::min(bytes, next.iov_len);
#pragma GCC unroll 4
        for (std::size_t at = 0; at < end; at += kCacheLine) {
            prefetch_write(static_cast<char*>(next.iov_base) + at);
        }
    }
    /// Copies into the list. Returns: how many bytes there was room for.
    std::size_t scatter(const void* from, std::size_t bytes) noexcept {
        return walk(bytes, [from](void* here, std::size_t part, std::size_t done) {
            copy_bytes(here, static_cast<const char*>(from) + done, part);
        });
    }

  private:
    template <class Visit>
    std::size_t walk(std::size_t bytes, Visit visit) noexcept {
        std::size_t done = 0;
        while (done < bytes) {
            const iovec here = span();
            if (here.iov_base == nullptr && here.iov_len == 0) {
                break;
            }
            const std::size_t part = std::min(here.iov_len, bytes - done);
            visit(here.iov_base, part, done);
            offset_ += part;
            done += part;
        }
        return done;
    }

    const iovec* iov_ = nullptr;
    std::size_t count_ = 0;
    std::size_t offset_ = 0;
};

}  // namespace rvt::util
