// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Something that fills completion queues and counters when it is driven: an endpoint, or all
// endpoints of a kind together. Reading an empty queue drives its sources.
#pragma once

#include "util/status.h"

namespace rvt::core {

/// Threads: under the lock of the domain that it belongs to, but for wake_fd().
class ProgressSource {
  public:
    /// Looks for arrived work once. Returns: how many operations moved.
    using Progress = unsigned (*)(ProgressSource*) noexcept;
    Progress progress = nullptr;

    /// After many looks in vain: tells peers that have their part in what waits, and may not know.
    virtual void remind_peers_locked() noexcept {}

    /// Sleeping ("the sleeper pays"): asks that wake_fd() becomes readable with what comes next.
    /// Returns: EAGAIN when work has arrived meanwhile (call progress), 0 when it is safe to sleep.
    virtual util::Status arm_locked() noexcept = 0;
    virtual void disarm_locked() noexcept = 0;
    /// Readable when an armed source has work; owned by the source.
    virtual int wake_fd() const noexcept = 0;

  protected:
    ~ProgressSource() = default;
};

}  // namespace rvt::core
