// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "ofi/hmem_options.h"

#include <cstring>

#include "hmem/claimants.h"

namespace rvt::ofi {
namespace {

/// Without a NIC the processor has all transfers go through it: that may be wished, and cannot be
/// forbidden. With one it depends on each region, and can be neither.
int set_p2p(HmemOptions& options, const void* value, std::size_t bytes) noexcept {
    int asked = 0;
    if (bytes != sizeof asked) {
        return -FI_EINVAL;
    }
    std::memcpy(&asked, value, sizeof asked);
    switch (asked) {
        case FI_HMEM_P2P_ENABLED:
        case FI_HMEM_P2P_PREFERRED: options.p2p = asked; return 0;
        case FI_HMEM_P2P_DISABLED:
            if (options.has_nic && !hmem::has_no_p2p()) {
                return -FI_EOPNOTSUPP;
            }
            options.p2p = asked;
            return 0;
        case FI_HMEM_P2P_REQUIRED: return -FI_EOPNOTSUPP;
        default: return -FI_EINVAL;
    }
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
