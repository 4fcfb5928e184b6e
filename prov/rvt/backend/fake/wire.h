// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The packet backend for tests: devices of one process, joined by a wire that loses, duplicates,
// reorders, delays and corrupts on command, in front of each device. Packets carry an ICRC, so that
// what was corrupted is found as on a real wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "protocol/faults.h"
#include "protocol/faulty_line.h"
#include "protocol/wire_packet.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/mutex.h"

namespace rvt::core {
class Registry;
}  // namespace rvt::core

namespace rvt::fake {

class Wire;

/// One end of the wire; the private data of its device.
struct Port {
    Wire* wire = nullptr;
    core::Device* device = nullptr;
};

/// Threads: any; devices may be polled by different ones.
class Wire {
  public:
    /// @param room  Packets that may be under way to one device; more are not taken.
    explicit Wire(std::size_t room = 256) noexcept : room_(room) {}

    /// From now on. The default is a wire without faults.
    void set_faults(const protocol::FaultPlan& plan) noexcept;

    /// From now on a router loses packets with more payload than that, and tells who sends one.
    void narrow(std::uint32_t payload_bytes) noexcept;

    /// Called with each call that sends, which it may make take longer. Set before that.
    std::function<void()> on_send;

    /// Says of a packet, without its ICRC, whether no fault befalls it. Set before anything is
    /// sent.
    std::function<bool(std::span<const std::byte> packet)> spares;

    /// Makes `port` a device on this wire. Returns: errors of Registry::add_device().
    Status attach(core::Registry& registry, Port& port, const DeviceInfo& info);
    /// Takes the port off the wire; what is under way to it is lost.
    void detach(Port& port) noexcept;

    /// Packets whose ICRC was wrong when they arrived.
    [[nodiscard]] std::uint64_t corrupted() const noexcept;

    // ---- entries of the devices ----

    unsigned send(Port& from, const AhAttr& dest, std::span<const OutPacket> packets);
    unsigned deliver(Port& to);
    [[nodiscard]] std::uint32_t path_payload(const Port& from);

  private:
    /// A port's end of the wire.
    struct End {
        Port* port = nullptr;
        std::vector<protocol::KeptPacket> arrived{};  // since the port last polled
        protocol::FaultyLine line;
        std::uint32_t path_payload = kMaxPayload;  // as far as it has been told
        std::optional<Address> too_large_to{};     // the news, until the port polls
    };

    [[nodiscard]] End* end_of_locked(const Port& port) RVT_REQUIRES(lock_);
    void tell_of_narrow_way(Port& to);

    [[nodiscard]] protocol::FaultPlan plan_of_locked(std::size_t end) const RVT_REQUIRES(lock_);
    [[nodiscard]] bool has_room_locked(const End& to) const RVT_REQUIRES(lock_) {
        return to.arrived.size() + to.line.held() < room_;
    }
    [[nodiscard]] std::vector<protocol::KeptPacket> take_due(Port& to);

    const std::size_t room_;
    mutable util::Mutex lock_;  // order: innermost
    std::vector<End> ends_ RVT_GUARDED_BY(lock_);
    protocol::FaultPlan plan_ RVT_GUARDED_BY(lock_);
    std::uint32_t narrowest_ RVT_GUARDED_BY(lock_) = kMaxPayload;
    std::uint64_t corrupted_ RVT_GUARDED_BY(lock_) = 0;
};

}  // namespace rvt::fake
