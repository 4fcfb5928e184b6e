// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lets messages go that are held for the next poll (core/send_hold.h), where the application does
// not poll in time. Threads: control thread.
#pragma once

#include "core/device.h"
#include "util/control_thread.h"
#include "util/unique_fd.h"

namespace rvt {

class WatchedWire;

class HoldWatch final : public util::ControlThread::Handler {
  public:
    /// All outlive the watch.
    HoldWatch(util::ControlThread& thread, WatchedWire& wire, core::Device& device) noexcept
        : Handler(thread), wire_(wire), device_(device) {}
    ~HoldWatch() override;
    HoldWatch(const HoldWatch&) = delete;
    HoldWatch& operator=(const HoldWatch&) = delete;

    /// Returns: EMFILE, ENOMEM, ENOSPC.
    util::Status start();
    void on_ready(std::uint32_t events) override;

  private:
    WatchedWire& wire_;
    core::Device& device_;
    util::UniqueFd timer_;
};

}  // namespace rvt
