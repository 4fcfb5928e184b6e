// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What happens to a device as events, fi_domain(3): errors in the event queue that is bound to the
// domain, or to an endpoint that has the device to itself.
#pragma once

#include <array>
#include <cstdint>

#include "ofi/compat.h"
#include "util/control_thread.h"
#include "util/status.h"

namespace rvt::core {
class Context;
}

namespace rvt::ofi {

class Eq;

/// Which device, and who is told. All outlive the events.
struct DeviceNews {
    struct Told {
        Eq* eq = nullptr;  // nullptr: nobody
        fid* object = nullptr;
    };
    core::Context* context = nullptr;
    std::array<Told, 2> told{};
};

/// Threads: the control thread.
class DeviceEvents final : public util::ControlThread::Handler {
  public:
    DeviceEvents(util::ControlThread& thread, const DeviceNews& news) noexcept
        : Handler(thread), news_(news) {}
    util::Status start();
    void on_ready(std::uint32_t events) override;

  private:
    [[nodiscard]] int port_error() const noexcept;
    void report(int error);

    const DeviceNews news_;
};

}  // namespace rvt::ofi
