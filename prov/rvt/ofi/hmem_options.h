// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The options of endpoints about memory of devices, fi_endpoint(3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ofi/compat.h"

namespace rvt::ofi {

/// Who reaches memory of devices for an endpoint without a copy by its owner.
enum class HmemReach : std::uint8_t {
    kNobody,
    kNicOfDomain,  // which is decided where the memory is registered
    kAnyPeer,      // NICs, and processes of this host; decided for each operation
};

/// What an endpoint has been told.
struct HmemOptions {
    int p2p = FI_HMEM_P2P_ENABLED;
    HmemReach reach = HmemReach::kNobody;
    bool is_enabled = false;  // the endpoint
};

/// Whether the options are about memory of devices.
constexpr bool is_hmem_option(int option) noexcept {
    return option == FI_OPT_FI_HMEM_P2P || option == FI_OPT_XPU_TRIGGER ||
           option == kOptCudaApiPermitted;
}

/// Returns: -FI_ENOPROTOOPT, -FI_EOPNOTSUPP (there are no triggers of devices), -FI_ETOOSMALL.
int hmem_getopt(const HmemOptions& options, std::uint64_t caps, int option, void* value,
                std::size_t* bytes) noexcept;
/// Returns: -FI_EOPNOTSUPP for what cannot be, -FI_EINVAL for a value that is none, and for leave
///          to use CUDA where there is no CUDA, -FI_EOPBADSTATE for what has to be said before the
///          endpoint is enabled.
int hmem_setopt(HmemOptions& options, std::uint64_t caps, int option, const void* value,
                std::size_t bytes) noexcept;

}  // namespace rvt::ofi
