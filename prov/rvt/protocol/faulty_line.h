// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The last piece of wire in front of a device that has a FaultPlan: loses, doubles, holds back and
// damages packets as they arrive, before anybody looks at their ICRC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/faults.h"
#include "protocol/wire_packet.h"

namespace rvt::protocol {

/// Threads: one at a time.
class FaultyLine {
  public:
    explicit FaultyLine(const FaultPlan& plan) noexcept : injector_(plan) {}

    /// From now on. What is held back stays so.
    void set_plan(const FaultPlan& plan) noexcept { injector_ = FaultInjector(plan); }

    /// The next packet arrives.
    /// Returns: whether it passes as it is; otherwise take_due() gives what its fate leaves of it,
    ///          now or later.
    bool passes(const WirePacket& packet, std::uint64_t now_us) noexcept;
    /// A packet that has been held back for long enough. Comes behind each passes(), and where no
    /// packet arrives: none is held longer than its delay and kOvertakenUs.
    std::optional<KeptPacket> take_due(std::uint64_t now_us) noexcept;

    [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

  private:
    struct Held {
        KeptPacket packet;
        std::uint64_t due_us;
        std::uint32_t overtaken_by;  // still; behind the last of them it is due
    };
    // Of what is to be overtaken, when nothing comes that could: well below any time-out.
    static constexpr std::uint64_t kOvertakenUs = 200;
    // A wire has room for so many; more are lost.
    static constexpr std::size_t kMostHeld = 1024;

    void overtake() noexcept;
    void hold(const WirePacket& packet, const Fault& fault, std::uint64_t now_us) noexcept;

    FaultInjector injector_;
    std::vector<Held> held_;
};

}  // namespace rvt::protocol
