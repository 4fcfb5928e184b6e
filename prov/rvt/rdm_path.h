// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The way of an RDM endpoint to one peer: shared memory where the peer is on this host, else a flow
// over the wire. The path that core::RdEngine is instantiated with; what it asks of either stands
// in backend/shm/path.h.
//
// To a remote peer the rings of shm::Path stay closed, so that a small message for a peer of this
// host never asks which of the two it is.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/shm/path.h"
#include "core/rd_flow.h"

namespace rvt {

class RdmPath : public shm::Path {
  public:
    /// Set in the names of flows, never in those of links through shared memory.
    static constexpr std::uint64_t kRemoteLink = std::uint64_t{1} << 63;
    static std::uint64_t link_of(const core::RdFlow& flow) noexcept {
        return kRemoteLink | flow.id();
    }

    /// Starts to use what the event brings, for `peer`. Returns: its name.
    std::uint64_t open(shm::ConnectionEvent& event, void* peer) noexcept;
    void close() noexcept;
    bool is_remote() const noexcept { return flow_ != nullptr; }

    // ---- sending ----

    RVT_ALWAYS_INLINE bool put_eager(std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                                     const void* payload, std::size_t count) noexcept {
        return has_line() || flow_ == nullptr
                   ? shm::Path::put_eager(flags, tag, data, payload, count)
                   : flow_->put_eager(flags, tag, data, payload, count);
    }
    bool put(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
             const void* payload, std::size_t count) noexcept {
        return flow_ == nullptr
                   ? shm::Path::put(op, flags, tag, data, payload, count)
                   : put_remote(op, flags, tag, data, payload, count, core::RdFlow::Room::kAny);
    }
    bool put_control(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                     const void* payload, std::size_t count) noexcept {
        return flow_ == nullptr
                   ? shm::Path::put_control(op, flags, tag, data, payload, count)
                   : put_remote(op, flags, tag, data, payload, count, core::RdFlow::Room::kReply);
    }
    std::byte* reserve_run(std::size_t count, std::size_t payload_bytes) noexcept {
        return flow_ == nullptr ? shm::Path::reserve_run(count)
                                : flow_->reserve_run(count, payload_bytes);
    }
    void put_run(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                 const void* payload, std::size_t payload_bytes, std::size_t run_bytes) noexcept;
    /// Sends a run from where it is, which only a flow can: see RdFlow::put_borrowed().
    bool put_borrowed(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                      const void* payload, std::size_t payload_bytes, const iovec& run,
                      bool has_more) noexcept;
    /// Whether NICs at both ends read and write memory of the application's.
    bool can_rdma() const noexcept { return flow_ != nullptr && flow_->can_rdma(); }
    /// Registers memory that the peer's NIC may read. Returns: nothing where it cannot be.
    core::RdLoan lend(const iovec& memory) noexcept {
        return can_rdma() ? flow_->lend(memory) : core::RdLoan{};
    }
    /// The same of memory of a device.
    core::RdLoan lend(const core::BufferUse::NicPlace& place) noexcept {
        return can_rdma() ? flow_->lend(place) : core::RdLoan{};
    }
    /// See RdFlow::fetch().
    bool fetch(const iovec& to, std::uint64_t address, std::uint64_t key,
               std::uint64_t name) noexcept {
        return can_rdma() && flow_->fetch(to, address, key, name);
    }
    bool fetch(const core::BufferUse::NicPlace& to, std::uint64_t bytes, std::uint64_t address,
               std::uint64_t key, std::uint64_t name) noexcept {
        return can_rdma() && flow_->fetch(to, bytes, address, key, name);
    }
    /// See RdFlow::write(). Precondition: can_rdma().
    util::Status write(const iovec& from, std::uint64_t address, std::uint64_t key,
                       std::uint64_t name) noexcept {
        return flow_->write(from, address, key, name);
    }
    util::Status write(const core::BufferUse::NicPlace& from, std::uint64_t bytes,
                       std::uint64_t address, std::uint64_t key, std::uint64_t name) noexcept {
        return flow_->write(from, bytes, address, key, name);
    }
    /// See RdFlow::expose(). Precondition: can_rdma().
    util::Result<std::uint32_t> expose(std::uint32_t key, const iovec& memory, Access rights,
                                       core::DeviceMemory* device) noexcept {
        return flow_->expose(key, memory, rights, device);
    }
    /// Put so far; 0 in shared memory, where nothing is borrowed.
    std::uint64_t frames() const noexcept { return flow_ == nullptr ? 0 : flow_->frames(); }
    bool has_let_go(std::uint64_t frames) const noexcept {
        return frames == 0 || flow_ == nullptr || flow_->has_let_go(frames);
    }
    std::size_t max_run() const noexcept {
        return flow_ == nullptr ? shm::Path::max_run() : flow_->max_run();
    }
    /// Longest part of a long run, of which so many bytes are left, to put next.
    std::size_t next_run(std::uint64_t left) noexcept {
        return flow_ == nullptr ? shm::Path::max_run() : flow_->next_run(left);
    }
    void prepare_bulk() noexcept {
        if (flow_ == nullptr) {
            shm::Path::prepare_bulk();
        }
    }
    bool is_drained() const noexcept {
        return flow_ == nullptr ? shm::Path::is_drained() : flow_->is_drained();
    }
    /// Of a flow nothing is known: who waits for room there looks again.
    bool take_lack_of_room() noexcept { return flow_ == nullptr && shm::Path::take_lack_of_room(); }
    bool has_new_credits() const noexcept {
        return flow_ != nullptr || shm::Path::has_new_credits();
    }
    bool must_hold_eager() noexcept {
        return flow_ == nullptr ? shm::Path::must_hold_eager() : flow_->must_hold_eager();
    }
    void hold_eager(bool hold) noexcept {
        flow_ == nullptr ? shm::Path::hold_eager(hold) : flow_->hold_eager(hold);
    }

