// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a channel sends and keeps, and how it copies to and from the peer's memory.
#include "backend/shm/segment_channel.h"

#include <cstring>
#include <utility>

#include "core/rd_wire.h"
#include "util/long_copy.h"

namespace rvt::shm {
namespace {

/// A peer that takes nothing for so long loses the datagrams that wait for it: nobody falls asleep
/// while there are any. One that only waits for its turn of the scheduler has longer than that
/// takes.
constexpr std::uint64_t kMostWaitUs = 1'000'000;

std::uint64_t total_bytes(std::span<const iovec> pieces) noexcept {
    std::uint64_t bytes = 0;
    for (const iovec& piece : pieces) {
        bytes += piece.iov_len;
    }
    return bytes;
}

}  // namespace

SegmentChannel::SegmentChannel(const util::SockAddr& peer) noexcept : peer_(peer) {
    path_.close();
}

void SegmentChannel::open(std::unique_ptr<Peering> peering) noexcept {
    const util::Guard guard(send_lock_);
    link_ = peering->link;
    path_.open(std::move(peering));
    set_state(State::kOpen);
}

void SegmentChannel::note_gone(std::uint64_t link) noexcept {
    const util::Guard guard(send_lock_);
    is_gone_ = is_gone_ || link_ == link;
}

std::size_t SegmentChannel::fail() noexcept {
    const util::Guard guard(send_lock_);
    set_state(State::kFailed);
    has_keys_ = false;
    path_.close();
    const std::size_t lost = waiting_.clear();
    waiting_since_us_ = 0;
    note_waiting_locked();
    return lost;
}

Status SegmentChannel::send(std::span<const std::byte> header,
                            std::span<const iovec> payload) noexcept {
    const util::Guard guard(send_lock_);
    if (state() != State::kOpen) {
        return state() == State::kConnecting ? EAGAIN : ENOTCONN;
    }
    return put_locked(header, payload);
}

Status SegmentChannel::put_locked(std::span<const std::byte> header,
                                  std::span<const iovec> payload) noexcept {
    const std::size_t bytes = header.size() + total_bytes(payload);
    std::byte* const run = path_.reserve_run(bytes);
    if (run == nullptr) {
        return EAGAIN;
    }
    std::byte* to = run;
    std::memcpy(to, header.data(), header.size());
    to += header.size();
    for (const iovec& piece : payload) {
        if (piece.iov_len != 0) {
            util::copy_bytes(to, piece.iov_base, piece.iov_len);
            to += piece.iov_len;
        }
    }
    path_.put_run(core::RdOp::kSegment, 0, header.size(), 0, run, 0, bytes);
    path_.prepare_run();
    return kOk;
}

Status SegmentChannel::send_datagram(std::span<const std::byte> header,
                                     std::span<const iovec> payload) noexcept {
    const util::Guard guard(send_lock_);
    if (state() == State::kFailed) {
        return ENOTCONN;
    }
    // What waits first: it may have had room for long, unseen by who only sends.
    if (state() == State::kOpen && put_waiting_locked() && put_locked(header, payload).is_ok()) {
        return kOk;
    }
    const bool is_kept = waiting_.keep(header, payload);
    note_waiting_locked();
    return is_kept ? kOk : ENOBUFS;
}

void SegmentChannel::note_waiting_locked() noexcept {
    // relaxed: see has_waiting().
    has_waiting_.store(!waiting_.is_empty(), std::memory_order_relaxed);
}

/// Returns: whether none is left.
bool SegmentChannel::put_waiting_locked() noexcept {
    while (!waiting_.is_empty()) {
        const DatagramQueue::Datagram next = waiting_.front();
        if (!put_locked(next.header, {&next.payload, 1}).is_ok()) {
            return false;
        }
        waiting_.pop();
        waiting_since_us_ = 0;
        note_waiting_locked();
    }
    return true;
}

std::size_t SegmentChannel::send_waiting(std::uint64_t now_us) noexcept {
    const util::Guard guard(send_lock_);
    put_waiting_locked();
    if (waiting_since_us_ == 0) {
        waiting_since_us_ = now_us;
    }
    const std::size_t lost = now_us - waiting_since_us_ > kMostWaitUs ? waiting_.clear() : 0;
    if (waiting_.is_empty()) {
        waiting_since_us_ = 0;
    }
    note_waiting_locked();
    return lost;
}

/// The peer's table may be younger than the connection: looked at when first needed.
bool SegmentChannel::has_key_view() noexcept {
    if (!has_keys_) {
        const auto [block, bytes] = path_.keys_block();
        if (block == nullptr) {
            return false;
        }
        const Result<core::KeyView> view = core::KeyView::attach(block, bytes);
        has_keys_ = view.is_ok();
        keys_ = view.is_ok() ? view.value() : core::KeyView();
    }
    return has_keys_;
}

Status SegmentChannel::access(Station& mark, const PeerMemory& peer, const iovec& local,
                              std::uint64_t length, bool is_write) noexcept {
    const util::Guard guard(send_lock_);
    if (state() != State::kOpen || is_gone_ || !has_key_view() ||
        !(path_.may_access_memory() || path_.is_same_process())) {
        return EOPNOTSUPP;
    }
    mark.mark_use(path_.incarnation(), peer.rkey);
    const Status status = copy_marked(peer, local, length, is_write);
    mark.unmark_use();
    return status;
}

Status SegmentChannel::copy_marked(const PeerMemory& peer, const iovec& local, std::uint64_t length,
                                   bool is_write) noexcept {
    const core::KeyHit hit =
        keys_.lookup({.key = peer.rkey,
                      .pd = peer.pd,
                      .addr = peer.addr,
                      .length = length,
                      .access = is_write ? Access::kRemoteWrite : Access::kRemoteRead});
    if (!hit.is_ok() || hit.indirect) {
        return hit.is_ok() ? EOPNOTSUPP : EACCES;
    }
    const std::uint64_t there = hit.base + hit.offset;
    return is_write ? path_.write_memory(local, there) : path_.read_memory(local, there);
}

bool SegmentChannel::is_peer_using(std::uint64_t our_incarnation, std::uint32_t key) noexcept {
    const util::Guard guard(send_lock_);
    return state() == State::kOpen && path_.is_peer_using(our_incarnation, key);
}

}  // namespace rvt::shm
