// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports of MSG endpoints: a RoCEv2 device over UDP, watched by the control thread while nobody
// polls it.
#pragma once

namespace rvt {

/// Tells ofi/ how to make ports. Threads: once, at load.
void use_msg_stations() noexcept;

}  // namespace rvt
