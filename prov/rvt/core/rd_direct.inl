// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided access that the initiator does by itself: it reads or writes the target's memory
// without the target's help. The target's key table, mapped read-only, says what is permitted; a
// mark in our own page keeps the region there while we copy, and the target's endpoint open. The
// same mark stands around all other copies to or from a peer's memory. Included by rd_engine.h.
#pragma once

#include <chrono>
#include <optional>
#include <thread>

#include "core/rd_engine.h"
#include "util/fault_guard.h"
#include "util/long_copy.h"

namespace rvt::core {

/// The target's own key for the key of a request. Returns: false when it is not known (yet).
template <class Lock, class Host>
bool RdEngine<Lock, Host>::resolve_key(Peer& peer, std::uint64_t key,
                                       std::uint32_t& own) const noexcept {
    if (!peer.path.has_user_keys()) {
        own = static_cast<std::uint32_t>(key);
        return key <= 0xffffffffu;
    }
    // The first access with a key goes through the rings; its answer brings the target's own key.
    const std::optional<std::uint32_t> known = peer.book.own_key(key);
    own = known.value_or(0);
    return known.has_value();
}

/// What the target's table says of an access. Its own key may have come round since the answer that
/// brought it, and be that of another region: the application's key tells them apart.
template <class Lock, class Host>
KeyHit RdEngine<Lock, Host>::look_up(const Peer& peer, std::uint32_t own, const RdRemote& range,
                                     bool is_write) noexcept {
    return peer.keys_view.lookup(
        {.key = own,
         .pd = peer.path.key_domain(),
         .addr = range.addr,
         .length = range.len,
         .access = is_write ? Access::kRemoteWrite : Access::kRemoteRead,
         .user_key = peer.path.has_user_keys() ? std::optional(range.key) : std::nullopt});
}

/// Counts an access of `bytes` to the region behind the target's own key. Returns: whether the
/// region is mapped here, or open to its device's library.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::count_use(Peer& peer, std::uint32_t own, std::uint64_t bytes) noexcept {
    if (!peer.has_keys_view) {
        return false;
    }
    if (peer.path.is_same_process()) {
        const RegionEntry* const known = peer.book.find(own);
        return known != nullptr && known->state == RegionEntry::State::kOpen;
    }
    RegionEntry& entry = peer.book.enter(own);
    if (peer.book.count_access(entry, own, bytes)) {
        station_.request_region(peer.link, own);
    }
    return entry.state == RegionEntry::State::kOpen;
}

/// Whether this process can do all of an operation itself; `is_mapped` tells whether without a
/// system call.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::may_be_direct(Peer& peer, const RdTxOp& op, bool& is_mapped) noexcept {
    is_mapped = true;
    for (std::size_t i = 0; i < op.remote_count; ++i) {
        std::uint32_t own = 0;
        if (!resolve_key(peer, op.remote[i].key, own)) {
            return false;
        }
        is_mapped = count_use(peer, own, op.total) && is_mapped;
    }
    return is_mapped || peer.path.may_access_memory();
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_direct_better(Peer& peer, RdTxOp& op) noexcept {
    bool is_mapped = false;
    if (!peer.has_keys_view || op.total == 0 || !may_be_direct(peer, op, is_mapped)) {
        return false;
    }
    // Small accesses keep their order (kMaxOrderedRmaSize): none overtakes one that is under way in
    // the rings.
    if (op.total <= kMaxOrderedRmaSize &&
        (peer.outstanding_accesses != 0 || !are_quiet_writes_done(peer))) {
        return false;
    }
    if (is_mapped || peer.path.is_same_process() || !peer.path.is_peer_polling()) {
        return true;
    }
    if (op.total < tuning_.direct_min) {
        return false;
    }
    RdMethodChooser& methods = op.kind == RdTxOp::Kind::kWrite ? write_methods_ : read_methods_;
    RdMethodChooser::Mask allowed = RdMethodChooser::bit(RdMethod::kPipeline);
    allowed |= RdMethodChooser::bit(RdMethod::kDirect);
    if (may_be_shared(peer, op)) {
        allowed |= RdMethodChooser::bit(RdMethod::kSplit);
    }
    op.method = methods.choose(op.total, allowed);
    op.end = op.total;
    return op.method != RdMethod::kPipeline;
}

/// Where the range that was looked up lies in this process, if it is mapped.
template <class Lock, class Host>
std::byte* RdEngine<Lock, Host>::mapped_target(Peer& peer, std::uint32_t own, const KeyHit& hit,
                                               std::uint64_t length) noexcept {
    const RegionEntry* const known = peer.book.find_current(own, hit.version);
    if (known == nullptr || !known->region || known->region->device != nullptr) {
        return nullptr;
    }
    // The table is the peer's: what it says is bounded by what was mapped.
    const typename Host::Region& region = *known->region;
    const bool is_inside = hit.offset < region.length && length <= region.length - hit.offset;
    return is_inside ? region.data() + hit.offset : nullptr;
}

