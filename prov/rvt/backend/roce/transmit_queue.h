// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Packets on their way into a UDP socket. Those of one size to one destination that follow one
// another become one message, which the kernel cuts (UDP_SEGMENT); several messages go in one call.
// Small payload may wait for more; large payload leaves at once.
//
// All bytes are copied, which costs less than it saves: the kernel takes one piece of memory for
// two thirds of the price of sixty headers, payloads and trailers, and the check sum is that of the
// bytes that leave even where an application writes to them meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <sys/socket.h>
#include <sys/uio.h>

#include "backend/roce/udp_socket.h"
#include "protocol/header_sizes.h"
#include "protocol/icrc.h"
#include "protocol/pcap_writer.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/cpu.h"
#include "util/lock.h"

namespace rvt::roce {

class TransmitQueue {
  public:
    /// @param socket  Outlives the queue.
    TransmitQueue(const UdpSocket& socket, protocol::PcapInterface capture) noexcept;

    /// As BackendOps::send_packets.
    unsigned send(const AhAttr& dest, std::span<const OutPacket> packets) noexcept;
    /// As BackendOps::flush_packets.
    void flush() noexcept {
        if (holds_packets()) {
            flush_held();
        }
    }
    /// As BackendOps::send_now.
    bool send_now(const AhAttr& dest, const OutPacket& packet) noexcept;

    /// Whether a call since the last question has told of a report for read_refusal(), which the
    /// next receive then does not. Threads: any.
    [[nodiscard]] bool take_report() noexcept {
        // relaxed: a hint.
        return has_report_.load(std::memory_order_relaxed) &&
               has_report_.exchange(false, std::memory_order_relaxed);
    }

    /// Whether the kernel has refused packets since expect_no_trouble(). Threads: any.
    [[nodiscard]] bool has_trouble() const noexcept {
        return has_trouble_.load(std::memory_order_relaxed);  // relaxed: a hint
    }
    void expect_no_trouble() noexcept {
        has_trouble_.store(false, std::memory_order_relaxed);  // relaxed: a hint
    }
    /// What the kernel took for too large.
    struct TooLarge {
        Address dest{};
        std::size_t packet_bytes = 0;  // behind its UDP header
        bool is_run = false;           // the packet was one of several that it was to cut
    };
    /// The newest one since the last question. Threads: any.
    [[nodiscard]] std::optional<TooLarge> take_too_large() noexcept;
    /// The way out has changed: what it could not do before is tried again.
    void try_all_again() noexcept;
    /// The way out takes packets, but no runs of them: from now on they leave one by one.
    void stop_runs() noexcept;
    /// Whether packets wait for flush(). Threads: any.
    [[nodiscard]] bool holds_packets() const noexcept {
        // relaxed: who adds a packet flushes it, or sees that it is there.
        return holds_packets_.load(std::memory_order_relaxed);
    }

    /// Packets that the kernel refused, other than for want of room that came soon.
    [[nodiscard]] std::uint64_t refused() const noexcept;

  private:
    using Clock = std::chrono::steady_clock;

    // An interface has room for the next message within so long; for what it refuses then, there is
    // none. For a while it is not waited for again.
    static constexpr Clock::duration kRoomTime = std::chrono::milliseconds(20);
    static constexpr Clock::duration kNoRoomTime = std::chrono::milliseconds(100);
    static constexpr std::size_t kMaxMessages = 64;
    static constexpr std::size_t kMaxSegments = 64;  // UDP_MAX_SEGMENTS of the oldest kernels
    static constexpr std::size_t kMaxMessageBytes = 65'000;
    static constexpr std::size_t kArenaBytes = 128u << 10;

    struct Control {
        alignas(cmsghdr) std::byte bytes[CMSG_SPACE(sizeof(std::uint16_t))];
    };
    struct Message {
        Address dest{};
        std::uint32_t begin = 0;  // in the arena
        std::uint32_t bytes = 0;
        std::uint16_t segment_bytes = 0;  // of all but the last, which may be shorter
        std::uint16_t segments = 0;
        bool is_closed = false;  // takes no more segments
    };
    /// Allocated at the first packet: an idle device has none.
    struct Batch {
        std::array<Message, kMaxMessages> messages;
        // Of these what does not change from message to message stays as it is.
        std::array<Address, kMaxMessages> named;  // as the names below
        std::array<sockaddr_storage, kMaxMessages> names;
        std::array<Control, kMaxMessages> controls;
        std::array<mmsghdr, kMaxMessages> headers;
        std::array<iovec, kMaxMessages> pieces;
        std::array<std::byte, kArenaBytes> arena;
    };

    void flush_held() noexcept;
    bool open_batch_locked() noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] protocol::IpPath path_to(const Address& dest) const noexcept;
    bool take_locked(const AhAttr& dest, const OutPacket& packet) noexcept RVT_REQUIRES(lock_);
    bool send_alone_locked(const Address& dest, const OutPacket& packet) noexcept
        RVT_REQUIRES(lock_);
    bool append_locked(const AhAttr& dest, const OutPacket& packet, std::size_t payload) noexcept
        RVT_REQUIRES(lock_);
    Message* message_for_locked(const Address& dest, std::size_t bytes) noexcept
        RVT_REQUIRES(lock_);
    void write_locked(const Message& message, const OutPacket& packet, std::size_t bytes) noexcept
        RVT_REQUIRES(lock_);
    [[nodiscard]] std::span<const std::byte> bytes_of_locked(const Message& message) const noexcept
        RVT_REQUIRES(lock_) {
        return std::span(batch_->arena).subspan(message.begin, message.bytes);
    }
    int send_locked(std::size_t first) noexcept RVT_REQUIRES(lock_);
    void flush_locked() noexcept RVT_REQUIRES(lock_);
    void capture_locked(std::size_t first, std::size_t end, std::uint64_t at_ns) noexcept
        RVT_REQUIRES(lock_);
    bool waits_for_room_locked() noexcept RVT_REQUIRES(lock_);
    void lose_locked(const Message& refused, int error) noexcept RVT_REQUIRES(lock_);
    void name_locked(std::size_t i, const Address& dest) noexcept RVT_REQUIRES(lock_);
    void prepare_locked(std::size_t i) noexcept RVT_REQUIRES(lock_);
    void drop_sent_locked(std::size_t sent) noexcept RVT_REQUIRES(lock_);

    const UdpSocket& socket_;
    const Address own_;
    const protocol::PcapInterface capture_;
    mutable util::SpinLock lock_;  // order: innermost but for the capture's
    std::unique_ptr<Batch> batch_ RVT_GUARDED_BY(lock_);
    std::size_t messages_ RVT_GUARDED_BY(lock_) = 0;
    std::size_t arena_used_ RVT_GUARDED_BY(lock_) = 0;
    std::atomic<bool> holds_packets_{false};  // messages_ != 0
    bool can_segment_ RVT_GUARDED_BY(lock_);
    std::uint64_t refused_ RVT_GUARDED_BY(lock_) = 0;
    std::optional<TooLarge> too_large_ RVT_GUARDED_BY(lock_);  // see take_too_large()
    Clock::time_point waits_since_ RVT_GUARDED_BY(lock_){};    // for room: the first message
    Clock::time_point no_room_until_ RVT_GUARDED_BY(lock_){};
    std::atomic<bool> has_report_{false};
    std::atomic<bool> has_trouble_{false};
};

}  // namespace rvt::roce
