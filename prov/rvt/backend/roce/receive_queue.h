// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Packets on their way out of a UDP socket: one message a call, or several while they come without
// a pause, each of which may be many packets that the kernel joined (UDP_GRO). What has a wrong
// ICRC goes no further. Faults that a test or a user asked for happen to each packet before that.
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

#include "backend/roce/identification_tap.h"
#include "backend/roce/packet_cut.h"
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
        const bool asks = asks_where_packets_end();
        const int received =
            asks ? receive_many() : receive_packet(socket_.fd(), batch_->headers[0]);
        if (received == -EAGAIN && is_plain_ && !has_report) [[likely]] {
            note_vain();
            return 0;
        }
        return take_in(device, received, asks, has_report);
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
    // Who waits for an answer finds out sooner by recvfrom(2) that there is none, and has it
    // sooner; so many calls in a row that have brought something are a stream, though.
    static constexpr unsigned kMostInRow = 3;
    // A message where no packet could be found may come again. So many are asked about then.
    static constexpr unsigned kAskedAfterLoss = 64;

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

    void prepare() noexcept;
    void make_ready() noexcept;
    [[nodiscard]] int receive_many() noexcept;
    [[nodiscard]] bool find_sender(std::size_t message) noexcept;
    /// How the next call receives: several messages, of each of which the kernel says where its
    /// packets end, or one, where PacketCut finds that out.
    [[nodiscard]] bool asks_where_packets_end() const noexcept {
        return in_row_ >= kMostInRow || !may_cut_ || asked_left_ != 0;
    }
    unsigned take_in(core::Device& device, int received, bool asked, bool has_report) noexcept;
    RVT_ALWAYS_INLINE void note_vain() noexcept {
        wanted_ = 1;
        in_row_ = 0;
    }
    [[nodiscard]] std::size_t more_than(std::size_t messages) const noexcept;
    void take_refusals(core::Device& device) noexcept;
    template <class Visit>
    void for_each_in(std::span<const std::byte> message, std::size_t each, std::size_t at,
                     Visit visit) const noexcept;
    template <class Visit>
    void for_each_packet(std::size_t messages, Visit visit) noexcept;
    unsigned deliver_through_faults(core::Device& device, std::size_t messages) noexcept;
    unsigned deliver_joined(core::Device& device) noexcept;
    bool deliver_one(core::Device& device, const protocol::WirePacket& packet) noexcept;
    [[gnu::cold]] bool has_come_with(const protocol::WirePacket& packet,
                                     std::uint16_t identification) noexcept;
    void hand_over(core::Device& device, const protocol::WirePacket& packet) noexcept;
    void count_corrupted() noexcept {
        // relaxed: one thread writes it at a time, and a count orders nothing.
        corrupted_.store(corrupted() + 1, std::memory_order_relaxed);
    }

    const UdpSocket& socket_;
    const Address own_;
    const protocol::PcapInterface capture_;
    const std::unique_ptr<protocol::FaultyLine> faults_;  // none: the wire is left alone
    const bool is_plain_;  // neither that nor a capture has to do with a call in vain
    const std::unique_ptr<IdentificationTap> tap_;  // none: identifications are not seen
    std::unique_ptr<Batch> batch_;
    std::size_t taken_ = 0;  // messages of the last call, which make_ready() has to see yet
    Sender sender_;          // of the newest message; mostly the next one comes from there, too
    // Of a call that finds less than it could take the last look is in vain: who gets one message
    // at a time asks for one.
    std::size_t wanted_ = 1;
    unsigned in_row_ = 0;      // calls since the last one that left the socket empty
    unsigned asked_left_ = 0;  // messages that are asked about
    // Whether there is a batch, and nobody else sends here than devices like this one, whose
    // packets show where they end.
    bool may_cut_ = false;
    PacketCut cut_;
    std::uint16_t joined_from_ = 0;  // identification of the first packet of a joined message
    std::atomic<bool> holds_packets_{false};
    std::atomic<std::uint64_t> corrupted_{0};
};

}  // namespace rvt::roce
