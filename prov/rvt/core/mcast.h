// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Multicast groups of a device: which UD pairs get a copy of what is sent to a group address.
// Groups do not reach beyond the device: see attach_mcast in rvt/backend.h.
// IBTA vol. 1, 10.5; ibv_attach_mcast(3).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "rvt/status.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

using Gid = std::array<std::uint8_t, 16>;

/// Whether an address is a group's: IPv6 ff00::/8, or an IPv4-mapped 224.0.0.0/4.
bool is_multicast(const Gid& gid) noexcept;

class McastTable {
  public:
    explicit McastTable(std::uint32_t max_members) : max_members_(max_members) {}

    /// Attaching twice is attaching once.
    /// Returns: EINVAL when `group` is no group address, ENOMEM when the group is full.
    Status attach(const Gid& group, std::uint32_t qpn);
    /// Returns: EINVAL when the pair is not attached.
    Status detach(const Gid& group, std::uint32_t qpn);
    [[nodiscard]] bool is_attached(std::uint32_t qpn) const noexcept;

    /// The members' numbers at this moment.
    [[nodiscard]] std::vector<std::uint32_t> members(const Gid& group) const;

  private:
    const std::uint32_t max_members_;
    mutable util::Mutex lock_;  // order: innermost
    std::map<Gid, std::vector<std::uint32_t>> groups_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::core
