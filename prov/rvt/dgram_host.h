// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_DGRAM: where the libfabric layer, the core's datagram endpoint and its device meet: one of
// RoCEv2, of its own or shared with others; for addresses of this host alone, one of shared memory;
// or that of a NIC.
#pragma once

#include <memory>

#include "core/ud_endpoint.h"
#include "ofi/msg_nic.h"
#include "util/sock_addr.h"

namespace rvt {

/// Gives DGRAM endpoints their devices. Threads: once, at load.
void use_dgram_hosts() noexcept;

/// A device at the address of an endpoint, and the control thread's eye on it.
///
/// @param nic  The device; nullptr: none of a NIC.
/// Returns: as roce::PacketDevice::open(), open_datagram_number(), shm::SegmentDevice::open() or
///          ofi::MsgNic::open_datagrams().
Result<std::unique_ptr<core::UdHost>> open_dgram_host(const core::UdHostAttr& attr,
                                                      ofi::MsgNic* nic = nullptr);

/// The payload of a datagram from that address. Returns: as roce::payload_of().
Result<std::uint32_t> dgram_bytes_of(const util::SockAddr& address);

}  // namespace rvt
