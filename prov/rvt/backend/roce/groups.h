// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The groups of IP multicast that a device has joined. Each has a socket of its own: that of the
// device is bound to the device's address and gets nothing that is sent to another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/roce/receive_queue.h"
#include "backend/roce/udp_socket.h"
#include "protocol/faults.h"
#include "protocol/pcap_writer.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/mutex.h"

namespace rvt::roce {

class Groups {
  public:
    /// @param socket  The device's; outlives the groups.
    Groups(const UdpSocket& socket, const protocol::FaultPlan& faults,
           protocol::PcapInterface capture) noexcept
        : socket_(socket), faults_(faults), capture_(std::move(capture)) {}

    /// Makes the sets of descriptors. Returns: EMFILE, ENFILE, ENOMEM.
    Status open() noexcept;
    [[nodiscard]] bool is_open() const noexcept { return wake_set_.is_open(); }
    /// Readable when the socket of a group is.
    [[nodiscard]] int group_fd() const noexcept { return group_set_.get(); }
    /// Readable when that is, or the descriptor of add_own() or of add_host().
    [[nodiscard]] int wake_fd() const noexcept { return wake_set_.get(); }
    /// Has wake_fd() readable with the device's own `fd`, the same each time, from the first call
    /// on. Returns: ENOMEM, ENOSPC.
    Status add_own(int fd) noexcept;

    /// The same of what else wakes who uses the device. Once, before the first sleep.
    Status add_host(int fd) noexcept;

    /// Joins, unless it has been; leave() has to be called as often.
    /// Returns: as open_group_socket(); EAFNOSUPPORT for the other version of IP.
    Status join(const Address& group);
    void leave(const Address& group) noexcept;
    /// Joins all of them by the interface that has the device's address now. Where that cannot be,
    /// the log says so. Returns: whether all are joined.
    bool rejoin();

    /// Hands what has arrived to the core. Returns: how many packets. Threads: one at a time.
    unsigned poll(core::Device& device) noexcept {
        // relaxed: what is being joined right now is looked at next time.
        return has_any_.load(std::memory_order_relaxed) ? poll_all(device) : 0;
    }
    /// As ReceiveQueue::holds_packets().
    [[nodiscard]] bool holds_packets() const noexcept;
    /// As ReceiveQueue::corrupted(), of all groups that there have been.
    [[nodiscard]] std::uint64_t corrupted() const noexcept;

  private:
    struct Group {
        Group(UdpSocket with, const Address& at, const protocol::FaultPlan& faults,
              const protocol::PcapInterface& capture) noexcept
            : socket(std::move(with)), address(at), receive(socket, faults, capture) {}
        const UdpSocket socket;
        const Address address;
        unsigned users = 1;
        ReceiveQueue receive;
    };

    [[gnu::noinline]] unsigned poll_all(core::Device& device) noexcept;
    Status join_locked(const Address& address) RVT_REQUIRES(lock_);
    Result<std::unique_ptr<Group>> open_locked(const Address& address) RVT_REQUIRES(lock_);

    const UdpSocket& socket_;
    const protocol::FaultPlan faults_;
    const protocol::PcapInterface capture_;
    util::UniqueFd group_set_;
    util::UniqueFd wake_set_;
    std::atomic<bool> has_any_{false};
    mutable util::Mutex lock_;  // order: after ForkHold, before the locks of a pair
    bool has_own_ RVT_GUARDED_BY(lock_) = false;
    std::vector<std::unique_ptr<Group>> groups_ RVT_GUARDED_BY(lock_);
    std::uint64_t corrupted_ RVT_GUARDED_BY(lock_) = 0;  // in groups that are no more
};

}  // namespace rvt::roce
