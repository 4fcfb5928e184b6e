// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// By what a device of packet grade sends datagrams to devices of its own host, beside its wire. A
// peer that is not reached so is reached by the wire, and one that is may still send by it.
#pragma once

#include <atomic>
#include <span>

#include <sys/uio.h>

#include "rvt/backend.h"
#include "rvt/status.h"

namespace rvt::core {

class HostWire {
  public:
    virtual ~HostWire() = default;
    HostWire(const HostWire&) = delete;
    HostWire& operator=(const HostWire&) = delete;

    /// As BackendOps::open_channel, close_channel and send_datagram of packet grade.
    virtual Result<Channel*> open_channel(const Address& dest) = 0;
    virtual void close_channel(Channel& channel) noexcept = 0;
    virtual Status send(Channel& channel, std::span<const std::byte> header,
                        std::span<const iovec> payload) noexcept = 0;
    /// Whether there is something to poll, peers that may send above all. Threads: any.
    [[nodiscard]] bool has_peers() const noexcept {
        // relaxed: a peer that is there from now on is seen at the next look.
        return has_peers_.load(std::memory_order_relaxed);
    }
    /// Hands what has arrived to the core. Returns: how many packets. Threads: one at a time.
    virtual unsigned poll(Device& device) noexcept = 0;
    /// As BackendOps::arm and wake_fd.
    virtual Status arm() noexcept = 0;
    [[nodiscard]] virtual int wake_fd() const noexcept = 0;

  protected:
    HostWire() = default;
    void note_peers(bool has_any) noexcept {
        has_peers_.store(has_any, std::memory_order_relaxed);  // relaxed: see has_peers()
    }

  private:
    std::atomic<bool> has_peers_{false};
};

}  // namespace rvt::core
