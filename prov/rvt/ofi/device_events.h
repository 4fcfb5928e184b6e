// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What happens to a device as events, fi_domain(3): errors in the event queue that is bound to the
// domain, or to an endpoint that reaches its peers by it.
#pragma once

#include <array>
#include <cstdint>

#include "core/owned.h"
#include "ofi/compat.h"
#include "util/control_thread.h"
#include "util/status.h"
#include "util/watched.h"

namespace rvt::core {
class Context;
class Device;
}  // namespace rvt::core

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

/// The same of a device that is open for something else, too: from start() on.
class DeviceWatch {
  public:
    /// Returns: ENODEV for a device that is going; EMFILE, ENOMEM.
    util::Status start(core::Device& device, const std::array<DeviceNews::Told, 2>& told);

  private:
    // In the order in which they are made.
    core::Owned<core::Context> context_;
    util::Watched<DeviceEvents> events_;
};

}  // namespace rvt::ofi
