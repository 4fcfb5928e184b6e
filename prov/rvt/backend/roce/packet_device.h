// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A device of the verbs core that speaks RoCEv2 over an ordinary UDP socket: to others of its kind
// on any port, to kernel rxe and RoCE NICs on port 4791. Needs no privilege.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/roce/groups.h"
#include "backend/roce/receive_queue.h"
#include "backend/roce/transmit_queue.h"
#include "backend/roce/udp_socket.h"
#include "core/device.h"
#include "core/host_wire.h"
#include "core/registry.h"
#include "protocol/faults.h"
#include "protocol/pcap_writer.h"
#include "util/annotations.h"
#include "util/cpu.h"
#include "util/mutex.h"

namespace rvt::roce {

struct PacketDeviceAttr {
    const char* name = "roce";        // under which the core lists it
    util::SockAddr address{};         // one address of this host; port 0: any free one
    util::UdpPort* port = nullptr;    // in place of an address: taken over when the device opens
    std::uint32_t payload_bytes = 0;  // of a packet; 0: what the interface takes
    bool joins_groups = false;        // of IP multicast; without it, groups end at the device
    DeviceLimits limits{};
    std::uint64_t (*now_us)() noexcept = nullptr;     // see DeviceInfo
    protocol::FaultPlan faults{};                     // of each packet that arrives
    std::shared_ptr<protocol::PcapWriter> capture{};  // of what is sent and arrives
};

class PacketDevice {
  public:
    /// Takes the address and registers the device with the core.
    /// Returns: errors of open_udp_socket(), payload_of() and Registry::add_device(); EMSGSIZE for
    /// an
    ///          payload_bytes that the interface does not take.
    static Result<std::unique_ptr<PacketDevice>> open(core::Registry& registry,
                                                      const PacketDeviceAttr& attr);
    /// Precondition: close() succeeded, or open() did not.
    ~PacketDevice() = default;
    PacketDevice(const PacketDevice&) = delete;
    PacketDevice& operator=(const PacketDevice&) = delete;

    core::Device& device() noexcept { return *device_; }
    [[nodiscard]] const util::SockAddr& address() const noexcept { return socket_.port.address; }
    /// Finds out whether the interface still has the address, and what it takes, without waiting
    /// for a packet that is refused; which interface that is, too, for groups. Threads: any.
    void look_at_port() noexcept;
    /// The port of the address once more. Returns: EMFILE.
    util::Result<util::UdpPort> share_port() const { return util::share(socket_.port); }
    /// Sends datagrams to this host by `host`, where it reaches their destination. Before the first
    /// use of a device that joins groups. Returns: ENOMEM, ENOSPC.
    Status use_host_wire(std::unique_ptr<core::HostWire> host) noexcept;
    /// Whether peers may send by it: a look at these costs no system call.
    [[nodiscard]] bool has_host_peers() const noexcept {
        return host_wire_ != nullptr && host_wire_->has_peers();
    }
    [[nodiscard]] const ReceiveQueue& receive_queue() const noexcept { return receive_; }
    /// As ReceiveQueue::corrupted(), of the device and of its groups. Threads: any.
    [[nodiscard]] std::uint64_t corrupted() const noexcept {
        return receive_.corrupted() + groups_.corrupted();
    }
    [[nodiscard]] const TransmitQueue& transmit_queue() const noexcept { return transmit_; }

    /// Takes the device away from the core, and tells the log what went wrong with its packets.
    /// Returns: as Registry::remove_device().
    Status close();

    // ---- the entries of BackendOps, which the core calls ----

