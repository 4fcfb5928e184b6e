// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The control thread's eye on the wire of one endpoint. While the wire is quiet it waits for a
// packet and tells the owner; while the owner does not poll it answers peers in its stead. Threads:
// control thread, where a member does not say otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "backend/shm/connection.h"
#include "core/rd_flows.h"
#include "util/control_thread.h"

namespace rvt {

class WireWatch final : public util::ControlThread::Handler {
  public:
    /// All outlive the watch.
    /// @param is_hot  Set when there is something to poll for; cleared by who polls.
    WireWatch(util::ControlThread& thread, shm::ConnectionUser& user, core::RdFlows& flows,
              std::atomic<bool>& is_hot, bool has_auto_progress) noexcept
        : Handler(thread),
          user_(user),
          flows_(flows),
          is_hot_(is_hot),
          has_auto_progress_(has_auto_progress) {}

    /// Begins to watch the device's socket. Returns: ENOMEM, ENOSPC.
    util::Status start();
    /// The owner has found the wire quiet and leaves it to the watch. Threads: any.
    void leave_to_watch() noexcept;

    void on_ready(std::uint32_t events) override;
    void on_timer() override;

  private:
    using Clock = util::ControlThread::Clock;

    void take_over();
    void rest();
    void trim();

    shm::ConnectionUser& user_;
    core::RdFlows& flows_;
    std::atomic<bool>& is_hot_;
    const bool has_auto_progress_;
    std::uint64_t last_count_ = 0;
    std::chrono::milliseconds pause_{0};
    Clock::time_point next_trim_{};
};

}  // namespace rvt
