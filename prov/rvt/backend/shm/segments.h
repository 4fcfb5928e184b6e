// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Shared memory as a segment-grade backend of the verbs core: the contract of include/rvt/backend.h
// over the connections, rings and peers' memory that the RDM endpoint uses too.
//
// A device has one channel for each peer device, and a channel one path (backend/shm/path.h). Each
// segment is a run in the ring of bytes, announced by a line with RdOp::kSegment.
//
// Locks: poll_lock_ before list_lock_; a channel's send lock after either; memory_lock_ before a
//        channel's send lock. The core's deliver_segment() runs under poll_lock_ alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "backend/shm/connection.h"
#include "backend/shm/segment_channel.h"
#include "backend/shm/station.h"
#include "core/group_wire.h"
#include "core/key_table.h"
#include "core/registry.h"
#include "protocol/pcap_writer.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/mapping.h"
#include "util/mutex.h"
#include "util/sock_addr.h"

namespace rvt::shm {

struct SegmentDeviceAttr {
    const char* name = "shm";       // under which the core lists it
    util::SockAddr address;         // port 0: any free one
    util::UdpPort* port = nullptr;  // in place of an address: taken over when the device opens
    DeviceLimits limits{};          // max_segment_bytes is lowered to what a ring takes
    std::uint64_t (*now_us)() noexcept = nullptr;     // see DeviceInfo
    std::shared_ptr<protocol::PcapWriter> capture{};  // of segments, as packets
};

/// A device of the verbs core that reaches the devices of other processes of this host.
class SegmentDevice final : public ConnectionUser {
  public:
    /// Longest payload of a segment: it fits in a small ring, whatever else is in it.
    static constexpr std::uint32_t kMaxSegmentBytes =
        static_cast<std::uint32_t>(kSmallBytes / 2 - kMaxSegmentHeader);

    /// Takes the address, answers peers, and registers the device with the core.
    /// Returns: errors of util::bind_udp_port(), Station::open() and Registry::add_device();
    ///          EAFNOSUPPORT for an address whose scope the core's Address cannot hold.
    static Result<std::unique_ptr<SegmentDevice>> open(core::Registry& registry,
                                                       const SegmentDeviceAttr& attr);
    /// Precondition: close() succeeded, or open() did not.
    ~SegmentDevice() override;
    SegmentDevice(const SegmentDevice&) = delete;
    SegmentDevice& operator=(const SegmentDevice&) = delete;

    core::Device& device() noexcept { return *device_; }
    util::SockAddr address() const noexcept { return station_.address(); }
    /// The port of the address once more. Returns: EMFILE.
    util::Result<util::UdpPort> share_port() const { return station_.share_port(); }
    /// Sends to groups and joins them by `groups`; without it they end at the device. Before the
    /// first use of the device.
    void use_groups(std::unique_ptr<core::GroupWire> groups) noexcept {
        groups_ = std::move(groups);
    }
    /// Takes the device away from the core, then ends all connections. Datagrams that wait have a
    /// moment to leave: that of a handshake.
    /// Returns: as Registry::remove_device().
    Status close();

    // ---- the entries of BackendOps, which the core calls ----

    Result<Channel*> open_channel(const Address& dest);
    void close_channel(Channel& channel) noexcept;
    /// Who sleeps is woken where it finds no room: no peer tells when there is some again.
    Status send_datagram(SegmentChannel& channel, std::span<const std::byte> header,
                         std::span<const iovec> payload) noexcept;
    /// @tparam kCaptures  Whether what arrives is captured: of each device one is used, see open().
    template <bool kCaptures>
    unsigned poll(core::Device& device) noexcept;
    /// Puts a segment that has been sent into the capture.
    void capture_sent(std::uint64_t sent_ns, const Channel& channel,
                      std::span<const std::byte> header,
                      std::span<const iovec> payload) const noexcept;
    Status access_peer(Channel& channel, PeerMemory peer, std::span<const iovec> local,
                       bool is_write) noexcept;
    bool is_key_used(std::uint32_t key) noexcept;
    unsigned send_to_group(const AhAttr& group, std::span<const OutPacket> packets) noexcept;
    void flush() noexcept;
    Status join(const Address& group) { return groups_ != nullptr ? groups_->join(group) : kOk; }
    void leave(const Address& group) noexcept;
    int wake_fd() const noexcept {
        return groups_ != nullptr ? groups_->wake_fd() : station_.wake_fd();
    }
    Status arm() noexcept;

    // ---- what the control thread calls ----

    void deliver(std::unique_ptr<ConnectionEvent> event) noexcept override;
    bool control_progress() noexcept override { return false; }  // the application polls
    std::uint64_t poll_count() const noexcept override { return station_.poll_count(); }
    bool control_arm() noexcept override { return true; }
    void control_disarm() noexcept override {}

  private:
    using Channels = std::vector<std::unique_ptr<SegmentChannel>>;
    struct Mail {
        std::unique_ptr<ConnectionEvent> event;
        SegmentChannel* opened = nullptr;  // by the control thread, which has used up the peering
    };

    SegmentDevice() = default;
    Status start(core::Registry& registry, const SegmentDeviceAttr& attr);

    SegmentChannel* find_locked(const util::SockAddr& peer) noexcept RVT_REQUIRES(list_lock_);
    SegmentChannel& add_locked(const util::SockAddr& peer) RVT_REQUIRES(list_lock_);
    SegmentChannel* open_new(ConnectionEvent& event) noexcept;
    void note_gone(const ConnectionEvent& event) noexcept;
    void read_mail_locked(core::Device& device) noexcept RVT_REQUIRES(poll_lock_);
    void handle_locked(core::Device& device, ConnectionEvent& event) noexcept
        RVT_REQUIRES(poll_lock_);
    void connected_locked(core::Device& device, std::unique_ptr<Peering> peering) noexcept
        RVT_REQUIRES(poll_lock_);
    void fail_locked(core::Device& device, SegmentChannel& channel) noexcept
        RVT_REQUIRES(poll_lock_);
    template <bool kCaptures>
    unsigned poll_channel(core::Device& device, SegmentChannel& channel) noexcept;
    void drop_unused() noexcept;
    bool has_waiting() noexcept;
    void let_waiting_leave() noexcept;

    core::Registry* registry_ = nullptr;
    core::Device* device_ = nullptr;
    util::Mapping keys_memory_;
    Station station_;
    std::unique_ptr<core::GroupWire> groups_;
    protocol::PcapInterface capture_;

    util::SpinLock poll_lock_;
    std::vector<SegmentChannel*> polled_ RVT_GUARDED_BY(poll_lock_);  // those that are open

    util::Mutex list_lock_;
    Channels channels_ RVT_GUARDED_BY(list_lock_);
    std::atomic<bool> may_drop_{false};  // there may be channels that nobody uses any more

    util::Mutex memory_lock_;  // the endpoint page has room for one mark

    util::Mutex mail_lock_;  // order: innermost
    std::vector<Mail> mail_ RVT_GUARDED_BY(mail_lock_);
    std::atomic<bool> has_mail_{false};
};

}  // namespace rvt::shm
