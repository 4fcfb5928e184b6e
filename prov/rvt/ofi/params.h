// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The run-time parameters as libfabric knows them.
#pragma once

struct fi_provider;

namespace rvt::ofi {

/// Tells libfabric about each parameter and takes the values that its environment has. Threads:
/// once, when the provider is loaded.
void define_params(fi_provider* provider) noexcept;

}  // namespace rvt::ofi
