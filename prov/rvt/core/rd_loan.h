// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of the application that a peer's NIC may read for as long as an operation lasts.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/mr.h"
#include "core/owned.h"

namespace rvt::core {

class CachedRegion;
class RdNic;

/// Memory of a device that a NIC has imported. Registered while anybody has it.
using ImportedRegion = std::shared_ptr<const Owned<Mr>>;

/// Ended by its holder. Threads: those of its operation.
struct RdLoan {
    RdNic* nic = nullptr;              // outlives it
    CachedRegion* region = nullptr;    // of ordinary memory
    ImportedRegion imported{};         // of a device
    std::uint64_t device_address = 0;  // of the latter

    [[nodiscard]] bool is_any() const noexcept { return region != nullptr || imported != nullptr; }
    [[nodiscard]] std::uint32_t key() const noexcept;
    void end() noexcept;
};

}  // namespace rvt::core
