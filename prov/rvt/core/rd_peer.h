// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One remote endpoint as the RD engine knows it: its names, its path, and what waits for it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "core/key_table.h"
#include "core/rd_records.h"
#include "core/rd_region_book.h"
#include "core/wc.h"
#include "util/sock_addr.h"

namespace rvt::core {

/// Records in order, linked through T::next.
template <class T>
class RdQueue {
  public:
    bool is_empty() const noexcept { return head_ == nullptr; }
    T* front() const noexcept { return head_; }
    void push(T* record) noexcept {
        record->next = nullptr;
        (head_ == nullptr ? head_ : tail_->next) = record;
        tail_ = record;
    }
    T* pop() noexcept {
        T* const record = head_;
        head_ = record->next;
        return record;
    }
    /// Takes out the first record for which is_it(record) holds, or returns nullptr.
    template <class IsIt>
    T* take(IsIt is_it) noexcept {
        T* before = nullptr;
        for (T* record = head_; record != nullptr; before = record, record = record->next) {
            if (is_it(*record)) {
                (before == nullptr ? head_ : before->next) = record->next;
                if (record == tail_) {
                    tail_ = before;
                }
                return record;
            }
        }
        return nullptr;
    }

    /// Takes out all records for which goes(record) holds, to the end of `to`, before the first one
    /// for which is_end(record) does.
    template <class Goes, class IsEnd>
    void move_to(RdQueue& to, Goes goes, IsEnd is_end) noexcept {
        RdQueue rest;
        T* record = head_;
        while (record != nullptr && !is_end(*record)) {
            T* const next = record->next;
            (goes(*record) ? to : rest).push(record);
            record = next;
        }
        if (record != nullptr) {
            (rest.head_ == nullptr ? rest.head_ : rest.tail_->next) = record;
            rest.tail_ = tail_;
        }
        *this = rest;
    }

  private:
    T* head_ = nullptr;
    T* tail_ = nullptr;
};
using RdTxQueue = RdQueue<RdTxOp>;

/// A reply that found no room; sent before everything else.
struct RdReply {
    RdOp op = RdOp::kInvalid;
    std::uint8_t flags = 0;
    std::uint8_t count = 0;
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    std::array<std::byte, 40> payload{};
};

/// Data that the peer asked for and that did not fit into the rings at once: a read, or the results
/// of an atomic.
struct RdResponse {
    RdOp op = RdOp::kReadData;
    std::uint64_t operation = 0;  // the initiator's
    RdAccess access{};  // looked up again for each part, as the region may be closed meanwhile
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    std::unique_ptr<std::byte[]>
        snapshot;            // results, and small reads that later writes must not change
    std::uint8_t flags = 0;  // of the request that is reported when all of it has left
};

/// A write of the peer that is still arriving.
struct RdIncomingWrite {
    RdAccess access{};
    std::uint64_t data = 0;
    std::uint64_t done = 0;
    std::uint8_t flags = 0;
    WcStatus status = WcStatus::kSuccess;
    bool is_active = false;
};

/// A region of the peer's that is accessed, and what is known of how its NIC reaches it: all but
/// the state once that is kAnswered.
struct RdNicRegion {
    enum class State : std::uint8_t { kNew, kAccessed, kAsked, kAnswered };

    std::uint64_t address = 0;  // of its first byte, as RdRemote::addr
    std::uint64_t length = 0;
    std::uint64_t nic_address = 0;
    std::uint32_t nic_key = 0;
    Access rights = Access::kNone;
    State state = State::kNew;

    [[nodiscard]] bool covers(const RdRemote& range) const noexcept {
        return range.addr >= address && range.addr - address <= length &&
               range.len <= length - (range.addr - address);
    }
};

/// What does not depend on the kind of path.
struct RdPeerBase {
    enum class State : std::uint8_t { kIdle, kConnecting, kConnected };

