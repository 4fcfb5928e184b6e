// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of the application that a peer's NIC may read for as long as an operation lasts.
#pragma once

#include <cstdint>
#include <utility>

namespace rvt::core {

class CachedRegion;
class RdNic;

/// Ended by its holder. Threads: those of its operation.
struct RdLoan {
    RdNic* nic = nullptr;  // outlives it
    CachedRegion* region = nullptr;

    [[nodiscard]] bool is_any() const noexcept { return region != nullptr; }
    [[nodiscard]] std::uint32_t key() const noexcept;
    void end() noexcept;
};

}  // namespace rvt::core