    unsigned send(const AhAttr& dest, std::span<const OutPacket> packets) noexcept {
        return transmit_.send(dest, packets);
    }
    void flush() noexcept { transmit_.flush(); }
    bool send_now(const AhAttr& dest, const OutPacket& packet) noexcept {
        return transmit_.send_now(dest, packet);
    }
    unsigned poll(core::Device& device) noexcept {
        transmit_.flush();
        if (transmit_.has_trouble() || device.is_port_down()) [[unlikely]] {
            look_at_trouble(device);
        }
        return host_wire_ != nullptr ? poll_both(device) : poll_wire(device);
    }
    Result<Channel*> open_channel(const Address& dest) {
        return host_wire_ != nullptr ? host_wire_->open_channel(dest)
                                     : Result<Channel*>(EHOSTUNREACH);
    }
    // Precondition, as of the next: open_channel() has given one, so there is a host wire.
    void close_channel(Channel& channel) noexcept { host_wire_->close_channel(channel); }
    Status send_datagram(Channel& channel, std::span<const std::byte> header,
                         std::span<const iovec> payload) noexcept {
        return host_wire_->send(channel, header, payload);
    }
    [[nodiscard]] std::uint32_t path_payload(const Address& dest) const noexcept;
    [[nodiscard]] int wake_fd() const noexcept {
        return groups_.is_open() ? groups_.wake_fd() : socket_.fd();
    }
    Status join(const Address& group) { return groups_.is_open() ? groups_.join(group) : kOk; }
    void leave(const Address& group) noexcept { groups_.leave(group); }
    /// Also: ENOMEM, ENOSPC.
    Status arm() noexcept;

    // ---- for who watches without arming ----

    /// The socket: wake_fd() has it from the first arm() on.
    [[nodiscard]] int wire_fd() const noexcept { return socket_.fd(); }
    /// Readable when something has come to a group; -1: there are none.
    [[nodiscard]] int group_fd() const noexcept { return groups_.group_fd(); }
    /// From here on somebody else waits for those two, and poll() looks at a host wire alone, until
    /// take_wire() or arm(). Threads: any.
    void leave_wire() noexcept {
        is_wire_left_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
    }
    void take_wire() noexcept {
        is_wire_left_.store(false, std::memory_order_relaxed);  // relaxed: a hint to who polls
    }
    /// Something comes by the host wire: the next poll looks at the wire all the same, once, for
    /// what the peer may have sent there before. Threads: any.
    void glance_at_wire() noexcept {
        is_glance_due_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
    }
    /// Readable when something has come by the host wire; -1: there is none.
    [[nodiscard]] int host_fd() const noexcept {
        return host_wire_ != nullptr ? host_wire_->wake_fd() : -1;
    }

  private:
    static constexpr std::uint64_t kLookPauseUs = 100'000;
    // So long after the last packet there are more to come by the wire. After that who polls for
    // peers of this host looks at it, which is a system call, at these intervals.
    static inline const std::uint64_t kBusyTicks = util::ticks_of_ns(50'000);
    static inline const std::uint64_t kQuietTicks = util::ticks_of_ns(8'000);

    unsigned poll_wire(core::Device& device) noexcept {
        return receive_.poll(device, transmit_.take_report()) + groups_.poll(device);
    }
    [[nodiscard]] bool is_wire_due() noexcept;
    unsigned poll_both(core::Device& device) noexcept;
    [[nodiscard]] std::string describe_losses() const;
    [[gnu::cold]] void look_at_trouble(core::Device& device) noexcept;
    void look_at_port_locked() noexcept RVT_REQUIRES(look_lock_);
    void follow_interface_locked() noexcept RVT_REQUIRES(look_lock_);
    void look_at_path(core::Device& device) noexcept;

    PacketDevice(UdpSocket socket, const PacketDeviceAttr& attr)
        : socket_(std::move(socket)),
          payload_bytes_(attr.payload_bytes),
          capture_(attr.capture, attr.name),
          transmit_(socket_, capture_),
          receive_(socket_, attr.faults, capture_),
          groups_(socket_, attr.faults, capture_),
          interface_(attr.joins_groups ? interface_of(socket_.port.address) : 0) {}

    const UdpSocket socket_;
    std::uint32_t payload_bytes_;  // the most that a packet ever carries
    const protocol::PcapInterface capture_;
    TransmitQueue transmit_;
    ReceiveQueue receive_;
    Groups groups_;
    std::unique_ptr<core::HostWire> host_wire_;
    std::uint64_t heard_ticks_ = 0;               // of the wire; of the thread of poll()
    std::atomic<std::uint64_t> looked_ticks_{0};  // at it, where there are peers of this host
    std::atomic<bool> is_wire_left_{false};
    std::atomic<bool> is_glance_due_{false};
    core::Registry* registry_ = nullptr;
    core::Device* device_ = nullptr;
    util::Mutex look_lock_;  // order: after ForkHold, before those of who hears of changes
    std::uint64_t looked_us_ RVT_GUARDED_BY(look_lock_) = 0;
    unsigned interface_ RVT_GUARDED_BY(look_lock_);  // its number, of a device with groups
};

}  // namespace rvt::roce
