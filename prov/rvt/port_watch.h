// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Has a device look at its port when something happens to the interface of its address, whether it
// sends or not. Threads: control thread.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "util/control_thread.h"
#include "util/link_watch.h"

namespace rvt::roce {
class PacketDevice;
}

namespace rvt {

class PortWatch final : private util::LinkWatch::Listener {
  public:
    /// @param looked  Called when the device has looked. As the device, it outlives the watch.
    PortWatch(roce::PacketDevice& device, std::function<void()> looked) noexcept
        : device_(device), looked_(std::move(looked)) {}
    ~PortWatch();
    PortWatch(const PortWatch&) = delete;
    PortWatch& operator=(const PortWatch&) = delete;

    /// Where the kernel tells nothing, or only of another network namespace than the device's, a
    /// packet that is refused tells.
    void start(util::ControlThread& thread);

  private:
    void links_changed(std::span<const unsigned> interfaces) override;

    roce::PacketDevice& device_;
    const std::function<void()> looked_;
    std::shared_ptr<util::LinkWatch> links_;
    unsigned interface_ = 0;  // of the address when it was last looked for; 0: none
};

}  // namespace rvt
