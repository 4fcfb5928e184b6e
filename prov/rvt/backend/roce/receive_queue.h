// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Packets on their way out of a UDP socket: several messages a call, each of which may be many
// packets that the kernel joined (UDP_GRO). What has a wrong ICRC goes no further.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sys/socket.h>
#include <sys/uio.h>

#include "backend/roce/udp_socket.h"
#include "rvt/backend.h"

namespace rvt::roce {

class ReceiveQueue {
  public:
    /// @param socket  Outlives the queue.
    explicit ReceiveQueue(const UdpSocket& socket) noexcept;

    /// Hands what has arrived to the core, at most one call's worth. Returns: how many packets.
    /// Threads: one at a time.
    /// @param has_report  Whether read_refusal() has something.
    unsigned poll(core::Device& device, bool has_report) noexcept;

    /// Packets whose ICRC was wrong, or that were too short to have one. Threads: any.
    [[nodiscard]] std::uint64_t corrupted() const noexcept {
        // relaxed: a count orders nothing.
        return corrupted_.load(std::memory_order_relaxed);
    }

  private:
    static constexpr std::size_t kMessages = 8;
    static constexpr std::size_t kMessageBytes = 64u << 10;
    static constexpr std::size_t kControlBytes = 128;

    /// Allocated at the first poll. Pages that no message reached cost nothing.
    struct Batch {
        std::array<mmsghdr, kMessages> headers;
        std::array<iovec, kMessages> pieces;
        std::array<sockaddr_storage, kMessages> names;
        std::array<std::array<std::byte, kControlBytes>, kMessages> controls;
        std::array<std::array<std::byte, kMessageBytes>, kMessages> bytes;
    };

    void prepare() noexcept;
    void take_refusals(core::Device& device) noexcept;
    unsigned deliver_message(core::Device& device, std::size_t i, std::size_t bytes) noexcept;
    bool deliver_one(core::Device& device, const Address& source, std::span<const std::byte> packet,
                     std::uint16_t segment) noexcept;
    void count_corrupted() noexcept {
        // relaxed: one thread writes it at a time, and a count orders nothing.
        corrupted_.store(corrupted() + 1, std::memory_order_relaxed);
    }

    const UdpSocket& socket_;
    const Address own_;
    std::unique_ptr<Batch> batch_;
    std::atomic<std::uint64_t> corrupted_{0};
};

}  // namespace rvt::roce
