// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "core/shortage.h"

#include <cerrno>

#include "core/device.h"

namespace rvt::core {
namespace {

/// @param count  How many of them the device has for all processes; 0: it does not say.
std::string nic_shortage(const Device& device, const char* what, std::uint32_t count,
                         util::Status why) {
    const std::string all = std::to_string(count) + " " + what + " of " + device.name();
    if (why.error() == ENOSPC && count != 0) {
        return "; this process has all " + all;
    }
    if (why.error() == EDQUOT) {
        return "; look at the limit of this control group (hca_object in rdma.max)";
    }
    if (why.error() != ENOMEM) {
        return {};
    }
    constexpr const char* kLocked = "; look at the limit of locked memory (ulimit -l)";
    return count == 0 ? kLocked : kLocked + (", or at who else has some of the " + all);
}

}  // namespace

std::string region_shortage(const Device& device, util::Status why) {
    return nic_shortage(device, "regions (max_mr)", device.limits().own_max_mr, why);
}

std::string pair_shortage(const Device& device, util::Status why) {
    constexpr const char* kWhat = "queue pairs (max_qp)";
    if (device.grade() != Grade::kVerb) {
        return why.error() != ENOMEM ? std::string()
                                     : "; " + device.name() + " has at most " +
                                           std::to_string(device.limits().max_qp) + " " + kWhat;
    }
    return nic_shortage(device, kWhat, device.limits().own_max_qp, why);
}

}  // namespace rvt::core
