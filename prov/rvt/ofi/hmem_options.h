// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The options of endpoints about memory of devices, fi_endpoint(3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ofi/compat.h"

namespace rvt::ofi {

/// What an endpoint has been told. Whether a NIC reaches memory of a device is decided where that
/// is registered, so that there is nothing else to remember it for than to answer it.
struct HmemOptions {
    int p2p = FI_HMEM_P2P_ENABLED;
    bool has_nic = false;  // which may reach it
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
///          to use CUDA where there is no CUDA.
int hmem_setopt(HmemOptions& options, std::uint64_t caps, int option, const void* value,
                std::size_t bytes) noexcept;

}  // namespace rvt::ofi
