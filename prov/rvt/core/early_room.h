// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How much the pairs of a device keep of packets that have come before missing ones, and may:
// peers choose when they send the missing ones, or to how many pairs they never do.
#pragma once

#include <atomic>
#include <cstddef>

namespace rvt::core {

/// Threads: any.
class EarlyRoom {
  public:
    /// What 32 pairs keep at most, of the largest packets.
    static constexpr std::size_t kBytes = std::size_t{64} << 20;

    explicit EarlyRoom(std::size_t bytes = kBytes) noexcept : bytes_(bytes) {}

    /// Returns: false when there is not as much left.
    [[nodiscard]] bool take(std::size_t bytes) noexcept {
        // relaxed: a count orders nothing, here and below.
        if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= bytes_) {
            return true;
        }
        give_back(bytes);
        return false;
    }
    void give_back(std::size_t bytes) noexcept {
        used_.fetch_sub(bytes, std::memory_order_relaxed);  // relaxed: as above
    }
    [[nodiscard]] std::size_t used() const noexcept {
        return used_.load(std::memory_order_relaxed);  // relaxed: as above
    }

  private:
    const std::size_t bytes_;
    std::atomic<std::size_t> used_{0};
};

}  // namespace rvt::core
