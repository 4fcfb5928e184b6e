// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices between processes of one host. Who receives a message, or accesses a region,
// has the library of the device open the other side's memory, once for each region, and copies
// from device to device, or between a device and the host; or maps it, where it is a dma-buf that
// the CPU can have. Until it is open, and where it cannot be, data takes the common ways, through
// copies in host memory (docs/hmem.md). Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

// ---- the side whose memory it is ----

/// Has the CPU see the first `end` bytes that an operation reads.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::refresh(RdTxOp& op, std::uint64_t end) noexcept {
    return has(op.flags, RdFlags::kHasUse) ? op.use->refresh(end) : util::kOk;
}

/// How the peer names a message that stays on its device until the peer takes it from there;
/// nullptr: it does not stay.
template <class Lock, class Host>
const BufferUse::Source* RdEngine<Lock, Host>::source_of(const Peer& peer,
                                                         const RdTxOp& op) const noexcept {
    const bool may_stay = keys_.has_p2p && has(op.flags, RdFlags::kHasUse) &&
                          op.total > kMaxStagedSize && op.iov_count == 1 && !op.has_copies() &&
                          !peer.path.is_remote() && !peer.path.is_same_process();
    const BufferUse::Source* const source = may_stay ? op.use->source() : nullptr;
    // A mapped one is worth a question where host memory is.
    const bool is_small = source != nullptr && source->is_mapped && op.total <= tuning_.eager_max;
    return is_small ? nullptr : source;
}

/// Ends an operation at the head of its queue of which nothing has left.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::cannot_start(Peer& peer, RdTxOp& op) noexcept {
    leave_queue(peer, op);
    finish_tx(op, WcStatus::kGeneralErr);
    return true;
}

/// Tells who has asked for a message that it cannot have it. It answers, which ends the operation.
template <class Lock, class Host>
void RdEngine<Lock, Host>::cannot_send(Peer& peer, RdTxOp& op) noexcept {
    op.status = WcStatus::kGeneralErr;
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(op.status), .key = 0};
    reply(peer, RdOp::kPullDone, 0, op.receiver, &outcome, sizeof outcome);
}

/// Under a pin: what a peer needs to open a region of ours. Threads: any.
template <class Lock, class Host>
auto RdEngine<Lock, Host>::find_handle(std::uint32_t key) noexcept -> std::optional<OwnHandle> {
    const util::Result<KeyRegion> region = keys_.table->view().region(key, keys_.pd, Access::kNone);
    if (!region.is_ok() || !region.value().indirect) {
        return {};
    }
    const DeviceMemory* const device = memory_of({.base = region.value().base}).device;
    const DeviceHandle* const handle =
        device != nullptr && keys_.has_p2p ? device->handle() : nullptr;
    if (handle == nullptr) {
        return {};
    }
    note_shared(key);
    return OwnHandle{.by = handle, .length = region.value().length};
}

/// A peer may have memory of a device of ours from now on. Threads: any.
template <class Lock, class Host>
void RdEngine<Lock, Host>::note_shared(std::uint32_t key) noexcept {
    const std::lock_guard guard(shared_keys_lock_);
    shared_keys_.insert(key);
}

/// What opens the region of a message, for a peer that has not: it takes this very message from
/// there. Returns: false where nothing does.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::tell_opening(std::uint32_t key, RdOpening& opening) noexcept {
    const ReadPin pin(pin_);
    const auto handle = find_handle(key);
    if (handle) {
        opening = {.handle = *handle->by, .length = handle->length};
    }
    return handle.has_value();
}

/// The region is no more. Peers that may have opened or mapped it let go of it at their next
/// progress; until then the memory stays.
template <class Lock, class Host>
void RdEngine<Lock, Host>::withdraw_handle(std::uint32_t key) noexcept {
    {
        const std::lock_guard guard(shared_keys_lock_);
        if (shared_keys_.erase(key) == 0) {
            return;
        }
    }
    for (const Polled& polled : polled_) {
        reply(*polled.peer, RdOp::kKeyEnds, 0, key, &key, 0);
    }
}

/// More of a message is in the CPU's copy of where it belongs.
template <class Lock, class Host>
void RdEngine<Lock, Host>::note_arrival(RdInbound& inbound) noexcept {
    if (!has(inbound.entry->flags, RdFlags::kMultiRecv)) {
        inbound.entry->use->arrived(std::min(inbound.received, inbound.buffer_capacity));
    }
}

// ---- the side that copies ----

