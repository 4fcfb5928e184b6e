// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Management datagrams: what devices say to each other on queue pair 1, beside the pairs of their
// users. IBTA vol. 1, 13.4 and 9.4.3 (general services interface).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/cm_messages.h"
#include "rvt/backend.h"
#include "rvt/types.h"

namespace rvt::core {

class Device;

/// Who answers for a device; Device::set_mad_sink().
class MadSink {
  public:
    /// Takes one datagram; no byte of it has been checked. Threads: that of Device::progress().
    virtual void take_mad(const Address& source,
                          std::span<const std::byte, protocol::kMadBytes> mad) noexcept = 0;
    /// The host of a peer says that nothing listened at its port when a packet for pair `dest_qpn`
    /// came. Threads: as take_mad().
    virtual void peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept = 0;
    /// A peer has sent to connected pair `qpn`, which is not there. Threads: as take_mad().
    virtual void pair_missed([[maybe_unused]] const Address& source,
                             [[maybe_unused]] std::uint32_t qpn) noexcept {}
    /// Nothing comes or goes on a channel any more. Threads: as take_mad().
    virtual void channel_failed([[maybe_unused]] Channel& channel) noexcept {}
    /// Packets to a host were too large for the way there: Device::payload_to() is less than it
    /// was. Threads: as take_mad().
    virtual void path_narrowed([[maybe_unused]] const Address& host) noexcept {}
    /// A connected pair of the device has come into the error state. Threads: any; the caller may
    /// hold locks of pairs.
    virtual void pair_failed() noexcept {}
    /// Device::port_changes() has grown. Threads: any, one at a time.
    virtual void port_changed() noexcept {}

  protected:
    ~MadSink() = default;
};

/// Sends a datagram from pair 1 to pair 1 of the device at `dest`; it may be lost like any packet.
/// Precondition: a packet-grade device. Threads: any.
void send_mad(Device& device, const Address& dest,
              std::span<const std::byte, protocol::kMadBytes> mad) noexcept;

/// The same over a channel, where it is not lost. Precondition: a segment-grade device.
/// Returns: EAGAIN when there is no room now, ENOTCONN once the channel has failed.
Status send_mad(Device& device, Channel& channel,
                std::span<const std::byte, protocol::kMadBytes> mad) noexcept;

}  // namespace rvt::core
