// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Groups of IP multicast for a device that reaches its peers in another way: RoCEv2 packets like
// those of a PacketDevice, but to and from groups alone, and none of them leaves this host.
#pragma once

#include <memory>

#include "backend/roce/groups.h"
#include "backend/roce/transmit_queue.h"
#include "backend/roce/udp_socket.h"
#include "core/group_wire.h"
#include "protocol/faults.h"
#include "protocol/pcap_writer.h"

namespace rvt::roce {

struct GroupPortAttr {
    const char* name = "groups";    // of its interface in a capture
    util::UdpPort* port = nullptr;  // of the device, once more; taken over
    int wake_fd = -1;               // of the device
    protocol::FaultPlan faults{};
    std::shared_ptr<protocol::PcapWriter> capture{};
};

class GroupPort final : public core::GroupWire {
  public:
    /// Returns: as open_group_sender(); EMFILE, ENFILE, ENOMEM, ENOSPC.
    static Result<std::unique_ptr<core::GroupWire>> open(const GroupPortAttr& attr);

    Status join(const Address& group) override { return groups_.join(group); }
    void leave(const Address& group) noexcept override { groups_.leave(group); }
    unsigned send(const AhAttr& group, std::span<const OutPacket> packets) noexcept override {
        return transmit_.send(group, packets);
    }
    void flush() noexcept override { transmit_.flush(); }
    unsigned poll(core::Device& device) noexcept override { return groups_.poll(device); }
    Status arm() noexcept override;
    [[nodiscard]] int wake_fd() const noexcept override { return groups_.wake_fd(); }

  private:
    GroupPort(UdpSocket socket, const GroupPortAttr& attr) noexcept
        : socket_(std::move(socket)),
          capture_(attr.capture, attr.name),
          transmit_(socket_, capture_),
          groups_(socket_, attr.faults, capture_) {}

    const UdpSocket socket_;
    const protocol::PcapInterface capture_;
    TransmitQueue transmit_;
    Groups groups_;
};

}  // namespace rvt::roce
