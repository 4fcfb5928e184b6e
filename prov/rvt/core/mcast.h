// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Multicast groups of a device: which UD pairs get a copy of what is sent to a group address.
// Whether datagrams of other devices arrive is the backend's: see attach_mcast in rvt/backend.h.
// IBTA vol. 1, 10.5; ibv_attach_mcast(3).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "rvt/status.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

using Gid = std::array<std::uint8_t, 16>;

/// Whether an address is a group's: IPv6 ff00::/8, or an IPv4-mapped 224.0.0.0/4.
bool is_multicast(const Gid& gid) noexcept;

/// A group is an address and a port; one without a port has that of the device.
Address group_of(const Address& group, const Address& device) noexcept;

/// The numbers of a group's pairs at one moment.
class McastMembers {
  public:
    static constexpr std::uint32_t kMax = 256;

    [[nodiscard]] const std::uint32_t* begin() const noexcept { return qpns_.data(); }
    [[nodiscard]] const std::uint32_t* end() const noexcept { return qpns_.data() + count_; }

  private:
    friend class McastTable;
    std::array<std::uint32_t, kMax> qpns_;  // only the first count_ are written
    std::size_t count_ = 0;
};

class McastTable {
  public:
    /// @param max_members  Of a group; at most McastMembers::kMax count.
    explicit McastTable(std::uint32_t max_members);

    /// Attaching twice is attaching once.
    /// Returns: EINVAL when `group` is no group address, ENOMEM when the group is full.
    Status attach(const Address& group, std::uint32_t qpn);
    /// Returns: EINVAL when the pair is not attached.
    Status detach(const Address& group, std::uint32_t qpn);
    [[nodiscard]] bool is_attached(std::uint32_t qpn) const noexcept;
    [[nodiscard]] bool is_attached(const Address& group, std::uint32_t qpn) const noexcept;

    [[nodiscard]] McastMembers members(const Address& group) const noexcept;

  private:
    using Key = std::pair<Gid, std::uint16_t>;

    const std::uint32_t max_members_;
    mutable util::Mutex lock_;  // order: innermost
    std::map<Key, std::vector<std::uint32_t>> groups_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::core
