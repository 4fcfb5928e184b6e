// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the RD engine remembers of operations that outlive the call or the message that began them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sys/uio.h>

#include "core/rd_loan.h"
#include "core/rd_method.h"
#include "core/rd_types.h"
#include "core/rd_wire.h"
#include "core/wc.h"
#include "util/iov_cursor.h"
#include "util/pool.h"
#include "util/spare_blocks.h"
#include "util/status.h"

namespace rvt::core {

struct RdPeerBase;

/// What a part of a message carries beside its run.
struct RdPart {
    RdOp op = RdOp::kInvalid;
    std::uint8_t flags = 0;
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    const void* payload = nullptr;
    std::size_t payload_bytes = 0;
    bool is_lent = true;    // may be sent, and sent again, from the application's buffers
    bool has_more = false;  // the next part follows at once
};

/// Buffers of the application.
struct RdBuffers {
    const iovec* iov = nullptr;
    std::size_t count = 0;

    std::size_t length() const noexcept { return util::iov_length(iov, count); }
};

/// An operation of the application that could not be finished in its call: queued for a connection
/// or for room, waiting for the peer's answer, or long.
struct RdTxOp : util::Pooled {
    enum class Kind : std::uint8_t { kMessage, kWrite, kRead, kAtomic };
    enum class State : std::uint8_t {
        kQueued,     // in the peer's queue; nothing has left
        kStreaming,  // at the head of the peer's queue or among its jobs; part of it has left
        kWaiting,    // everything has left, the peer's answer is due
        kLent,       // all of it has left, no answer is due, but it may have to be sent again
        kAnswered,   // the same, and the peer has answered
        kEnding,     // its connection has ended, and the NIC may still be at its buffer
    };

    RdTxOp* next = nullptr;  // in one of the peer's queues
    RdPeerBase* peer = nullptr;
    Kind kind = Kind::kMessage;
    State state = State::kQueued;
    RdFlags flags = RdFlags::kNone;
    WcStatus status = WcStatus::kSuccess;
    std::uint64_t wc_flags = 0;
    void* context = nullptr;
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    std::uint64_t total = 0;
    std::uint64_t done = 0;              // bytes that have left or arrived
    std::uint64_t end = 0;               // where the part that is left to this process ends
    std::uint64_t receiver = 0;          // kMessage asked for: the receiver's operation
    std::uint64_t receiver_address = 0;  // kMessage asked for by split copy: where to write
    std::uint64_t returned = 0;          // one-sided: bytes that have come back
    std::uint64_t started = 0;           // one-sided: ticks when it began, for the choice of method
    std::uint32_t answers_due = 0;       // one-sided: segments whose outcome is open
    std::uint32_t segment = 0;           // one-sided: the remote segment that is next to leave
    std::uint64_t segment_done = 0;      // bytes of it that have left
    std::uint64_t frames = 0;            // of the path, up to the last that names our buffers
    RdAtomicKind atomic{};
    std::uint8_t iov_count = 0;
    std::uint8_t compare_count = 0;
    std::uint8_t result_count = 0;
    std::uint8_t remote_count = 0;
    std::array<iovec, kMaxIov> iov{};
    std::array<iovec, kMaxIov> compare{};
    std::array<iovec, kMaxIov> result{};
    std::array<RdRemote, kMaxIov> remote{};
    std::unique_ptr<std::byte[]> copy;  // of what was injected and is too long for small_copy
    BufferUse* use = nullptr;           // with RdFlags::kHasUse
    RdLoan loan;                        // kMessage: of its buffer
    bool is_in_line = false;            // in the peer's queue of messages
    bool is_rendezvous = false;         // kMessage: sent as a header
    bool has_head = false;              // kMessage: its first bytes went with the header
    bool is_asked = false;              // kMessage: the peer has asked for the data
    bool is_direct = false;   // one-sided: this process copies to or from the peer's memory
    bool is_by_nic = false;   // one-sided: its NIC does
    bool is_placed = false;   // kRead: a device's library has put all of it where it belongs
    bool has_waited = false;  // one-sided: for another to be copied with
    RdMethod method = RdMethod::kCount;   // one-sided: what was chosen, if there was a choice
    std::uint32_t share_count = 0;        // one-sided: parts that the target copies, oldest first
    std::uint64_t after_write_share = 0;  // in line: leaves when so many are answered; 0: not known
    struct Range {
        std::uint64_t begin;
        std::uint64_t end;
    };
    std::array<Range, 2> shares{};
    std::array<std::byte, 64> small_copy;  // of what was injected; behind what all operations touch

    /// Whether it brings something of the peer's memory back.
    bool is_read() const noexcept {
        return kind == Kind::kRead || (kind == Kind::kAtomic && result_count != 0);
    }
    /// Whether it may take another way to the peer than small ones do.
    bool is_large_read() const noexcept { return is_read() && total > kMaxOrderedRmaSize; }

    /// Whether iov and compare name copies of ours: what they were made of is the application's
    /// again.
    bool has_copies() const noexcept { return has(flags, RdFlags::kInject); }

    /// Remembers the application's buffers, or with has_copies() what is in them.
    /// @param compared  With which an atomic compares.
    /// Returns: ENOMEM.
    util::Status take_buffers(RdBuffers sent, RdBuffers compared = {}) noexcept {
        iov_count = static_cast<std::uint8_t>(sent.count);
        compare_count = static_cast<std::uint8_t>(compared.count);
        if (!has_copies()) {
            std::copy_n(sent.iov, sent.count, iov.begin());
            std::copy_n(compared.iov, compared.count, compare.begin());
            return util::kOk;
        }
        const std::size_t bytes = sent.length();
        const std::size_t all = bytes + compared.length();
        std::byte* to = small_copy.data();
        if (all > small_copy.size()) {
            copy.reset(new (std::nothrow) std::byte[all]);
            if (!copy) {
                return ENOMEM;
            }
            to = copy.get();
        }
        keep_copy(sent, to, iov, iov_count);
        keep_copy(compared, to + bytes, compare, compare_count);
        return util::kOk;
    }

