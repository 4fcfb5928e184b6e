// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// An end of calls on FI_EP_MSG: of rvt with FI_RVT_ROCE_PORT=4791 for a peer on librdmacm, or in
// the domain of the NIC that RVT_VM_NIC names, there also of the provider that RVT_VM_PROVIDER
// names.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "calls.h"

namespace calls {

/// @param options  Outlive the end.
/// @param memory  Is registered for everything; outlives the end, as does the process.
std::unique_ptr<End> make_msg_end(const traffic::Options& options, std::span<std::byte> memory);

}  // namespace calls
