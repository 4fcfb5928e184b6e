// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NICs of this host, for the domains and ports of MSG endpoints.
#pragma once

namespace rvt {

/// Tells ofi/ where NICs are. Threads: once, at load.
void use_nics() noexcept;

}  // namespace rvt