/// The peer has told what opens a region of its memory.
template <class Lock, class Host>
void RdEngine<Lock, Host>::open_region(Peer& peer, std::uint32_t own, RegionEntry& entry,
                                       const RdOpening& by) noexcept {
    DeviceOpener* const opener = opener_of_devices();
    if (opener != nullptr && !opener->is_ready()) {
        // The application may come to use devices later.
        const std::uint32_t version = entry.version;
        entry = {};
        entry.version = version;
        return;
    }
    std::unique_ptr<typename Host::Region> region(
        opener != nullptr ? new (std::nothrow) typename Host::Region : nullptr);
    if (region != nullptr) {
        auto opened = opener->open(by.handle);
        region->length = by.length;
        if (opened.is_ok()) {
            region->device = opened.take();
        } else {
            region.reset();
        }
    }
    peer.book.answered(entry, own, std::move(region));
}

/// The memory in which a range that was looked up lies, if it is open here.
template <class Lock, class Host>
PeerDeviceMemory* RdEngine<Lock, Host>::opened_target(Peer& peer, std::uint32_t own,
                                                      const KeyHit& hit,
                                                      std::uint64_t length) noexcept {
    const RegionEntry* const known = peer.book.find_current(own, hit.version);
    if (known == nullptr || !known->region || known->region->device == nullptr) {
        return nullptr;
    }
    // The table is the peer's: what it says is bounded by what was opened.
    const typename Host::Region& region = *known->region;
    const bool is_inside = hit.offset < region.length && length <= region.length - hit.offset;
    return is_inside ? region.device.get() : nullptr;
}

/// Does not try again what a device's library has failed to do.
template <class Lock, class Host>
void RdEngine<Lock, Host>::refuse_region(Peer& peer, std::uint32_t own) noexcept {
    peer.book.answered(peer.book.enter(own), own, nullptr);
}

/// Copies between a peer's memory, from `offset` on, and buffers of this process.
/// Returns: ENOTSUP when they are not all in memory of that device, or of the host; EIO.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_by_library(PeerDeviceMemory& device, std::uint64_t offset,
                                                   util::IovCursor buffers, const BufferUse* use,
                                                   std::uint64_t bytes, bool is_write) noexcept {
    for (std::uint64_t done = 0; done < bytes;) {
        const iovec here = buffers.span();
        const std::uint64_t part = std::min<std::uint64_t>(here.iov_len, bytes - done);
        const util::Result<DevicePlace> place =
            use != nullptr
                ? use->device_place(device.kind(), here.iov_base)
                : DevicePlace{.address = reinterpret_cast<std::uintptr_t>(here.iov_base)};
        if (!place.is_ok()) {
            return ENOTSUP;
        }
        const Status copied = is_write ? device.write(offset + done, place.value(), part)
                                       : device.read(offset + done, place.value(), part);
        if (!copied.is_ok()) {
            return copied;
        }
        buffers.skip(part);
        done += part;
    }
    return util::kOk;
}

/// Copies of the current segment of an access what is next, and uses the budget up. `offset`: of
/// the segment's first byte in the peer's memory.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::copy_with_device(PeerDeviceMemory& device, RdTxOp& op,
                                                    std::uint64_t offset,
                                                    std::uint64_t& budget) noexcept {
    budget = 0;
    const BufferUse* const use =
        has(op.flags, RdFlags::kHasUse) && !op.has_copies() ? op.use : nullptr;
    const bool is_write = op.kind == RdTxOp::Kind::kWrite;
    if (use != nullptr && !is_write && op.remote_count != 1) {
        return ENOTSUP;  // other segments may come by way of the copy, which is written back whole
    }
    const std::uint64_t left = op.remote[op.segment].len - op.segment_done;
    const std::uint64_t length = std::min(left, use != nullptr ? kDeviceChunk : kDeviceHostChunk);
    const Status copied = copy_by_library(device, offset + op.segment_done,
                                          util::IovCursor(op.iov.data(), op.iov_count, op.done),
                                          use, length, is_write);
    if (!copied.is_ok()) {
        return copied;
    }
    op.done += length;
    op.segment_done += length;
    if (length == left) {
        ++op.segment;
        op.segment_done = 0;
        op.is_placed = use != nullptr && !is_write;
    }
    return util::kOk;
}

/// Where a message lies in its sender's memory, as the sender's key table has it.
template <class Lock, class Host>
KeyHit RdEngine<Lock, Host>::find_source(const RdInbound& inbound) const noexcept {
    const auto& peer = static_cast<const Peer&>(*inbound.peer);
    return peer.keys_view.lookup({.key = static_cast<std::uint32_t>(inbound.sender_key),
                                  .pd = peer.path.key_domain(),
                                  .addr = inbound.sender_address,
                                  .length = inbound.total,
                                  .access = Access::kNone});
}

