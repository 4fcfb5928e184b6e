// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who takes the SENDs of a connected pair as their packets arrive, in place of posted receives: no
// copy but the taker's own.
#pragma once

#include <cstddef>
#include <span>

namespace rvt::core {

class MessageSink {
  public:
    /// Whether a message may begin now. If not, the peer is told to try again (RNR NAK). Under the
    /// pair's rx_lock.
    [[nodiscard]] virtual bool has_room() noexcept = 0;
    /// The payload of the next packet of a message: each once, in order. What `part` names is valid
    /// during the call. Threads: that of Device::progress(), which holds no lock of the pair.
    virtual void take(std::span<const std::byte> part, bool starts, bool ends) noexcept = 0;

    /// Whether something leaves to the peer with the poll that is under way that says which packets
    /// have come: no acknowledgement needs to. Under the pair's rx_lock.
    [[nodiscard]] virtual bool will_tell() const noexcept = 0;

  protected:
    ~MessageSink() = default;
};

}  // namespace rvt::core