/// Copies between a buffer of ours and memory of the target that is mapped here. Its file may have
/// become shorter, or a limit of this process leaves it no page for what nobody has touched yet. A
/// buffer that is not there is the application's fault, as ever.
inline util::Status copy_mapped(const iovec& part, std::byte* mapped, bool is_write) noexcept {
    void* const to = is_write ? mapped : part.iov_base;
    const void* const from = is_write ? part.iov_base : mapped;
    const bool is_done = util::copy_beside_guarded(to, from, part.iov_len, mapped);
    return is_done ? util::kOk : util::Status(EFAULT);
}

/// Copies one part, `offset` bytes into the range that was looked up.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_part(Peer& peer, const iovec& part, const KeyHit& hit,
                                             std::byte* mapped, std::uint64_t offset,
                                             bool is_write) noexcept {
    if (mapped != nullptr) {
        return copy_mapped(part, mapped + offset, is_write);
    }
    const std::uint64_t there = hit.base + hit.offset + offset;
    return is_write ? peer.path.write_memory(part, there) : peer.path.read_memory(part, there);
}

/// Takes in how long an access took, if there was a choice of the way it went. Of those that were
/// under way at the same time each counts from the end of the one before. `is_last`: no other one
/// is.
template <class Lock, class Host>
void RdEngine<Lock, Host>::learn_access(const RdTxOp& op, bool is_last) noexcept {
    if (op.method == RdMethod::kCount) {
        return;
    }
    const std::uint64_t now = util::cpu_ticks();
    const std::uint64_t begin = std::max(op.started, std::exchange(last_access_end_, now));
    if (op.status == WcStatus::kSuccess) {
        (op.kind == RdTxOp::Kind::kWrite ? write_methods_ : read_methods_)
            .learn(op.total, op.method, now - begin, is_last);
    }
}

/// Copies the next parts. Returns: whether the operation has left the queue.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_direct(Peer& peer, RdTxOp& op) noexcept {
    std::uint64_t budget = tuning_.direct_chunk;
    while (op.segment < op.remote_count && op.status == WcStatus::kSuccess) {
        if (budget == 0) {
            return false;
        }
        const Status copied = copy_direct(peer, op, budget);
        if (copied == Status(EACCES)) {
            op.status = WcStatus::kRemAccessErr;
        } else if (!copied.is_ok()) {
            leave_direct(op);
            return start_access(peer, op);
        }
    }
    const bool wants_event = has(op.flags, RdFlags::kData) || peer.path.wants_rma_events();
    if (wants_event && op.status == WcStatus::kSuccess && !tell_of_access(peer, op)) {
        return false;
    }
    learn_access(op, op.next == nullptr && peer.outstanding_accesses == 0);
    sent(peer, op, false);
    return true;
}

/// Tells the target of an access of which all has been copied, once for each region. Returns: false
/// when there is no room now; segment_done says how many segments have been gone through.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::tell_of_access(Peer& peer, RdTxOp& op) noexcept {
    for (; op.segment_done != op.remote_count; ++op.segment_done) {
        op.segment = static_cast<std::uint32_t>(op.segment_done);
        const bool is_due = is_last_in_region(op);
        const std::uint8_t flags = event_flags(op);
        const RdAccess access = access_of(op);
        op.segment = op.remote_count;
        if (is_due && !peer.path.put(RdOp::kRmaEvent, flags, 0, op.data, &access, sizeof access)) {
            return false;
        }
    }
    return true;
}

/// Flags of the message that tells the target of an access which it did not take part in, for the
/// current segment.
template <class Lock, class Host>
std::uint8_t RdEngine<Lock, Host>::event_flags(const RdTxOp& op) const noexcept {
    const std::uint8_t kind = op.kind == RdTxOp::Kind::kWrite ? wire::kEvent : 0;
    if (op.segment + 1u != op.remote_count) {
        return kind | wire::kMore;
    }
    return kind | (has(op.flags, RdFlags::kData) ? wire::kHasData : 0);
}