  private:
    static void keep_copy(RdBuffers from, std::byte* to, std::array<iovec, kMaxIov>& named,
                          std::uint8_t& count) noexcept {
        const std::size_t bytes = from.length();
        util::IovCursor(from.iov, from.count).gather(to, bytes);
        named[0] = {to, bytes};
        count = count != 0 ? 1 : 0;
    }
};

/// A receive that the application posted. What a simple receive touches is one cache line.
struct alignas(util::kCacheLine) RdRxEntry : util::Pooled {
    void* context = nullptr;
    std::uint64_t tag = 0;
    RdFlags flags = RdFlags::kNone;
    std::uint32_t match_slot = 0;  // belongs to the match queue
    std::uint32_t source = 0;      // id of the peer, or kAnySourceId
    std::uint8_t iov_count = 0;
    bool is_queued = false;            // still in a match queue
    std::array<iovec, kMaxIov> iov{};  // of a multi-receive buffer: what is left of it
    // Of a multi-receive buffer: messages that are being written into it. 0 in a free record.
    std::uint32_t users = 0;
    BufferUse* use = nullptr;  // with RdFlags::kHasUse

    std::uint64_t match_tag() const noexcept { return tag; }
    std::uint32_t match_source() const noexcept { return source; }
    std::uint64_t capacity() const noexcept { return util::iov_length(iov.data(), iov_count); }
};

/// A message that has begun to arrive: unexpected, or being received. What one of a few bytes that
/// waits for its receive touches is one cache line.
struct alignas(util::kCacheLine) RdInbound : util::Pooled {
    enum class State : std::uint8_t {
        kStreaming,   // further eager parts are on their way
        kComplete,    // all of it is in storage, nobody has asked for it
        kSmall,       // the same, in inline_storage; what stands behind that is not set
        kRendezvous,  // with the sender
        kPulling,     // being fetched
        kCopying,     // being read from the sender's memory by this process
        kFetching,    // or by the NIC
        kFailed,      // the NIC cannot read it: the connection is about to end
        kEnding,      // it has ended, and the NIC may still write
        kDiscarding,  // nobody wants what still arrives
    };
    static constexpr std::size_t kInlineBytes = 208;

    RdPeerBase* peer = nullptr;
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    std::uint64_t total = 0;
    std::uint32_t match_slot = 0;  // belongs to the match queue
    std::uint8_t wire_flags = 0;
    State state = State::kStreaming;
    bool waits_for_share : 1 = false;  // split copy: the sender has not reported its half
    bool lacks_share : 1 = false;      // one of the two could not copy its part
    bool is_placed : 1 = false;  // a device's library, or a NIC, has put all of it where it belongs
    std::array<std::byte, kInlineBytes> inline_storage;
    static_assert(sizeof(RdOpening) <= kInlineBytes);

    std::uint64_t received = 0;
    RdRxEntry* entry = nullptr;         // where it goes; nullptr while unexpected
    std::uint64_t buffer_capacity = 0;  // of the place it goes to
    iovec place{};  // multi-receive: the part of the buffer that is this message's
    util::SpareBlocks::Block storage;  // empty in a free record
    WcStatus status = WcStatus::kSuccess;
    RdMethod method = RdMethod::kPipeline;

    RdInbound* next = nullptr;  // among the engine's copies
    std::uint64_t end = 0;      // kCopying: end of our share; kPulling: where to stop
    std::uint64_t sender_operation = 0;
    std::uint64_t sender_address = 0;
    std::uint64_t sender_key = 0;  // by which the NIC may read there
    // There is such a key; of a message from this host: it is that of the sender's region, in
    // memory of a device, and sender_address is the region's, too.
    bool is_readable = false;
    bool has_opening = false;   // inline_storage begins with an RdOpening for that region
    std::uint64_t started = 0;  // ticks when the transfer began, for the choice of method

    std::uint64_t match_tag() const noexcept { return tag; }
    std::uint32_t match_source() const noexcept;
    std::byte* bytes() noexcept { return storage ? storage.get() : inline_storage.data(); }
    /// The memory that it takes to keep this message, as far as the limit of unexpected bytes goes.
    /// One that is only announced is not counted: that is what senders do beyond the limit, and
    /// each has a number of these.
    std::int64_t kept_bytes() const noexcept {
        return state == State::kRendezvous
                   ? 0
                   : static_cast<std::int64_t>(sizeof(RdInbound) +
                                               (total > kInlineBytes ? total : 0));
    }
    bool is_tagged() const noexcept { return (wire_flags & wire::kTagged) != 0; }
    bool is_being_pulled() const noexcept {
        return state == State::kPulling || state == State::kCopying;
    }
    /// Whether it needs nothing from its sender any more, and nobody has asked for it.
    bool is_here() const noexcept { return state == State::kComplete || state == State::kSmall; }

    /// Sets what stands behind inline_storage, for a message of which nothing has come yet.
    void set_rest() noexcept {
        received = 0;
        entry = nullptr;
        status = WcStatus::kSuccess;
        is_readable = false;
        has_opening = false;
    }
};

/// A tagged receive that has been posted and not yet compared with the messages that wait.
struct RdLateReceive {
    RdRxEntry* entry;
    std::uint64_t ignore;
};

}  // namespace rvt::core
