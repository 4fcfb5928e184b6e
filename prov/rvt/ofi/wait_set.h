// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Wait sets: queues and counters that share one wait object. fi_poll(3), "fi_wait_open".
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "ofi/compat.h"
#include "ofi/fabric.h"
#include "ofi/fid.h"
#include "ofi/wait.h"
#include "util/unique_fd.h"

namespace rvt::ofi {

class WaitSet {
  public:
    static WaitSet& from(fid_wait* self) noexcept { return *reinterpret_cast<WaitSet*>(self); }
    static WaitSet& from(fid* self) noexcept { return *reinterpret_cast<WaitSet*>(self); }

    /// Returns: as WaitObject::open(), EMFILE.
    util::Status open(fi_wait_obj kind);

    /// A member's epoll descriptor, with which it uses the set: that is the last it takes away.
    /// Returns: as epoll_ctl(2).
    util::Status add_source(int fd);
    void remove_source(int fd) noexcept;
    /// Objects that must be asked for work before a sleep. One that comes wakes who sleeps already;
    /// none is asked any more once it has been removed. Threads: any.
    void add_member(fid* member);
    void remove_member(const fid* member) noexcept;

    /// Asks every member. Returns: 0 when it is safe to sleep, -FI_EAGAIN when one has something.
    int try_wait() noexcept;
    /// fi_wait(3). Returns: 0 when a member may have something, -FI_ETIMEDOUT.
    int wait(int timeout_ms) noexcept;

    fid_wait handle{};
    Fabric* fabric = nullptr;
    Users users;
    WaitObject object;
    std::mutex members_lock;  // order: before the domain's
    std::vector<fid*> members;

  private:
    int try_wait_locked() noexcept;
    std::optional<unsigned> fall_asleep() noexcept;
    void wake_up(unsigned look) noexcept;

    util::UniqueFd doorbell_;          // readable when there is a member that nobody has asked
    unsigned members_added_ = 0;       // under members_lock
    Onlookers<unsigned> onlookers_{};  // who has asked all of them
};

/// fi_ops_fabric.wait_open.
int wait_open(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** wait_set) noexcept;

}  // namespace rvt::ofi
