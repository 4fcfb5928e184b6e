// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Something that fills completion queues and counters when it is driven: an endpoint, or all
// endpoints of a kind together. Reading an empty queue drives its sources.
#pragma once

#include "util/sleepers.h"
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

    /// Who sleeps on wake_fd(), or may. They are counted before arm_locked(), once for each queue
    /// or counter.
    util::Sleepers sleepers;
    /// Sleeping ("the sleeper pays"): asks that wake_fd() becomes readable with what comes next.
    /// Returns: EAGAIN when work has arrived meanwhile (call progress), 0 when it is safe to sleep.
    virtual util::Status arm_locked() noexcept = 0;
    /// Somebody is awake, or has not fallen asleep, who is counted no more: ends what arm_locked()
    /// asked for unless others count on it.
    virtual void disarm_locked() noexcept = 0;
    /// Readable when an armed source has work; owned by the source.
    virtual int wake_fd() const noexcept = 0;

  protected:
    ~ProgressSource() = default;
};

}  // namespace rvt::core
