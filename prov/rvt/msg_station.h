// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports of MSG endpoints: a RoCEv2 device over UDP or, for addresses of this host alone, a device
// of shared memory; watched by the control thread while nobody polls them.
#pragma once

#include <memory>

#include "ofi/msg_port.h"

namespace rvt {

/// Tells ofi/ how to make ports. Threads: once, at load.
void use_msg_stations() noexcept;

/// Whether the endpoints of an address share a device, as the setting FI_RVT_ROCE_PORT says.
bool shares_device(const util::SockAddr& address) noexcept;

/// Takes a number for datagrams at the device of such an address. Returns: as open_shared_port().
util::Result<std::shared_ptr<ofi::MsgPort>> open_datagram_number(const util::SockAddr& address);

}  // namespace rvt
