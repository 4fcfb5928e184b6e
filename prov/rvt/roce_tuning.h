// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the user's parameters ask of packet devices: who opens one puts it into its attributes.
#pragma once

#include <memory>

#include "protocol/faults.h"
#include "protocol/pcap_writer.h"

namespace rvt {

/// FI_RVT_FAULT, read by the first call. One that cannot be read is no fault at all, after a
/// warning that says where.
protocol::FaultPlan packet_faults() noexcept;

/// FI_RVT_PCAP: one capture for all devices of this process, opened by the first call and complete
/// when the process exits. Returns: nullptr when none is asked for, or none can be written.
std::shared_ptr<protocol::PcapWriter> packet_capture() noexcept;

}  // namespace rvt
