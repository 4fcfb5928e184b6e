// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/hmem_options.h"

#include <cstring>

#include "hmem/claimants.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

int refuse_p2p(const char* value, const char* why) noexcept {
    RVT_WARN(kEpCtrl, "cannot set FI_OPT_FI_HMEM_P2P to %s: %s", value, why);
    return -FI_EOPNOTSUPP;
}

/// Where nobody but the owner reaches the memory, all is copied as it is.
int disable_p2p(const HmemOptions& options) noexcept {
    return options.reach == HmemReach::kNicOfDomain && !hmem::has_no_p2p()
               ? refuse_p2p("FI_HMEM_P2P_DISABLED",
                            "the NIC reaches regions from when they are registered; set "
                            "FI_HMEM_DISABLE_P2P=1")
               : 0;
}

int require_p2p(const HmemOptions& options) noexcept {
    constexpr const char* kValue = "FI_HMEM_P2P_REQUIRED";
    if (hmem::has_no_p2p()) {
        return refuse_p2p(kValue, "FI_HMEM_DISABLE_P2P forbids it");
    }
    switch (options.reach) {
        case HmemReach::kNicOfDomain: return 0;
        case HmemReach::kAnyPeer:
            return refuse_p2p(kValue,
                              "short messages are copied by the CPU, whatever else reaches "
                              "the memory; FI_HMEM_P2P_PREFERRED is offered");
        case HmemReach::kNobody: break;
    }
    return refuse_p2p(
        kValue, "all is copied by the CPU; FI_EP_MSG endpoints in the domain of a NIC have it");
}

/// What an operation may do is settled when its peer is told how to reach us.
int check_state(const HmemOptions& options, int asked) noexcept {
    const bool is_other = (asked == FI_HMEM_P2P_DISABLED) != (options.p2p == FI_HMEM_P2P_DISABLED);
    if (options.reach != HmemReach::kAnyPeer || !options.is_enabled || !is_other) {
        return 0;
    }
    RVT_WARN(kEpCtrl, "cannot set FI_OPT_FI_HMEM_P2P: the endpoint is enabled; set it before");
    return -FI_EOPBADSTATE;
}

int set_p2p(HmemOptions& options, const void* value, std::size_t bytes) noexcept {
    int asked = 0;
    if (bytes != sizeof asked) {
        return -FI_EINVAL;
    }
    std::memcpy(&asked, value, sizeof asked);
    int refused = 0;
    switch (asked) {
        case FI_HMEM_P2P_ENABLED:
        case FI_HMEM_P2P_PREFERRED: break;
        case FI_HMEM_P2P_DISABLED: refused = disable_p2p(options); break;
        case FI_HMEM_P2P_REQUIRED: refused = require_p2p(options); break;
        default: return -FI_EINVAL;
    }
    refused = refused == 0 ? check_state(options, asked) : refused;
    options.p2p = refused == 0 ? asked : options.p2p;
    return refused;
}

/// Memory of CUDA that the CPU cannot map is copied by calls of CUDA.
int set_cuda_permitted(std::uint64_t caps, const void* value, std::size_t bytes) noexcept {
    bool is_permitted = false;
    if (bytes != sizeof is_permitted) {
        return -FI_EINVAL;
    }
    std::memcpy(&is_permitted, value, sizeof is_permitted);
    if ((caps & FI_HMEM) == 0) {
        return 0;  // it makes none
    }
    if (!hmem::claimant_of(hmem::Kind::kCuda).is_ok()) {
        return -FI_EINVAL;
    }
    return is_permitted ? 0 : -FI_EOPNOTSUPP;
}

}  // namespace

int hmem_getopt(const HmemOptions& options, std::uint64_t caps, int option, void* value,
                std::size_t* bytes) noexcept {
    if (option == FI_OPT_XPU_TRIGGER) {
        return -FI_EOPNOTSUPP;
    }
    if (option != FI_OPT_FI_HMEM_P2P || (caps & FI_HMEM) == 0) {
        return -FI_ENOPROTOOPT;
    }
    const std::size_t room = *bytes;
    *bytes = sizeof options.p2p;
    if (room < sizeof options.p2p) {
        return -FI_ETOOSMALL;
    }
    std::memcpy(value, &options.p2p, sizeof options.p2p);
    return 0;
}

int hmem_setopt(HmemOptions& options, std::uint64_t caps, int option, const void* value,
                std::size_t bytes) noexcept {
    if (option == kOptCudaApiPermitted) {
        return set_cuda_permitted(caps, value, bytes);
    }
    return option == FI_OPT_FI_HMEM_P2P && (caps & FI_HMEM) != 0 ? set_p2p(options, value, bytes)
                                                                 : -FI_EOPNOTSUPP;
}

}  // namespace rvt::ofi
