// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Packets on their way out of a UDP socket: several messages a call, each of which may be many
// packets that the kernel joined (UDP_GRO), or one packet a call. What has a wrong ICRC goes no
// further. Faults that a test or a user asked for happen to each packet before that.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sys/socket.h>
#include <sys/uio.h>

#include "backend/roce/udp_socket.h"
#include "protocol/faulty_line.h"
#include "protocol/pcap_writer.h"
#include "protocol/wire_packet.h"
#include "rvt/backend.h"
#include "util/cpu.h"

namespace rvt::roce {

class ReceiveQueue {
  public:
    /// @param socket  Outlives the queue.
    ReceiveQueue(const UdpSocket& socket, const protocol::FaultPlan& faults,
                 protocol::PcapInterface capture) noexcept;

    /// Hands what has arrived to the core, at most one call's worth. Returns: how many packets.
    /// Threads: one at a time.
    /// @param has_report  Whether read_refusal() has something.
    RVT_ALWAYS_INLINE unsigned poll(core::Device& device, bool has_report) noexcept {
        if (taken_ != 0) {
            make_ready();
        }
        const int received =
            way_ == Way::kLone ? receive_packet(socket_.fd(), batch_->headers[0]) : receive_many();
        if (received == -EAGAIN && is_plain_ && !has_report) [[likely]] {
            note_vain();
            return 0;
        }
        return take_in(device, received, has_report);
    }

    /// Whether poll() has something to do although the socket is empty: a fault holds packets back.
    /// Threads: any.
    [[nodiscard]] bool holds_packets() const noexcept {
        // relaxed: who took them in sees it, and stays awake for all.
        return holds_packets_.load(std::memory_order_relaxed);
    }

    /// Packets whose ICRC was wrong, or that were too short to have one. Threads: any.
    [[nodiscard]] std::uint64_t corrupted() const noexcept {
        // relaxed: a count orders nothing.
        return corrupted_.load(std::memory_order_relaxed);
    }

  private:
    static constexpr std::size_t kMessages = 8;
    static constexpr std::size_t kMessageBytes = 64u << 10;
    static constexpr std::size_t kControlBytes = 128;
    // Nothing is acknowledged before a call returns, and copying takes longer than the call: with
    // more at a time a sender's window ends before the next acknowledgement.
    static constexpr std::size_t kCallBytes = 128u << 10;
    // Small packets that come one by one are taken by the call that does only that: it finds out
    // sooner that there is none, which is what who waits for an answer asks most of the time.
    static constexpr std::size_t kLoneBytes = 1024;  // a larger packet may have others behind it
    static constexpr unsigned kLoneBefore = 64;      // so many came alone
    static constexpr unsigned kMostInRow = 3;        // as many without a vain call do not

    /// Allocated at the first poll. Pages that no message reached cost nothing.
    struct Batch {
        std::array<mmsghdr, kMessages> headers;
        std::array<iovec, kMessages> pieces;
        std::array<sockaddr_storage, kMessages> names;
        std::array<std::array<std::byte, kControlBytes>, kMessages> controls;
        std::array<std::array<std::byte, kMessageBytes>, kMessages> bytes;
    };

    /// Whom a message came from, in the kernel's form and as the way of its packets.
    struct Sender {
        sockaddr_storage name{};
        socklen_t name_bytes = 0;
        protocol::IpPath path{};
    };

    /// How messages are asked for.
    enum class Way : std::uint8_t {
        kMany,      // several a call, of joined packets
        kSettling,  // the same, but none is joined any more
        kLone,      // one packet a call
    };

    void prepare() noexcept;
    void make_ready() noexcept;
    [[nodiscard]] int receive_many() noexcept;
    [[nodiscard]] bool find_sender(std::size_t message) noexcept;
    unsigned take_in(core::Device& device, int received, bool has_report) noexcept;
    RVT_ALWAYS_INLINE void note_vain() noexcept {
        wanted_ = 1;
        in_row_ = 0;
    }
    void choose_way(std::size_t messages) noexcept;
    void go(Way way) noexcept;
    [[nodiscard]] std::size_t more_than(std::size_t messages) const noexcept;
    void take_refusals(core::Device& device) noexcept;
    template <class Visit>
    void for_each_packet(std::size_t messages, Visit visit) noexcept;
    unsigned deliver_through_faults(core::Device& device, std::size_t messages) noexcept;
    bool deliver_one(core::Device& device, const protocol::WirePacket& packet) noexcept;
    void count_corrupted() noexcept {
        // relaxed: one thread writes it at a time, and a count orders nothing.
        corrupted_.store(corrupted() + 1, std::memory_order_relaxed);
    }

    const UdpSocket& socket_;
    const Address own_;
    const protocol::PcapInterface capture_;
    const std::unique_ptr<protocol::FaultyLine> faults_;  // none: the wire is left alone
    const bool is_plain_;  // neither that nor a capture has to do with a call in vain
    std::unique_ptr<Batch> batch_;
    std::size_t taken_ = 0;  // messages of the last call, which make_ready() has to see yet
    Sender sender_;          // of the newest message; mostly the next one comes from there, too
    // Of a call that finds less than it could take the last look is in vain: who gets one message
    // at a time asks for one.
    std::size_t wanted_ = 1;
    Way way_ = Way::kMany;
    unsigned alone_ = 0;   // small packets that came one by one
    unsigned in_row_ = 0;  // calls since the last vain one
    std::atomic<bool> holds_packets_{false};
    std::atomic<std::uint64_t> corrupted_{0};
};

}  // namespace rvt::roce
