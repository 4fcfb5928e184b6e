// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which of those who send to pairs that are not there are told so. An endpoint that was started
// again has many of them at once, and each is to know soon; but anybody can make us answer, to
// addresses of others too, so that there is a limit as the kernel has one for its messages.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace rvt::core {

/// Threads: one at a time.
class RdNotices {
  public:
    /// Of what is not answered nothing is lost: who is not told asks again.
    /// @param source  A hash of the sender's address.
    /// Returns: whether the sender is to be told now; then it counts as told.
    [[nodiscard]] bool may_tell(std::size_t source, std::uint64_t now_us) noexcept {
        Told& last = told_[source % kSources];
        if (last.source == source && now_us < last.until_us) {
            return false;  // the word is on its way
        }
        const std::uint64_t oldest_us = now_us - std::min(now_us, kBurst * kPauseUs);
        const std::uint64_t turn_us = std::max(turn_us_, oldest_us);
        if (turn_us > now_us) {
            return false;
        }
        turn_us_ = turn_us + kPauseUs;
        last = {.source = source, .until_us = now_us + kAgainUs};
        return true;
    }

  private:
    struct Told {
        std::size_t source = 0;
        std::uint64_t until_us = 0;
    };
    static constexpr std::size_t kSources = 256;
    static constexpr std::uint64_t kBurst = 256;        // behind a pause as many at once
    static constexpr std::uint64_t kPauseUs = 1000;     // for each of them, on the average
    static constexpr std::uint64_t kAgainUs = 100'000;  // the same one, should the word be lost

    std::array<Told, kSources> told_{};
    std::uint64_t turn_us_ = 0;
};

}  // namespace rvt::core
