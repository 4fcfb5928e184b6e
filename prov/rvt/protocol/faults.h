// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What a wire does to packets on command, so that tests and users see what loss costs. A backend
// asks once for each packet, after segmentation and before its ICRC is checked. The same seed gives
// the same faults.
#pragma once

#include <cstdint>
#include <string_view>

#include "rvt/status.h"

namespace rvt::protocol {

/// Chances in millionths.
struct FaultPlan {
    std::uint32_t drop = 0;
    std::uint32_t duplicate = 0;
    std::uint32_t reorder = 0;  // is overtaken by some of those behind it
    std::uint32_t corrupt = 0;  // one bit changes
    std::uint32_t delay = 0;
    std::uint32_t delay_us = 100;  // of those delayed, at most
    std::uint64_t seed = 1;

    [[nodiscard]] bool has_faults() const noexcept {
        return (drop | duplicate | reorder | corrupt | delay) != 0;
    }
    friend bool operator==(const FaultPlan&, const FaultPlan&) noexcept = default;
};

/// Reads "drop=1%,delay=0.5%:200us,seed=7": names as above, chances in percent.
/// Returns: EINVAL for a name or value that it does not know.
Result<FaultPlan> parse_faults(std::string_view text) noexcept;
/// The first part, up to a comma, that parse_faults() does not know; empty when it knows all.
std::string_view unknown_fault(std::string_view text) noexcept;

/// What happens to one packet.
struct Fault {
    bool is_dropped = false;
    bool is_duplicated = false;
    std::uint32_t overtaken_by = 0;  // packets
    bool is_corrupted = false;
    std::uint64_t corrupt_bit = 0;  // modulo the packet's bits that the ICRC covers
    std::uint32_t delay_us = 0;
};

class FaultInjector {
  public:
    explicit FaultInjector(const FaultPlan& plan) noexcept : plan_(plan), state_(plan.seed) {}

    [[nodiscard]] const FaultPlan& plan() const noexcept { return plan_; }
    /// The fate of the next packet. Threads: one at a time.
    Fault next() noexcept;

  private:
    std::uint64_t random() noexcept;
    bool happens(std::uint32_t millionths) noexcept;

    FaultPlan plan_;
    std::uint64_t state_;
};

}  // namespace rvt::protocol
