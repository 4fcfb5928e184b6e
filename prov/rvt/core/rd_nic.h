// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What those flows of an RD endpoint have in common that go over a NIC: receives, which serve all
// their pairs, and completions. A frame arrives whole, in one of the receives, and is handed to its
// flow from there.
//
// Each frame's completion is asked for, and there is room for all that can be under way: so many
// flows the NIC carries, further ones take packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/context.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

class RdFlow;

/// Threads: who polls the flows, where a member does not say otherwise.
class RdNic {
  public:
    static constexpr std::uint32_t kFrameBytes = 16u << 10;  // the longest

    /// @param device  Of verb grade; outlives this.
    /// Returns: ENOMEM when not even a few receives can be registered; errors of the device.
    static Result<std::unique_ptr<RdNic>> open(Device& device);
    /// Precondition: no flow has a pair.
    ~RdNic();
    RdNic(const RdNic&) = delete;
    RdNic& operator=(const RdNic&) = delete;

    [[nodiscard]] Device& device() const noexcept { return device_; }

    /// Makes a pair for the flow, in state INIT. Returns: ENOSPC when the NIC carries as many as it
    /// can; errors of the device. Threads: any.
    Status make_pair(RdFlow& flow, Owned<Qp>& place);
    /// Registers what the flow's frames lie in. Threads: any.
    Status register_frames(std::span<std::byte> memory, Owned<Mr>& place) const;
    /// Nothing more is handed to the flow, whose pair goes next. Threads: any that keeps poll()
    /// out.
    void forget(const Qp& qp) noexcept;

    /// Hands frames to their flows, and counts what has been sent, until a flow has no room.
    /// @param failed  Gets the ids of flows whose pairs have failed.
    /// Returns: how many completions there were.
    unsigned poll(std::vector<std::uint64_t>& failed) noexcept;
    /// Asks that the next completion makes wake_fd() readable. Returns: EAGAIN when one is there.
    Status arm() noexcept;
    [[nodiscard]] int wake_fd() const noexcept { return device_.ops().wake_fd(device_); }

  private:
    struct Unmap {
        std::size_t bytes;
        void operator()(std::byte* memory) const noexcept;
    };

    explicit RdNic(Device& device) noexcept : device_(device) {}
    Status start();
    Status start_receives();
    Status post(std::uint64_t index) noexcept;
    bool take(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept;
    bool take_frame(const Wc& wc) noexcept;
    RdFlow* find(std::uint32_t qpn) noexcept;

    Device& device_;
    Owned<Context> context_;
    Owned<CompChannel> channel_;
    Owned<Pd> pd_;
    Owned<VerbsCq> cq_;
    std::unique_ptr<std::byte[], Unmap> memory_{nullptr, Unmap{0}};
    Owned<Mr> region_;
    Owned<Srq> receives_;
    std::uint32_t max_flows_ = 0;

    // Completions that have been read, from next_ on not looked at.
    std::array<Wc, 32> read_{};
    unsigned count_ = 0;
    unsigned next_ = 0;

    util::SpinLock lock_;                                                     // order: innermost
    std::unordered_map<std::uint32_t, RdFlow*> flows_ RVT_GUARDED_BY(lock_);  // by their pairs
};

}  // namespace rvt::core
