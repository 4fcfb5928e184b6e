// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagrams that wait for room in a ring, or for the ring: as many as a socket would keep. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <sys/uio.h>

namespace rvt::shm {

class DatagramQueue {
  public:
    static constexpr std::size_t kMaxBytes = 256u << 10;

    [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }

    /// Returns: false when there is no room.
    bool keep(std::span<const std::byte> header, std::span<const iovec> payload) {
        Lengths lengths{.header = static_cast<std::uint32_t>(header.size())};
        for (const iovec& piece : payload) {
            lengths.payload += static_cast<std::uint32_t>(piece.iov_len);
        }
        const std::size_t bytes = sizeof lengths + lengths.header + lengths.payload;
        if (bytes_.size() - begin_ + bytes > kMaxBytes) {
            return false;
        }
        if (begin_ > kMaxBytes / 2) {
            forget(begin_);
        }
        append(&lengths, sizeof lengths);
        append(header.data(), header.size());
        for (const iovec& piece : payload) {
            append(piece.iov_base, piece.iov_len);
        }
        ++count_;
        return true;
    }

    /// Valid until the next change.
    struct Datagram {
        std::span<const std::byte> header;
        iovec payload;
    };
    /// The oldest. Precondition, as of the next: there is one.
    [[nodiscard]] Datagram front() noexcept {
        const Lengths lengths = lengths_of_front();
        std::byte* const header = &bytes_[begin_] + sizeof lengths;
        return {.header = {header, lengths.header},
                .payload = {header + lengths.header, lengths.payload}};
    }
    void pop() noexcept {
        const Lengths lengths = lengths_of_front();
        begin_ += sizeof lengths + lengths.header + lengths.payload;
        if (--count_ == 0) {
            forget(bytes_.size());
        }
    }

    /// Loses all of them. Returns: how many.
    std::size_t clear() noexcept {
        bytes_ = {};
        begin_ = 0;
        return std::exchange(count_, 0);
    }

  private:
    struct Lengths {
        std::uint32_t header = 0;
        std::uint32_t payload = 0;
    };

    [[nodiscard]] Lengths lengths_of_front() const noexcept {
        Lengths lengths;
        std::memcpy(&lengths, &bytes_[begin_], sizeof lengths);
        return lengths;
    }
    void append(const void* from, std::size_t count) {
        const auto* const bytes = static_cast<const std::byte*>(from);
        bytes_.insert(bytes_.end(), bytes, bytes + count);
    }
    void forget(std::size_t count) {
        bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count));
        begin_ = 0;
    }

    std::vector<std::byte> bytes_;  // lengths, header, payload of each
    std::size_t begin_ = 0;         // of the oldest
    std::size_t count_ = 0;
};

}  // namespace rvt::shm
