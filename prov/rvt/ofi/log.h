// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sends the provider's log lines to libfabric.
#pragma once

struct fi_provider;

namespace rvt::ofi {

/// Whose lines they are from now on. `provider` stays for good.
void log_to_libfabric(const fi_provider* provider) noexcept;

}  // namespace rvt::ofi