    // ---- the peer's memory: that of another host is out of reach ----

    bool may_access_memory() const noexcept {
        return flow_ == nullptr && shm::Path::may_access_memory();
    }
    bool is_same_process() const noexcept {
        return flow_ == nullptr && shm::Path::is_same_process();
    }
    util::Status copy_memory(bool is_write, const iovec* local, const iovec* remote,
                             std::size_t count) noexcept {
        return flow_ == nullptr ? shm::Path::copy_memory(is_write, local, remote, count)
                                : util::Status(EOPNOTSUPP);
    }
    util::Status read_memory(const iovec& local, std::uint64_t remote) noexcept {
        return flow_ == nullptr ? shm::Path::read_memory(local, remote) : util::Status(EOPNOTSUPP);
    }
    util::Status write_memory(const iovec& local, std::uint64_t remote) noexcept {
        return flow_ == nullptr ? shm::Path::write_memory(local, remote) : util::Status(EOPNOTSUPP);
    }
    /// Of a peer on another host: taken for granted, nothing goes round it.
    bool is_peer_polling() const noexcept {
        return flow_ != nullptr || shm::Path::is_peer_polling();
    }
    bool must_wake_peer() const noexcept { return flow_ == nullptr && shm::Path::must_wake_peer(); }
    bool must_watch_peer() const noexcept {
        return flow_ == nullptr && shm::Path::must_watch_peer();
    }
    bool has_user_keys() const noexcept {
        return flow_ == nullptr ? shm::Path::has_user_keys() : flow_->peer().has_user_keys;
    }
    bool wants_rma_events() const noexcept {
        return flow_ == nullptr ? shm::Path::wants_rma_events() : flow_->peer().wants_rma_events;
    }
    std::pair<const void*, std::size_t> keys_block() const noexcept {
        return flow_ == nullptr ? shm::Path::keys_block()
                                : std::pair<const void*, std::size_t>{nullptr, 0};
    }
    bool refuses_copies() const noexcept { return flow_ == nullptr && shm::Path::refuses_copies(); }
    std::string describe() const;

  private:
    bool put_remote(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                    const void* payload, std::size_t count, core::RdFlow::Room room) noexcept;

    core::RdFlow* flow_ = nullptr;
};

}  // namespace rvt