/// Whether the memory of a message is open here, perhaps by what came with it.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::has_opened(const RdInbound& inbound) noexcept {
    auto& peer = static_cast<Peer&>(*inbound.peer);
    const auto own = static_cast<std::uint32_t>(inbound.sender_key);
    if (inbound.has_opening) {
        RegionEntry& entry = peer.book.enter(own);
        if (entry.state == RegionEntry::State::kUnknown ||
            entry.state == RegionEntry::State::kAsked) {
            RdOpening by;
            std::memcpy(&by, inbound.inline_storage.data(), sizeof by);
            open_region(peer, own, entry, by);
        }
    }
    return count_use(peer, own, inbound.end);
}

/// Begins to take a message from its sender's device. Returns: false where that is not open: the
/// message is asked for then.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::take_device(RdInbound& inbound) noexcept {
    auto& peer = static_cast<Peer&>(*inbound.peer);
    // Nothing is remembered of a key that is not in the peer's table.
    if (!keys_.has_p2p || !peer.has_keys_view || !find_source(inbound).is_ok() ||
        !has_opened(inbound)) {
        return false;
    }
    inbound.method = RdMethod::kDirect;
    ++pulls_;
    copy_directly(inbound);
    return true;
}

/// Copies the next bytes of the message. Returns: whether nothing is left to do for it here.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::copy_from_device(RdInbound& inbound, std::uint64_t& budget) noexcept {
    budget = 0;
    const bool is_between = has(inbound.entry->flags, RdFlags::kHasUse);
    const std::uint64_t part =
        std::min(inbound.end - inbound.received, is_between ? kDeviceChunk : kDeviceHostChunk);
    const Status copied = read_from_device(inbound, part);
    if (copied.is_ok()) {
        return inbound.received == inbound.end;
    }
    if (copied != Status(ENOTSUP)) {
        refuse_region(static_cast<Peer&>(*inbound.peer),
                      static_cast<std::uint32_t>(inbound.sender_key));
    }
    // All of it comes through the rings: what has been copied is on the device alone.
    inbound.received = 0;
    inbound.lacks_share = true;
    inbound.state = RdInbound::State::kPulling;
    return true;
}

/// Takes the next bytes of a message, at most so many. Returns: as copy_by_library(), and the error
/// of an exporter that refuses the CPU.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::read_from_device(RdInbound& inbound,
                                                    std::uint64_t bytes) noexcept {
    auto& peer = static_cast<Peer&>(*inbound.peer);
    const auto own = static_cast<std::uint32_t>(inbound.sender_key);
    station_.mark_use(peer.path.incarnation(), own);
    const KeyHit hit = find_source(inbound);
    Status copied = ENOTSUP;
    if (hit.is_ok() && !refuses_copies(peer)) {
        const std::byte* const mapped = mapped_target(peer, own, hit, inbound.total);
        PeerDeviceMemory* const device = opened_target(peer, own, hit, inbound.total);
        if (mapped != nullptr) {
            copied = read_mapped(inbound, *peer.book.find(own)->region, mapped, bytes);
        } else if (device != nullptr) {
            copied = read_by_library(inbound, *device, hit, bytes);
        }
    }
    station_.unmark_use();
    return copied;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::read_by_library(RdInbound& inbound, PeerDeviceMemory& device,
                                                   const KeyHit& hit,
                                                   std::uint64_t bytes) noexcept {
    const BufferUse* const use =
        has(inbound.entry->flags, RdFlags::kHasUse) ? inbound.entry->use : nullptr;
    const Status copied =
        copy_by_library(device, hit.offset + inbound.received, rest_of(inbound), use, bytes, false);
    if (copied.is_ok()) {
        inbound.received += bytes;
        inbound.is_placed = inbound.received == inbound.end;
    }
    return copied;
}

/// @param whole  Where the message begins.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::read_mapped(RdInbound& inbound,
                                               const typename Host::Region& region,
                                               const std::byte* whole,
                                               std::uint64_t bytes) noexcept {
    const typename Host::Region::Access access(&region, false);
    if (access.status().is_ok()) {
        place(inbound, whole + inbound.received,
              std::min<std::uint64_t>(bytes, tuning_.direct_chunk));
    }
    return access.status();
}

/// The sender cannot deliver what it was asked for. Returns: false when it was not asked.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::cannot_arrive(RdInbound& inbound) noexcept {
    if (inbound.state != RdInbound::State::kPulling) {
        return false;
    }
    inbound.status = WcStatus::kRemOpErr;
    finish_pull(inbound);
    return true;
}

}  // namespace rvt::core
