// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a device of segment grade sends to groups by: who is in a group knows a network, while its
// channels lead to one peer each.
#pragma once

#include <span>

#include "rvt/backend.h"
#include "rvt/status.h"

namespace rvt::core {

class GroupWire {
  public:
    virtual ~GroupWire() = default;
    GroupWire(const GroupWire&) = delete;
    GroupWire& operator=(const GroupWire&) = delete;

    /// As BackendOps::attach_mcast and detach_mcast.
    virtual Status join(const Address& group) = 0;
    virtual void leave(const Address& group) noexcept = 0;
    /// As BackendOps::send_packets and flush_packets.
    virtual unsigned send(const AhAttr& group, std::span<const OutPacket> packets) noexcept = 0;
    virtual void flush() noexcept = 0;
    /// Hands what has arrived to the core. Returns: how many packets. Threads: one at a time.
    virtual unsigned poll(Device& device) noexcept = 0;
    /// As BackendOps::arm and wake_fd.
    virtual Status arm() noexcept = 0;
    [[nodiscard]] virtual int wake_fd() const noexcept = 0;

  protected:
    GroupWire() = default;
};

}  // namespace rvt::core