/// Copies up to `budget` bytes of the current segment.
/// Returns: EACCES when the target does not permit it; another error when this way is closed.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_direct(Peer& peer, RdTxOp& op,
                                               std::uint64_t& budget) noexcept {
    const RdRemote& remote = op.remote[op.segment];
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    std::uint32_t own = 0;
    if (!resolve_key(peer, remote.key, own)) {
        return EAGAIN;
    }
    station_.mark_use(peer.path.incarnation(), own);
    const KeyHit hit = look_up(peer, own, remote, is_write);
    PeerDeviceMemory* const device =
        hit.is_ok() && hit.indirect ? opened_target(peer, own, hit, remote.len) : nullptr;
    const Status status = refuses_copies(peer) ? Status(ESRCH)
                          : !hit.is_ok()       ? forget_key(peer, remote.key, own)
                          : device != nullptr  ? copy_with_device(*device, op, hit.offset, budget)
                                               : copy_segment(peer, op, own, hit, budget);
    station_.unmark_use();
    if (device != nullptr && status == Status(EIO)) {
        refuse_region(peer, own);
    }
    return status;
}

/// The target's table does not permit an access. A cached key may be stale where the application
/// chose the same key again: then the target is asked.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::forget_key(Peer& peer, std::uint64_t key,
                                              std::uint32_t own) noexcept {
    peer.book.erase(own);
    return peer.book.forget_own_key(key) ? EAGAIN : EACCES;
}

/// The same of memory that is mapped here, or reached by system calls.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_segment(Peer& peer, RdTxOp& op, std::uint32_t own,
                                                const KeyHit& hit, std::uint64_t& budget) noexcept {
    const std::uint64_t length = op.remote[op.segment].len;
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    std::byte* const mapped = mapped_target(peer, own, hit, length);
    if (mapped == nullptr && (hit.indirect || !peer.path.may_access_memory())) {
        return ENOTSUP;
    }
    const typename Host::Region::Access access(
        mapped != nullptr ? peer.book.find(own)->region.get() : nullptr, is_write);
    Status status = access.status();
    if (status.is_ok() && is_write) {
        status = refresh(op, op.total);
    }
    util::IovCursor cursor(op.iov.data(), op.iov_count, op.done);
    while (status.is_ok() && budget != 0 && op.segment_done < length) {
        iovec part = cursor.span();
        part.iov_len = std::min<std::uint64_t>({part.iov_len, budget, length - op.segment_done});
        status = copy_part(peer, part, hit, mapped, op.segment_done, is_write);
        if (status.is_ok()) {
            cursor.skip(part.iov_len);
            op.done += part.iov_len;
            op.segment_done += part.iov_len;
            budget -= part.iov_len;
        }
    }
    if (status.is_ok() && op.segment_done == length) {
        ++op.segment;
        op.segment_done = 0;
    }
    return status;
}

/// Copies between our memory and what a peer has named of its own in a message or request.
/// Returns: as Path::copy_memory(); EPERM where that may not be, ESRCH where the peer refuses it.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_named(Peer& peer, bool is_write,
                                              const RdCopyBatch& batch) noexcept {
    if (!peer.path.may_access_memory()) {
        return EPERM;
    }
    station_.mark_use(peer.path.incarnation(), kNoKey);
    const Status copied = refuses_copies(peer) ? Status(ESRCH)
                          : is_write           ? batch.write_to(peer.path)
                                               : batch.read_from(peer.path);
    station_.unmark_use();
    return copied;
}

/// Whether there is word that a peer is gone which nobody has read. The caller holds the lock: what
/// is in the mail stays there.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_gone_by_mail(const Peer& peer) const noexcept {
    // relaxed: only whether there is mail, as in progress_locked().
    if (mail_.load(std::memory_order_relaxed) == nullptr) [[likely]] {
        return false;
    }
    // acquire: pairs with the release in deliver().
    const Event* event = mail_.load(std::memory_order_acquire);
    while (event != nullptr &&
           (event->kind != Event::Kind::kPeerGone || event->link != peer.link)) {
        event = event->next;
    }
    return event != nullptr;
}

/// Whether nothing may be copied to or from a peer's memory: it has asked for that, or is gone, as
/// the control thread has said. The number of a process that is gone may be another one's.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::refuses_copies(const Peer& peer) const noexcept {
    return peer.path.refuses_copies() || peer.is_gone || is_gone_by_mail(peer);
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::end_copies(int timeout_ms) noexcept {
    {
        util::Guard guard(lock_);
        if (!is_enabled_) {
            return util::kOk;
        }
        station_.refuse_copies();
    }
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (uses_key(kNoKey)) {
        if (Clock::now() >= end) {
            return EBUSY;
        }
        std::this_thread::yield();
    }
    return util::kOk;
}

/// Starts an operation over, through the rings. What has been copied is copied again, with the same
/// outcome.
template <class Lock, class Host>
void RdEngine<Lock, Host>::leave_direct(RdTxOp& op) noexcept {
    op.is_direct = op.is_placed = false;
    op.method = RdMethod::kCount;
    op.segment = 0;
    op.done = op.segment_done = 0;
}

}  // namespace rvt::core
