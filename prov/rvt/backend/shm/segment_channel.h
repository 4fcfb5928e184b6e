// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The way from one device to another of this host: segments as runs in the ring of bytes, each
// announced by a line with RdOp::kSegment. What a SegmentDevice has for each peer, and a
// PacketPort.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sys/uio.h>

#include "backend/shm/connection.h"
#include "backend/shm/datagram_queue.h"
#include "backend/shm/path.h"
#include "backend/shm/station.h"
#include "core/key_table.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/sock_addr.h"

namespace rvt::shm {

/// This device's end of the way to one peer device.
class SegmentChannel final : public Channel {
  public:
    enum class State : std::uint8_t { kConnecting, kOpen, kFailed };

    explicit SegmentChannel(const util::SockAddr& peer) noexcept;

    const util::SockAddr& peer() const noexcept { return peer_; }
    State state() const noexcept {
        // acquire: pairs with the release in set_state().
        return state_.load(std::memory_order_acquire);
    }
    /// Name of the connection; 0 until the channel is open.
    std::uint64_t link() const noexcept { return link_; }

    // Uses that open_channel() began; guarded by the device's list lock.
    std::uint32_t uses = 0;

    /// Before any other use of the path, or once more after fail(). Threads: that of poll(), or the
    /// control thread.
    void open(std::unique_ptr<Peering> peering) noexcept;
    /// The peer of this connection is gone: nothing is copied to or from the memory of its process
    /// any more, whose number may be another one's. Threads: the control thread.
    void note_gone(std::uint64_t link) noexcept;

    // ---- the thread of poll() ----

    /// Returns: how many datagrams are lost with it.
    std::size_t fail() noexcept;
    bool has_arrival() const noexcept { return path_.has_arrival(); }
    bool is_broken() const noexcept { return path_.is_broken(); }
    /// Hands arrived segments to the core, `deliver(header, payload)`. Returns: how many.
    template <class Deliver>
    unsigned poll(Deliver deliver) noexcept;

    // ---- any thread ----

    /// Sends the datagrams that wait for room. Returns: how many have waited too long, and are
    /// lost.
    std::size_t send_waiting(std::uint64_t now_us) noexcept;

    /// As BackendOps::send_segment.
    Status send(std::span<const std::byte> header, std::span<const iovec> payload) noexcept;
    /// As BackendOps::send_datagram. What is sent before the peer has answered is kept too.
    Status send_datagram(std::span<const std::byte> header,
                         std::span<const iovec> payload) noexcept;
    /// Whether datagrams wait.
    bool has_waiting() const noexcept {
        // relaxed: set by this thread, or for its next look.
        return has_waiting_.load(std::memory_order_relaxed);
    }
    /// Whether they wait for room, which nobody tells of.
    bool waits_for_room() const noexcept { return has_waiting() && state() == State::kOpen; }
    /// Copies between our buffer and the peer's memory, by the peer's key table, which has to allow
    /// `length` bytes from there on. Returns: as BackendOps::read_peer.
    /// Precondition: `mark` is not in use.
    Status access(Station& mark, const PeerMemory& peer, const iovec& local, std::uint64_t length,
                  bool is_write) noexcept;
    /// Whether the peer copies to or from our memory behind this key right now.
    bool is_peer_using(std::uint64_t our_incarnation, std::uint32_t key) noexcept;

  private:
    /// Segments taken from one channel before the others get their turn.
    static constexpr unsigned kPollBudget = 64;

    void set_state(State state) noexcept {
        // release: pairs with the acquire in state().
        state_.store(state, std::memory_order_release);
    }
    Status put_locked(std::span<const std::byte> header, std::span<const iovec> payload) noexcept
        RVT_REQUIRES(send_lock_);
    bool put_waiting_locked() noexcept RVT_REQUIRES(send_lock_);
    void note_waiting_locked() noexcept RVT_REQUIRES(send_lock_);
    bool has_key_view() noexcept RVT_REQUIRES(send_lock_);
    Status copy_marked(const PeerMemory& peer, const iovec& local, std::uint64_t length,
                       bool is_write) noexcept RVT_REQUIRES(send_lock_);

    const util::SockAddr peer_;
    std::atomic<State> state_{State::kConnecting};
    std::uint64_t link_ = 0;
    // Held by who sends or copies, and by the thread of poll() while it opens or closes the path;
    // that thread's own half of the path, what arrives, needs no lock.
    util::SpinLock send_lock_;
    Path path_;
    core::KeyView keys_;  // guarded by send_lock_
    bool has_keys_ = false;
    bool is_gone_ RVT_GUARDED_BY(send_lock_) = false;
    DatagramQueue waiting_ RVT_GUARDED_BY(send_lock_);
    std::uint64_t waiting_since_us_ RVT_GUARDED_BY(send_lock_) = 0;  // 0: not known yet
    std::atomic<bool> has_waiting_{false};
};

template <class Deliver>
unsigned SegmentChannel::poll(Deliver deliver) noexcept {
    const auto take_line = [](const Path::LineArrival&) { return false; };  // of endpoints only
    return path_.poll(kPollBudget, take_line, [&](const Path::Arrival& arrival) {
        if (arrival.op() == core::RdOp::kGrow) {
            return true;
        }
        const std::uint64_t header_bytes = arrival.tag();
        if (arrival.op() != core::RdOp::kSegment || header_bytes > arrival.length()) {
            return false;
        }
        const std::byte* const run = arrival.run();
        // The core only reads it; iovec has no const.
        const iovec payload{.iov_base = const_cast<std::byte*>(run) + header_bytes,  // NOLINT
                            .iov_len = arrival.length() - header_bytes};
        deliver(std::span(run, header_bytes), std::span(&payload, 1));
        return true;
    });
}

}  // namespace rvt::shm
