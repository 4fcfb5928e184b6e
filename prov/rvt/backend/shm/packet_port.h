// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Shared memory beside the wire of a packet device: its datagrams to devices of this host, as the
// packets that the wire would carry, without the ICRC. docs/shm-format.md, section 2.
//
// A peer is looked for when it is first sent to, and again from time to time while it is not
// connected; whoever finds the other connects both. Until then, once the connection has ended, and
// while the ring has no room, packets go by the wire. Nothing waits here: a send has been
// completed, and who has sent need not poll.
//
// Locks: poll_lock_ before list_lock_; a channel's send lock after either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <sys/uio.h>

#include "backend/shm/connection.h"
#include "backend/shm/segment_channel.h"
#include "backend/shm/station.h"
#include "core/host_wire.h"
#include "protocol/pcap_writer.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/cpu.h"
#include "util/local_addresses.h"
#include "util/lock.h"
#include "util/mutex.h"
#include "util/sock_addr.h"
#include "util/udp_port.h"

namespace rvt::shm {

struct PacketPortAttr {
    const char* name = "packets";                     // in captures
    util::UdpPort* port = nullptr;                    // of the device; taken over
    std::shared_ptr<protocol::PcapWriter> capture{};  // of what is sent and arrives
    // Connections, which take two descriptors each; all further peers are reached by the wire. A
    // few more where several peers connect at the same time.
    std::size_t most_peers = 128;
};

class PacketPort final : public core::HostWire, private ConnectionUser {
  public:
    /// Starts to answer peers. Returns: errors of Station::open(); EAFNOSUPPORT for an address
    /// whose scope the core's Address cannot hold, or which is that of no host.
    static Result<std::unique_ptr<core::HostWire>> open(const PacketPortAttr& attr);
    ~PacketPort() override { station_.close(); }
    PacketPort(const PacketPort&) = delete;
    PacketPort& operator=(const PacketPort&) = delete;

    Result<Channel*> open_channel(const Address& dest) override;
    void close_channel(Channel& channel) noexcept override;
    Status send(Channel& channel, std::span<const std::byte> header,
                std::span<const iovec> payload) noexcept override;
    unsigned poll(core::Device& device) noexcept override;
    Status arm() noexcept override;
    [[nodiscard]] int wake_fd() const noexcept override { return station_.wake_fd(); }

  private:
    // So long after a look for a peer comes the next one, if something is sent to it.
    static inline const std::uint64_t kLookTicks = util::ticks_of_ns(1'000'000'000);
    // The same where somebody is, and cannot be connected with.
    static inline const std::uint64_t kMostLookTicks = 64 * kLookTicks;

    /// One address of this host.
    struct Neighbour final : Channel {
        explicit Neighbour(const util::SockAddr& at) noexcept;

        SegmentChannel way;
        const Address address;
        std::atomic<std::uint64_t> look_pause{kLookTicks};
        std::atomic<std::uint64_t> next_look{0};  // in ticks
        std::uint64_t connected_ticks = 0;        // guarded by the poll lock
    };
    struct AddressHash {
        std::size_t operator()(const util::SockAddr& address) const noexcept {
            return address.hash();
        }
    };
    using Neighbours = std::unordered_map<util::SockAddr, std::unique_ptr<Neighbour>, AddressHash>;

    PacketPort() = default;
    Status start(const PacketPortAttr& attr);

    // ConnectionUser
    void deliver(std::unique_ptr<ConnectionEvent> event) noexcept override;
    bool has_room() noexcept override;
    bool control_progress() noexcept override { return false; }  // the endpoint's host sees to it
    std::uint64_t poll_count() const noexcept override { return station_.poll_count(); }
    bool control_arm() noexcept override { return true; }
    void control_disarm() noexcept override {}

    Neighbour* find_locked(const util::SockAddr& at) noexcept RVT_REQUIRES(list_lock_);
    Neighbour& find_or_add_locked(const util::SockAddr& at) RVT_REQUIRES(list_lock_);
    static bool is_unused(const Neighbour& peer) noexcept;
    void look_for(Neighbour& peer) noexcept;
    [[gnu::cold]] void read_mail_locked(core::Device& device) noexcept RVT_REQUIRES(poll_lock_);
    void handle_locked(core::Device& device, ConnectionEvent& event) noexcept
        RVT_REQUIRES(poll_lock_);
    static void look_later(Neighbour& peer, std::uint64_t pause) noexcept;
    void connected_locked(std::unique_ptr<Peering> peering) noexcept RVT_REQUIRES(poll_lock_);
    void ended_locked(core::Device& device, const ConnectionEvent& event) noexcept
        RVT_REQUIRES(poll_lock_);
    void disconnect_locked(Neighbour& peer) noexcept RVT_REQUIRES(poll_lock_);
    unsigned poll_one(core::Device& device, Neighbour& peer) noexcept;
    void note_work_locked() noexcept RVT_REQUIRES(poll_lock_);
    // Under the poll lock: its holder may be naming one of those.
    void drop_unused() noexcept RVT_REQUIRES(poll_lock_);
    void drop_if_unused(const util::SockAddr& at) noexcept RVT_REQUIRES(poll_lock_);
    [[nodiscard]] bool has_work_locked() const noexcept RVT_REQUIRES(poll_lock_);
    [[gnu::cold]] void capture(std::uint64_t sent_ns, const Address& peer,
                               std::span<const std::byte> header,
                               std::span<const iovec> payload) const noexcept;

    Station station_;
    Address own_;
    protocol::PcapInterface capture_;

    std::size_t most_peers_ = 0;
    std::atomic<std::size_t> links_{0};  // connections, those in the mail too

    util::SpinLock poll_lock_;
    std::vector<Neighbour*> polled_ RVT_GUARDED_BY(poll_lock_);  // those that are connected

    util::Mutex list_lock_;
    Neighbours neighbours_ RVT_GUARDED_BY(list_lock_);
    util::LocalAddresses own_addresses_ RVT_GUARDED_BY(list_lock_);
    std::atomic<bool> may_drop_{false};  // there may be some that nobody uses any more

    util::Mutex mail_lock_;  // order: innermost
    std::vector<std::unique_ptr<ConnectionEvent>> mail_ RVT_GUARDED_BY(mail_lock_);
    std::atomic<bool> has_mail_{false};
};

}  // namespace rvt::shm
