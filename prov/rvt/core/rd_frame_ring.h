// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory that frames of a flow lie in from their first byte until the peer has them: a ring in
// which each frame is one piece.
//
//   head: the oldest frame not yet the peer's ..... tail: where the next frame begins
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "util/status.h"

namespace rvt::core {

/// Threads: one at a time.
class RdFrameRing {
  public:
    static constexpr std::size_t kMostBytes = 1u << 20;
    static constexpr std::size_t kLeastBytes = 256u << 10;
    static constexpr std::uint32_t kMaxFrames = 64;

    RdFrameRing() = default;
    ~RdFrameRing();
    RdFrameRing(const RdFrameRing&) = delete;
    RdFrameRing& operator=(const RdFrameRing&) = delete;

    /// Maps as much memory as this process may well have, from the least above to `most`; pages are
    /// taken as they are written. Returns: ENOMEM when there is not even room for the least.
    util::Status open(std::size_t most = kMostBytes) noexcept;
    [[nodiscard]] std::byte* base() const noexcept { return base_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Where `bytes` can be written in one piece, at the tail; nullptr: there is no room, or no
    /// place for a further frame. What is there stays free until take().
    /// @param spare_bytes, spare_frames  What has to be left behind it.
    std::byte* room(std::size_t bytes, std::size_t spare_bytes,
                    std::uint32_t spare_frames) noexcept {
        if (frames() == 0) {
            // Who sends little stays within the same few pages.
            tail_ = head_ = 0;
        }
        const std::size_t place = tail_ & (bytes_ - 1);
        const std::size_t skipped = place + bytes > bytes_ ? bytes_ - place : 0;
        if (tail_ - head_ + skipped + bytes + spare_bytes > bytes_ ||
            frames() + spare_frames >= kMaxFrames) {
            return nullptr;
        }
        return base_ + ((place + skipped) & (bytes_ - 1));
    }
    /// Makes [begin, begin + bytes), which lies in the room given last, a frame.
    void take(const std::byte* begin, std::size_t bytes) noexcept {
        const auto place = static_cast<std::size_t>(begin - base_);
        const std::size_t before = tail_ & (bytes_ - 1);
        tail_ += (place >= before ? place - before : bytes_ - before + place) + bytes;
        ends_[taken_++ % kMaxFrames] = tail_;
        written_ = std::max(written_, place + bytes);
    }
    /// Counts a frame that lies elsewhere. Precondition: frames() is below kMaxFrames.
    void take_none() noexcept { ends_[taken_++ % kMaxFrames] = tail_; }
    /// Frees frames until `count` have been freed since open().
    void free_until(std::uint64_t count) noexcept {
        if (count > freed_) {
            freed_ = count;
            head_ = ends_[(count - 1) % kMaxFrames];
        }
    }
    /// Whether more pages have been written than trim() leaves.
    [[nodiscard]] bool is_large() const noexcept { return written_ > kKeptBytes; }
    /// Gives all other pages back. Precondition: frames() is 0, and no room is about to be taken.
    void trim() noexcept;
    /// Frames that are taken and not freed.
    [[nodiscard]] std::uint64_t frames() const noexcept { return taken_ - freed_; }
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

  private:
    static constexpr std::size_t kKeptBytes = 16u << 10;

    std::byte* base_ = nullptr;
    std::size_t bytes_ = 0;   // a power of two
    std::uint64_t head_ = 0;  // positions count on; modulo bytes_ they are places
    std::uint64_t tail_ = 0;
    std::size_t written_ = 0;  // from base_ on, since the last trim()
    std::uint64_t taken_ = 0;
    std::uint64_t freed_ = 0;
    std::array<std::uint64_t, kMaxFrames> ends_;  // of the frames taken
};

}  // namespace rvt::core
