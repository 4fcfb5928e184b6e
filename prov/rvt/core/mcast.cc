// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Membership of multicast groups.
#include "core/mcast.h"

#include <algorithm>

namespace rvt::core {

bool is_multicast(const Gid& gid) noexcept {
    constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const bool is_v4 = std::equal(kMapped.begin(), kMapped.end(), gid.begin());
    return is_v4 ? (gid[12] & 0xf0) == 0xe0 : gid[0] == 0xff;
}

Status McastTable::attach(const Gid& group, std::uint32_t qpn) {
    if (!is_multicast(group)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    auto& members = groups_[group];
    if (std::find(members.begin(), members.end(), qpn) != members.end()) {
        return kOk;
    }
    if (members.size() >= max_members_) {
        return ENOMEM;
    }
    members.push_back(qpn);
    return kOk;
}

Status McastTable::detach(const Gid& group, std::uint32_t qpn) {
    const util::Guard guard(lock_);
    const auto found = groups_.find(group);
    if (found == groups_.end() || std::erase(found->second, qpn) == 0) {
        return EINVAL;
    }
    if (found->second.empty()) {
        groups_.erase(found);
    }
    return kOk;
}

bool McastTable::is_attached(std::uint32_t qpn) const noexcept {
    const util::Guard guard(lock_);
    return std::any_of(groups_.begin(), groups_.end(), [&](const auto& group) {
        return std::find(group.second.begin(), group.second.end(), qpn) != group.second.end();
    });
}

std::vector<std::uint32_t> McastTable::members(const Gid& group) const {
    const util::Guard guard(lock_);
    const auto found = groups_.find(group);
    return found == groups_.end() ? std::vector<std::uint32_t>{} : found->second;
}

}  // namespace rvt::core