    // Operations that have not left. Access overtakes messages, never the other way round, so that
    // a full receiver cannot block it (and a send after a write stays one). Fenced access, and all
    // that comes after it while it waits, is in line with the messages.
    RdTxQueue accesses;
    RdTxQueue queue;
    // Operations in both, and write_shares; while there are any, no message goes past.
    std::uint32_t waiting = 0;
    std::uint32_t fences = 0;        // of the operations, those with kFence
    std::uint32_t write_shares = 0;  // parts of writes that the target copies, oldest first
    std::uint64_t answered_write_shares = 0;
    State state = State::kIdle;
    bool is_busy = false;            // in the engine's list of peers with something to do
    bool is_held = false;            // it asked for headers only
    bool has_refused_share = false;  // split copy does not work with it
    bool is_gone = false;            // its last words are being received
    bool is_given_up = false;        // in the engine's list of ids to be used again
    std::uint32_t id = 0;            // the `source` of its messages in the match queues
    std::uint32_t records = 0;       // RdTxOp and RdInbound that are taken and name it
    std::uint64_t fi_addr = kSourceNotAvailable;
    std::uint32_t outstanding = 0;           // operations that wait for an answer
    std::uint32_t outstanding_accesses = 0;  // those of them that are one-sided
    std::uint32_t large_reads = 0;           // those of them that are, where reads are in order
    // Since it was its turn last: nothing but room is lacking for what waits, and the peer tells of
    // that.
    bool waits_for_room = false;
    bool is_read_held = false;         // the first operation is a read that waits for others
    std::uint32_t rendezvous_due = 0;  // headers sent that nobody has asked about
    std::uint32_t shares_ahead = 0;    // kShare messages that were done with one before them
    bool has_quiet_writes = false;     // the target may not have executed some of them
    std::uint64_t quiet_writes = 0;    // sent without a record, and not refused
    RdInbound* stream = nullptr;       // the eager message that is arriving
    bool is_head_due = false;          // that of a message is
    std::uint64_t head_for = 0;        // name of the RdInbound that takes it; 0: it is dropped
    std::uint32_t until_head = 0;      // headers to it until one has a head again
    RdTxQueue jobs;                    // messages that the peer has asked for
    RdTxQueue lent;                    // done but for their buffers, which the path still names
    RdIncomingWrite write;
    std::uint64_t open_access = 0;     // the peer's operation of which further segments are to come
    bool has_refused_segment = false;  // of that
    std::deque<RdReply> replies;
    std::deque<RdResponse> responses;
    // What its NIC reaches, by the key of an access. Without rights: asked for, or refused.
    std::unordered_map<std::uint64_t, RdNicRegion> nic_regions;
    bool knows_nic_keys = false;  // of ours
    util::SockAddr address;
    std::uint64_t link = 0;

    /// Whether no one-sided operation is under way, but for fenced ones that wait.
    bool has_no_access() const noexcept { return accesses.is_empty() && outstanding_accesses == 0; }
    /// Whether the first one in line is an access that has begun to leave, which the target has to
    /// take before the rest can.
    bool has_begun_in_line() const noexcept {
        const RdTxOp* const op = queue.front();
        return op != nullptr && op->kind != RdTxOp::Kind::kMessage &&
               op->state == RdTxOp::State::kStreaming;
    }
    bool has_queued() const noexcept { return waiting != write_shares; }
    /// Whether the first one in line waits until shares of writes before it are answered: those
    /// that were open when it became the first one, and no access was before it any more. Those of
    /// later writes do not count, or a stream of them would keep it for ever.
    bool is_held_back() const noexcept {
        const RdTxOp* const op = queue.front();
        return write_shares != 0 && op != nullptr && op->state == RdTxOp::State::kQueued &&
               op->after_write_share > answered_write_shares;
    }
    /// Precondition: accesses is empty, queue is not.
    void note_first_in_line() noexcept {
        RdTxOp& op = *queue.front();
        if (op.after_write_share == 0) {
            op.after_write_share = answered_write_shares + write_shares;
        }
    }
    /// Whether the first operation waits for no answer.
    bool may_leave() const noexcept {
        return (!accesses.is_empty() || (!queue.is_empty() && !is_held_back())) && !is_read_held;
    }
    /// Precondition: may_leave().
    const RdTxOp* first_to_leave() const noexcept {
        return accesses.is_empty() ? queue.front() : accesses.front();
    }
    bool has_work() const noexcept { return has_queued() || has_work_now(); }
    /// The same, but for what waits for an answer, which wakes.
    bool has_work_now() const noexcept {
        return may_leave() || !jobs.is_empty() || !lent.is_empty() || !replies.empty() ||
               !responses.empty();
    }
};

inline std::uint32_t RdInbound::match_source() const noexcept {
    return peer->id;
}

template <class Host>
struct RdPeer : RdPeerBase {
    typename Host::Path path;
    KeyView keys_view;  // the peer's key table, if it could be mapped
    bool has_keys_view = false;
    RdRegionBook<typename Host::Region> book;
};

}  // namespace rvt::core
