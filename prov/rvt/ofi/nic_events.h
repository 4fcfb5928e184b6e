// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What happens to a NIC as events of its domain, fi_domain(3): errors in the event queue that is
// bound to the domain.
#pragma once

#include <cstdint>

#include "ofi/compat.h"
#include "util/control_thread.h"
#include "util/status.h"

namespace rvt::ofi {

struct Domain;

/// Threads: the control thread.
class NicEvents final : public util::ControlThread::Handler {
  public:
    /// @param domain  A NIC's, with a queue bound; outlives this.
    NicEvents(util::ControlThread& thread, Domain& domain) noexcept
        : Handler(thread), domain_(domain) {}
    util::Status start();
    void on_ready(std::uint32_t events) override;

  private:
    void report(int error);

    Domain& domain_;
};

}  // namespace rvt::ofi
