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

Address group_of(const Address& group, const Address& device) noexcept {
    return {.gid = group.gid, .port = group.port != 0 ? group.port : device.port};
}

McastTable::McastTable(std::uint32_t max_members)
    : max_members_(std::min(max_members, McastMembers::kMax)) {}

Status McastTable::attach(const Address& group, std::uint32_t qpn) {
    if (!is_multicast(group.gid)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    auto& members = groups_[{group.gid, group.port}];
    if (std::find(members.begin(), members.end(), qpn) != members.end()) {
        return kOk;
    }
    if (members.size() >= max_members_) {
        return ENOMEM;
    }
    members.push_back(qpn);
    return kOk;
}

Status McastTable::detach(const Address& group, std::uint32_t qpn) {
    const util::Guard guard(lock_);
    const auto found = groups_.find({group.gid, group.port});
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

bool McastTable::is_attached(const Address& group, std::uint32_t qpn) const noexcept {
    const McastMembers all = members(group);
    return std::find(all.begin(), all.end(), qpn) != all.end();
}

McastMembers McastTable::members(const Address& group) const noexcept {
    McastMembers members;
    const util::Guard guard(lock_);
    const auto found = groups_.find({group.gid, group.port});
    if (found != groups_.end()) {
        std::copy(found->second.begin(), found->second.end(), members.qpns_.begin());
        members.count_ = found->second.size();
    }
    return members;
}

}  // namespace rvt::core
