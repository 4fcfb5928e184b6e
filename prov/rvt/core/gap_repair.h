// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a sender knows of the packets behind one that is missing, if its peer says so, and which of
// them are to be sent again: selective acknowledgement, as TCP's (RFC 2018, RFC 6675).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/early_packets.h"
#include "protocol/psn.h"

namespace rvt::core {

/// Which losses count together: those of what was under way when the first of them showed. Guarded
/// by its user.
class LossCount {
  public:
    void start_at(protocol::Psn psn) noexcept { counted_until_ = psn; }
    /// All before `una` has been acknowledged.
    void move_on_to(protocol::Psn una) noexcept {
        if (distance(una, counted_until_) > 0) {
            counted_until_ = una;  // one left behind for half a round of numbers would be ahead
        }
    }
    /// Something from `una` on is lost. Returns: whether it counts.
    /// @param sent  Behind the newest packet that has left.
    [[nodiscard]] bool note(protocol::Psn una, protocol::Psn sent) noexcept {
        if (distance(una, counted_until_) < 0) {
            return false;
        }
        counted_until_ = sent;
        return true;
    }

  private:
    protocol::Psn counted_until_{};
};

/// Whether repeats are lost for want of room on the way: more of them than chance loses. Guarded by
/// its user.
class RepeatLosses {
  public:
    /// Lost packets have been sent again. Returns: whether the way has no room for as many.
    /// @param once   Of them have not been sent again before.
    /// @param again  The others: their repeats are lost.
    [[nodiscard]] bool note(std::uint32_t once, std::uint32_t again) noexcept {
        const std::uint32_t sum = score_ + kWeight * again;
        score_ = std::min(sum - std::min(sum, once), kMost);
        return score_ >= kTooMany;
    }
    void heed() noexcept { score_ = 0; }

  private:
    // Where one repeat in five is lost, or less, this comes to nothing.
    static constexpr std::uint32_t kWeight = 4;
    static constexpr std::uint32_t kTooMany = 16;
    static constexpr std::uint32_t kMost = 64;

    std::uint32_t score_ = 0;
};

/// Guarded by its user.
class GapRepair {
  public:
    /// What `report` says, as EarlyPackets::write_map() makes it: which packets behind the missing
    /// one have come. Returns: how many.
    std::uint32_t note(std::span<const std::byte> report) noexcept {
        here_ = {};
        std::uint32_t count = 0;
        const std::size_t bytes = std::min(report.size(), here_.size());
        for (std::size_t i = 0; i < bytes; ++i) {
            here_[i] = std::to_integer<std::uint8_t>(report[i]);
            count += static_cast<std::uint32_t>(std::popcount(here_[i]));
        }
        return count;
    }

    /// Visits what is lost of the packets from the missing one, `una`, to the last that has come,
    /// oldest first: what has never been repeated, or was before a packet that has come.
    /// @param sent   Behind the newest packet that has ever left.
    /// @param again  Called with a number, sends that packet. Returns: false when it cannot; that
    ///               one is still lost, and the visit over.
    /// Returns: how many of those that were sent had been before: their repeats are lost.
    template <class Again>
    std::uint32_t for_each_lost(protocol::Psn una, protocol::Psn sent, Again again) noexcept {
        const std::uint32_t last = last_here();
        const std::uint32_t newest = newest_repeat_here(una, last);
        const auto left = static_cast<std::uint32_t>(std::max(distance(sent, una), 0));
        std::uint32_t lost_again = 0;
        for (std::uint32_t ahead = 0; ahead < std::min(std::max(last, 1u), left); ++ahead) {
            const protocol::Psn psn = una + ahead;
            const bool is_under_way = is_repeated(psn) && at(psn).order >= newest &&
                                      (last == 0 || distance(una + last, at(psn).sent) < 0);
            if (is_here(ahead) || is_under_way) {
                continue;
            }
            if (!again(psn)) {
                break;
            }
            lost_again += is_repeated(psn) ? 1 : 0;
            note_repeat(psn, sent);
        }
        return lost_again;
    }

    /// A packet has been repeated for another reason.
    void note_repeat(protocol::Psn psn, protocol::Psn sent) noexcept {
        at(psn) = {.psn = psn, .sent = sent, .order = ++repeats_};
    }

  private:
    struct Repeat {
        protocol::Psn psn{};
        protocol::Psn sent{};     // what is at or behind this one left later than the repeat
        std::uint32_t order = 0;  // of the repeats; 0: none
    };

    [[nodiscard]] bool is_here(std::uint32_t ahead) const noexcept {
        return ahead != 0 && ((here_[(ahead - 1) / 8] >> ((ahead - 1) % 8)) & 1) != 0;
    }
    /// How far ahead the last packet is that has come; 0: none has.
    [[nodiscard]] std::uint32_t last_here() const noexcept {
        for (std::size_t i = here_.size(); i-- != 0;) {
            if (here_[i] != 0) {
                return static_cast<std::uint32_t>(8 * i) + std::bit_width(here_[i]);
            }
        }
        return 0;
    }
    /// The order of the newest repeat that has come; 0: none has.
    [[nodiscard]] std::uint32_t newest_repeat_here(protocol::Psn una,
                                                   std::uint32_t last) const noexcept {
        std::uint32_t newest = 0;
        for (std::uint32_t ahead = 1; ahead <= last; ++ahead) {
            const Repeat& repeat = all_[(una + ahead).value() % kMost];
            if (is_here(ahead) && repeat.psn == una + ahead) {
                newest = std::max(newest, repeat.order);
            }
        }
        return newest;
    }
    [[nodiscard]] bool is_repeated(protocol::Psn psn) noexcept {
        return at(psn).order != 0 && at(psn).psn == psn;
    }
    [[nodiscard]] Repeat& at(protocol::Psn psn) noexcept { return all_[psn.value() % kMost]; }

    static constexpr std::uint32_t kMost = EarlyPackets::kMost;
    std::array<std::uint8_t, EarlyPackets::kMapBytes> here_{};
    std::array<Repeat, kMost> all_{};
    std::uint32_t repeats_ = 0;
};

}  // namespace rvt::core
