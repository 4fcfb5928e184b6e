// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One UDP port for all MSG and DGRAM endpoints of an address, as peers that are not rvt know it:
// they tell endpoints apart by the service numbers of rdma_cm. Such a number stands in place of a
// port.
#pragma once

#include <cstdint>
#include <memory>

#include "ofi/msg_port.h"

namespace rvt {

/// Opens the device of an address at the UDP port `roce_port`.
using OpenSharedDevice = util::Result<std::shared_ptr<ofi::MsgPort>> (*)(
    const util::SockAddr& address, std::uint16_t roce_port);

/// Numbers of connections and of datagrams are different ones.
enum class PortSpace : std::uint8_t { kConnections, kDatagrams };

/// Takes the number that the address has for its port, or a free one for 0, at the device of that
/// IP address, which is opened with the first of them and closed with the last.
/// Returns: EADDRINUSE when this process has that number already, or another the UDP port; else as
///          open_device().
/// Threads: any.
util::Result<std::shared_ptr<ofi::MsgPort>> open_shared_port(const util::SockAddr& address,
                                                             PortSpace space,
                                                             std::uint16_t roce_port,
                                                             OpenSharedDevice open_device);

}  // namespace rvt
