// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports of MSG endpoints: a RoCEv2 device over UDP or, for addresses of this host alone, a device
// of shared memory; watched by the control thread while nobody polls them.
#pragma once

namespace rvt {

/// Tells ofi/ how to make ports. Threads: once, at load.
void use_msg_stations() noexcept;

}  // namespace rvt
