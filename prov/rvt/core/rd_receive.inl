// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages in: what becomes of each that arrives. Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"
#include "util/long_copy.h"

namespace rvt::core {

// ---- arrivals ----

/// Dispatches one message of a peer. Returns: false for what no honest peer sends.
template <class Lock, class Host>
[[gnu::noinline]] bool RdEngine<Lock, Host>::handle(Peer& peer, const Arrival& arrival) noexcept {
    if (arrival.op() == RdOp::kEager) [[likely]] {
        return on_eager(peer, arrival);
    }
    if (arrival.op() == RdOp::kShare || arrival.length() >= kBulk) {
        station_.note_long_work();
    }
    switch (arrival.op()) {
        case RdOp::kEagerFirst: return on_eager_first(peer, arrival);
        case RdOp::kEagerMore: return on_eager_more(peer, arrival);
        case RdOp::kRendezvous: return on_rendezvous(peer, arrival);
        case RdOp::kPull: return on_pull(peer, arrival);
        case RdOp::kPullData: return on_pull_data(peer, arrival);
        case RdOp::kPullDone: return on_pull_done(peer, arrival);
        case RdOp::kFinish:
        case RdOp::kAck: return on_finish(peer, arrival);
        case RdOp::kWrite: return on_write(peer, arrival);
        case RdOp::kWriteLine: return on_write_line(peer, arrival);
        case RdOp::kWriteMore: return on_write_more(peer, arrival);
        case RdOp::kRead: return on_read(peer, arrival);
        case RdOp::kReadData: return on_read_data(peer, arrival, false);
        case RdOp::kReadLine: return on_read_data(peer, arrival, true);
        case RdOp::kAtomic: return on_atomic(peer, arrival, false);
        case RdOp::kAtomicInline: return on_atomic(peer, arrival, true);
        case RdOp::kAtomicResult: return on_atomic_result(peer, arrival, false);
        case RdOp::kAtomicAnswer: return on_atomic_result(peer, arrival, true);
        case RdOp::kAccessDone: return on_access_done(peer, arrival);
        case RdOp::kRmaEvent: return on_rma_event(peer, arrival);
        case RdOp::kShare: return on_share(peer, arrival);
        case RdOp::kAskNicKey: return on_ask_nic_key(peer, arrival);
        case RdOp::kNicKey: return on_nic_key(peer, arrival);
        case RdOp::kKeyEnds: return on_key_ends(peer, arrival);
        case RdOp::kRdmaDone: return on_rdma_done(peer, arrival);
        case RdOp::kGrow: return true;
        case RdOp::kEager:
        case RdOp::kSegment:
        case RdOp::kTaken:
        case RdOp::kHold:
        case RdOp::kLeave:
        case RdOp::kMayLeave:
        case RdOp::kStay:
        case RdOp::kInvalid:
        case RdOp::kCount: break;
    }
    return false;
}

/// What a long queue of receives touches lies outside the cache: asks for what the messages to come
/// will need.
template <class Lock, class Host>
[[gnu::noinline]] void RdEngine<Lock, Host>::look_ahead(Peer& peer) noexcept {
    if (peer.path.has_more()) {
        peer.path.look_ahead(
            [&](std::uint64_t tag) { posted_tagged_.prefetch(tag, peer.id); },
            [&](std::uint64_t tag) { posted_tagged_.prefetch_receive(tag, peer.id); });
    }
}

/// The posted receive that takes this message, out of its queue unless it takes further ones.
template <class Lock, class Host>
RVT_ALWAYS_INLINE RdRxEntry* RdEngine<Lock, Host>::match_posted(std::uint8_t wire,
                                                                std::uint64_t tag,
                                                                Peer& peer) noexcept {
    if ((wire & wire::kTagged) != 0) {
        if (posted_tagged_.is_long()) [[unlikely]] {
            look_ahead(peer);
        }
        return posted_tagged_.match(tag, peer.id);
    }
    if (multi_receives_ == 0) [[likely]] {
        return posted_messages_.match(0, peer.id);
    }
    RdRxEntry* const entry = posted_messages_.peek_match(0, peer.id);
    if (entry != nullptr && !has(entry->flags, RdFlags::kMultiRecv)) {
        posted_messages_.remove(entry);
    }
    return entry;
}

/// What the completion of a receive says of a message with these flags. By a table: the choices
/// would be as many instructions as the rest of a completion.
template <class Lock, class Host>
RVT_ALWAYS_INLINE std::uint64_t RdEngine<Lock, Host>::recv_wc_flags(std::uint8_t wire) noexcept {
    static_assert(wire::kTagged == 1 && wire::kHasData == 2);
    constexpr static std::array<std::uint64_t, 4> kFlags = {kWcRecv | kWcMsg, kWcRecv | kWcTagged,
                                                            kWcRecv | kWcMsg | kWcRemoteCqData,
                                                            kWcRecv | kWcTagged | kWcRemoteCqData};
    return kFlags[wire & 3u];
}

/// Whether a message fits into the one buffer of a receive that takes no other.
template <class Lock, class Host>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::is_simple(const RdRxEntry& entry,
                                                       std::size_t len) noexcept {
    return entry.iov_count == 1 && len <= entry.iov[0].iov_len &&
           !has(entry.flags, RdFlags::kMultiRecv | RdFlags::kHasUse);
}

/// Reports a message that arrived at once and is where what is left of its receive's buffer begins.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::report_whole(const RdPeerBase& peer, std::uint8_t wire,
                                                          std::uint64_t length, std::uint64_t data,
                                                          std::uint64_t tag,
                                                          const RdRxEntry& entry) noexcept {
    if (has(entry.flags, RdFlags::kCompletion)) [[likely]] {
        rx_cq_->emplace([&](Cqe& cqe) {
            cqe = {.op_context = entry.context,
                   .flags = recv_wc_flags(wire),
                   .len = length,
                   .buf = entry.iov[0].iov_base,
                   .data = (wire & wire::kHasData) != 0 ? data : 0,
                   .tag = tag,
                   .source = peer.fi_addr};
        });
    }
    if (recv_counter_ != nullptr) {
        recv_counter_->add(1);
    }
}

/// The same of one in a simple receive's buffer.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::complete_simple(const RdPeerBase& peer,
                                                             std::uint8_t wire,
                                                             std::uint64_t length,
                                                             std::uint64_t data, std::uint64_t tag,
                                                             RdRxEntry& entry) noexcept {
    report_whole(peer, wire, length, data, tag, entry);
    entries_.give_back(&entry);
}

/// Whether a message that has come whole takes a part of a multi-receive buffer and nothing else:
/// others will follow it there, and none is on its way into the buffer.
template <class Lock, class Host>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::is_simple_part(const RdRxEntry& entry,
                                                            std::size_t len) const noexcept {
    return has(entry.flags, RdFlags::kMultiRecv) && !has(entry.flags, RdFlags::kHasUse) &&
           entry.users == 0 && len <= entry.iov[0].iov_len &&
           !is_used_up(entry.iov[0].iov_len - len);
}

/// Reports a message that arrived at once and is in the part of the buffer that it takes.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::complete_part(const RdPeerBase& peer,
                                                           std::uint8_t wire, std::uint64_t length,
                                                           std::uint64_t data, std::uint64_t tag,
                                                           RdRxEntry& entry) noexcept {
    report_whole(peer, wire, length, data, tag, entry);
    entry.iov[0] = {static_cast<std::byte*>(entry.iov[0].iov_base) + length,
                    entry.iov[0].iov_len - length};
}

/// A message of kEager, in one line or several, or from a wire: the straight path of a receive.
/// @param message  An Arrival, or what has of it as much as a small message needs.
template <class Lock, class Host>
template <class Message>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::on_eager(Peer& peer, const Message& message) noexcept {
    RdRxEntry* const entry = match_posted(message.flags(), message.tag(), peer);
    if (entry == nullptr || !is_simple(*entry, message.length())) [[unlikely]] {
        return on_eager_slow(peer, message, entry);
    }
    message.copy_payload(entry->iov[0].iov_base, message.length());
    complete_simple(peer, message.flags(), message.length(), message.data(), message.tag(), *entry);
    return true;
}

template <class Lock, class Host>
template <class Message>
RVT_ALWAYS_INLINE RdMessage RdEngine<Lock, Host>::message_of(const Message& message) noexcept {
    return {.op = RdOp::kEager,
            .flags = message.flags(),
            .length = message.length(),
            .tag = message.tag(),
            .data = message.data(),
            .payload = message.payload(),
            .payload_bytes = message.length(),
            .run = nullptr};
}

/// A message of kEager that nobody waits for, or whose receive is not one simple buffer.
template <class Lock, class Host>
template <class Message>
[[gnu::noinline]] bool RdEngine<Lock, Host>::on_eager_slow(Peer& peer, const Message& message,
                                                           RdRxEntry* entry) noexcept {
    if (entry != nullptr && is_simple_part(*entry, message.length())) [[likely]] {
        message.copy_payload(entry->iov[0].iov_base, message.length());
        complete_part(peer, message.flags(), message.length(), message.data(), message.tag(),
                      *entry);
        return true;
    }
    RdInbound* const inbound = take_inbound(peer, message, message.length(), entry);
    if (inbound == nullptr) {
        return false;
    }
    static_assert(Path::kMaxLinePayload <= RdInbound::kInlineBytes);
    message.copy_payload(inbound->inline_storage.data(), message.length());
    if (entry == nullptr) {
        inbound->state = RdInbound::State::kSmall;
        return keep_unexpected(peer, *inbound);
    }
    inbound->state = RdInbound::State::kComplete;
    inbound->set_rest();
    attach(*inbound, *entry);
    place(*inbound, inbound->inline_storage.data(), message.length());
    finish_inbound(*inbound);
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_eager_first(Peer& peer, const Arrival& arrival) noexcept {
    RdHeader header;
    std::memcpy(&header, arrival.payload(), sizeof header);
    if (peer.stream != nullptr || peer.is_head_due || header.total > kMaxEagerTotal ||
        arrival.length() > header.total) {
        return false;
    }
    RdRxEntry* const entry = match_posted(arrival.flags(), arrival.tag(), peer);
    const bool is_whole =
        arrival.length() == header.total && (arrival.flags() & wire::kAnyAck) == 0;
    if (is_whole && entry != nullptr && is_simple(*entry, arrival.length())) [[likely]] {
        util::copy_bytes(entry->iov[0].iov_base, arrival.run(), arrival.length());
        complete_simple(peer, arrival.flags(), arrival.length(), arrival.data(), arrival.tag(),
                        *entry);
        return true;
    }
    if (is_whole && entry != nullptr && is_simple_part(*entry, arrival.length())) {
        util::copy_bytes(entry->iov[0].iov_base, arrival.run(), arrival.length());
        complete_part(peer, arrival.flags(), arrival.length(), arrival.data(), arrival.tag(),
                      *entry);
        return true;
    }
    RdInbound* const inbound = take_inbound(peer, arrival, header.total, entry);
    if (inbound == nullptr) {
        return false;
    }
    inbound->set_rest();
    inbound->sender_operation = header.operation;
    inbound->state = RdInbound::State::kStreaming;
    if (entry != nullptr) {
        attach(*inbound, *entry);
    } else {
        if (header.total > RdInbound::kInlineBytes) {
            inbound->storage = spare_blocks_.take(header.total);
            if (!inbound->storage) {
                give_back(*inbound);
                lacks_memory_ = true;
                return false;
            }
        }
        if (!keep_unexpected(peer, *inbound)) {
            return false;
        }
    }
    place(*inbound, arrival.run(), arrival.length());
    if (inbound->received == inbound->total) {
        finish_inbound(*inbound);
    } else {
        peer.stream = inbound;
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_eager_more(Peer& peer, const Arrival& arrival) noexcept {
    if (peer.is_head_due) {
        return on_head(peer, arrival);
    }
    RdInbound* const inbound = peer.stream;
    if (inbound == nullptr || arrival.length() > inbound->total - inbound->received) {
        return false;
    }
    place(*inbound, arrival.run(), arrival.length());
    if (inbound->received == inbound->total) {
        peer.stream = nullptr;
        finish_inbound(*inbound);
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_rendezvous(Peer& peer, const Arrival& arrival) noexcept {
    RdRendezvous payload{};
    const bool is_contiguous = (arrival.flags() & wire::kContiguous) != 0;
    const bool is_readable = (arrival.flags() & wire::kReadable) != 0;
    const bool has_opening =
        is_readable && !peer.path.is_remote() && arrival.length() == sizeof payload;
    if (!has_opening && arrival.length() != payload.bytes(is_readable)) {
        return false;
    }
    arrival.copy_payload(&payload, arrival.length());
    if (is_readable && (!is_contiguous || payload.readable.key > 0xffffffffu)) {
        return false;
    }
    const bool has_head = (arrival.flags() & wire::kHead) != 0;
    if (peer.is_head_due || (has_head && (is_readable || peer.stream != nullptr))) {
        return false;
    }
    const RdHeader& header = payload.header;
    RdRxEntry* const entry = match_posted(arrival.flags(), arrival.tag(), peer);
    RdInbound* const inbound = take_inbound(peer, arrival, header.total, entry);
    if (inbound == nullptr) {
        return false;
    }
    inbound->set_rest();
    inbound->sender_operation = header.operation;
    inbound->sender_address = is_contiguous ? header.address : 0;
    inbound->sender_key = payload.readable.key;
    inbound->is_readable = is_readable;
    if (has_opening) {
        inbound->has_opening = true;
        std::memcpy(inbound->inline_storage.data(), &payload.opening, sizeof payload.opening);
    }
    inbound->state = RdInbound::State::kRendezvous;
    if (has_head) {
        peer.is_head_due = true;
        peer.head_for = util::Pool<RdInbound>::name_of(*inbound);
    }
    if (entry != nullptr) {
        attach(*inbound, *entry);
        start_pull(*inbound);
        return true;
    }
    return keep_unexpected(peer, *inbound);
}

/// The first bytes of the message that was announced before. Who has no receive for it yet, or
/// fetches it another way, drops them.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_head(Peer& peer, const Arrival& arrival) noexcept {
    if (arrival.length() != wire::kHeadBytes) {
        return false;
    }
    peer.is_head_due = false;
    RdInbound* const inbound = inbound_.find(std::exchange(peer.head_for, 0));
    if (inbound != nullptr && inbound->state == RdInbound::State::kPulling) {
        place(*inbound, arrival.run(), arrival.length());
    }
    return true;
}

// ---- inbound messages ----

/// A record for a message, set up to inline_storage. Returns: nullptr when there is none left;
/// `entry`, the receive that has been taken for the message, if any, then ends with kNoMemory.
template <class Lock, class Host>
template <class Message>
RVT_ALWAYS_INLINE RdInbound* RdEngine<Lock, Host>::take_inbound(Peer& peer, const Message& message,
                                                                std::uint64_t total,
                                                                RdRxEntry* entry) noexcept {
    RdInbound* const inbound = inbound_.take();
    if (inbound == nullptr) [[unlikely]] {
        if (entry != nullptr && !has(entry->flags, RdFlags::kMultiRecv)) {
            end_receive(*entry, (message.flags() & wire::kTagged) != 0, WcStatus::kNoMemory);
        }
        lacks_memory_ = true;
        return nullptr;
    }
    ++peer.records;
    inbound->peer = &peer;
    inbound->tag = message.tag();
    inbound->data = message.data();
    inbound->total = total;
    inbound->wire_flags = message.flags();
    inbound->waits_for_share = inbound->lacks_share = inbound->is_placed = false;
    return inbound;
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::give_back(RdInbound& inbound) noexcept {
    --inbound.peer->records;
    inbound_.give_back(&inbound);
}

/// Files a message that no posted receive takes.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::keep_unexpected(Peer& peer, RdInbound& inbound) noexcept {
    const Status queued = inbound.is_tagged()
                              ? unexpected_tagged_.push(inbound.tag, peer.id, &inbound)
                              : unexpected_messages_.push(0, peer.id, &inbound);
    if (!queued.is_ok()) {
        inbound.storage.reset();
        give_back(inbound);
        lacks_memory_ = true;
        return false;
    }
    note_unexpected(inbound.kept_bytes());
    return true;
}

/// Keeps count of what waits unmatched: so much more, or less.
template <class Lock, class Host>
void RdEngine<Lock, Host>::note_unexpected(std::int64_t bytes) noexcept {
    unexpected_room_ -= bytes;
    const bool is_over = unexpected_room_ < 0;
    if (is_over != is_holding_) [[unlikely]] {
        const std::int64_t most = most_unexpected(attr_);
        if (is_over || unexpected_room_ >= most - most / 2) {
            hold_peers(is_over);
        }
    }
}

/// Tells all peers to hold back, or to go on.
template <class Lock, class Host>
[[gnu::cold]] void RdEngine<Lock, Host>::hold_peers(bool hold) noexcept {
    is_holding_ = hold;
    for (const Polled& polled : polled_) {
        polled.peer->path.hold_eager(hold);
    }
    for (Peer* const peer : remote_) {
        peer->path.hold_eager(hold);
    }
}

/// Joins a message and its receive. For a multi-receive buffer this takes the message's part of it.
template <class Lock, class Host>
void RdEngine<Lock, Host>::attach(RdInbound& inbound, RdRxEntry& entry) noexcept {
    inbound.entry = &entry;
    inbound.buffer_capacity = entry.capacity();
    inbound.place = entry.iov[0];
    if (has(entry.flags, RdFlags::kMultiRecv)) {
        const std::size_t used = std::min<std::size_t>(inbound.total, entry.iov[0].iov_len);
        inbound.place.iov_len = inbound.buffer_capacity = used;
        entry.iov[0] = {static_cast<std::byte*>(entry.iov[0].iov_base) + used,
                        entry.iov[0].iov_len - used};
        ++entry.users;
        if (entry.is_queued && is_used_up(entry.iov[0].iov_len)) {
            posted_messages_.remove(&entry);
            entry.is_queued = false;
            --multi_receives_;
        }
    } else {
        entry.is_queued = false;
    }
}

/// A receive meets a message that came before it.
template <class Lock, class Host>
void RdEngine<Lock, Host>::receive_unexpected(RdInbound& inbound, RdRxEntry& entry) noexcept {
    note_unexpected(-inbound.kept_bytes());
    if (inbound.state == RdInbound::State::kSmall) [[likely]] {
        receive_small(inbound, entry);
        return;
    }
    attach(inbound, entry);
    if (inbound.state == RdInbound::State::kRendezvous) {
        start_pull(inbound);
        return;
    }
    const std::uint64_t arrived = std::exchange(inbound.received, 0);
    const util::SpareBlocks::Block storage = std::move(inbound.storage);
    place(inbound, storage ? storage.get() : inbound.inline_storage.data(), arrived);
    if (inbound.state == RdInbound::State::kComplete) {
        finish_inbound(inbound);
    }
}

/// The same for a message that came in lines.
template <class Lock, class Host>
void RdEngine<Lock, Host>::receive_small(RdInbound& inbound, RdRxEntry& entry) noexcept {
    if (is_simple(entry, inbound.total) && (inbound.wire_flags & wire::kAnyAck) == 0) [[likely]] {
        util::copy_mostly_small(entry.iov[0].iov_base, inbound.inline_storage.data(),
                                inbound.total);
        complete_simple(*inbound.peer, inbound.wire_flags, inbound.total, inbound.data, inbound.tag,
                        entry);
        give_back(inbound);
        return;
    }
    inbound.state = RdInbound::State::kComplete;
    inbound.set_rest();
    attach(inbound, entry);
    place(inbound, inbound.inline_storage.data(), inbound.total);
    finish_inbound(inbound);
}

/// Where the next bytes of a message belong. Precondition: a receive has been found for it.
template <class Lock, class Host>
util::IovCursor RdEngine<Lock, Host>::rest_of(const RdInbound& inbound) noexcept {
    const bool is_multi = has(inbound.entry->flags, RdFlags::kMultiRecv);
    return is_multi ? util::IovCursor(&inbound.place, 1, inbound.received)
                    : util::IovCursor(inbound.entry->iov.data(), inbound.entry->iov_count,
                                      inbound.received);
}

/// Puts the next bytes of a message where they belong. What the receive has no room for is dropped.
template <class Lock, class Host>
void RdEngine<Lock, Host>::place(RdInbound& inbound, const std::byte* from,
                                 std::size_t count) noexcept {
    if (inbound.entry == nullptr) {
        if (inbound.state != RdInbound::State::kDiscarding) {
            util::copy_bytes(inbound.bytes() + inbound.received, from, count);
        }
    } else {
        util::IovCursor to = rest_of(inbound);
        to.scatter(from, count);
        // Of a long message the buffer is in no cache. What comes next goes where this ends; the
        // first locked operation behind it waits until all of it is written.
        to.expect_writes(std::min(count, kMostExpected));
    }
    inbound.received += count;
    if (inbound.entry != nullptr && has(inbound.entry->flags, RdFlags::kHasUse)) [[unlikely]] {
        note_arrival(inbound);
    }
}

/// Tells the sender of an eager message, if it waits for that, that the message has been received.
/// Once, and not before all of it has left: a message in parts knows no answer earlier.
template <class Lock, class Host>
void RdEngine<Lock, Host>::acknowledge(const RdInbound& inbound) noexcept {
    if ((inbound.wire_flags & wire::kAnyAck) != 0) {
        const bool is_kept = inbound.entry != nullptr;
        const WcStatus status = is_kept ? delivered(inbound) : WcStatus::kSuccess;
        const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = 0};
        reply(static_cast<Peer&>(*inbound.peer), RdOp::kAck, 0, inbound.sender_operation, &outcome,
              sizeof outcome);
    }
}

/// All of a message has arrived.
template <class Lock, class Host>
void RdEngine<Lock, Host>::finish_inbound(RdInbound& inbound) noexcept {
    if (inbound.state == RdInbound::State::kDiscarding) {
        acknowledge(inbound);
        give_back(inbound);
        return;
    }
    if (inbound.entry == nullptr) {
        inbound.state = RdInbound::State::kComplete;
        return;
    }
    acknowledge(inbound);
    complete_rx(inbound, *inbound.entry);
    release_entry(*inbound.entry);
    give_back(inbound);
}

/// Has what arrived taken to memory of a device. May be said twice.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::fill_use(const RdInbound& inbound,
                                            const RdRxEntry& entry) noexcept {
    if (inbound.is_placed) {
        return util::kOk;
    }
    const bool is_multi = has(entry.flags, RdFlags::kMultiRecv);
    const std::uint64_t begin = is_multi ? entry.use->place_of(inbound.place.iov_base) : 0;
    return entry.use->filled(begin, begin + std::min(inbound.total, inbound.buffer_capacity));
}

/// What a sender learns that waits until the message is in its receiver's memory.
template <class Lock, class Host>
WcStatus RdEngine<Lock, Host>::delivered(const RdInbound& inbound) noexcept {
    const bool is_lost = has(inbound.entry->flags, RdFlags::kHasUse) &&
                         inbound.status == WcStatus::kSuccess &&
                         !fill_use(inbound, *inbound.entry).is_ok();
    return is_lost ? WcStatus::kRemOpErr : WcStatus::kSuccess;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::complete_rx(const RdInbound& inbound, RdRxEntry& entry) noexcept {
    const bool is_multi = has(entry.flags, RdFlags::kMultiRecv);
    const bool is_last_use = is_multi && !entry.is_queued && entry.users == 1;
    const bool is_cut = inbound.total > inbound.buffer_capacity;
    WcStatus status =
        is_cut && inbound.status == WcStatus::kSuccess ? WcStatus::kTruncated : inbound.status;
    void* named = inbound.place.iov_base;
    if (has(entry.flags, RdFlags::kHasUse)) [[unlikely]] {
        if (inbound.status == WcStatus::kSuccess && !fill_use(inbound, entry).is_ok()) {
            status = WcStatus::kGeneralErr;
        }
        named = entry.use->name_of(named);
        !is_multi || is_last_use ? entry.use->release() : entry.use->part_done();
    }
    const bool is_ok = status == WcStatus::kSuccess;
    if (rx_cq_ != nullptr && (!is_ok || has(entry.flags, RdFlags::kCompletion) || is_last_use)) {
        rx_cq_->emplace(
            [&](Cqe& cqe) { fill_rx(cqe, inbound, entry, named, status, is_last_use); });
    }
    if (recv_counter_ != nullptr) {
        is_ok ? recv_counter_->add(1) : recv_counter_->add_error(1);
    }
}

template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::fill_rx(Cqe& cqe, const RdInbound& inbound,
                                                     const RdRxEntry& entry, void* place,
                                                     WcStatus status, bool is_last_use) noexcept {
    const bool has_data = (inbound.wire_flags & wire::kHasData) != 0;
    const std::uint64_t len = std::min(inbound.total, inbound.buffer_capacity);
    const std::uint64_t cut = status == WcStatus::kTruncated ? inbound.total - len : 0;
    cqe = {.op_context = entry.context,
           .flags = recv_wc_flags(inbound.wire_flags) | (is_last_use ? kWcMultiRecv : 0),
           .len = len,
           .buf = place,
           .data = has_data ? inbound.data : 0,
           .tag = inbound.tag,
           .source = inbound.peer->fi_addr,
           .status = status,
           .extra = static_cast<std::uint32_t>(std::min<std::uint64_t>(cut, UINT32_MAX))};
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::release_entry(RdRxEntry& entry) noexcept {
    const bool is_shared = has(entry.flags, RdFlags::kMultiRecv);
    if (!is_shared || (--entry.users == 0 && !entry.is_queued)) {
        entries_.give_back(&entry);
    }
}

/// Throws a message away that is in no queue any more. Its sender completes as if it had been
/// received.
template <class Lock, class Host>
void RdEngine<Lock, Host>::drop_inbound(RdInbound& inbound) noexcept {
    note_unexpected(-inbound.kept_bytes());
    inbound.storage.reset();
    switch (inbound.state) {
        case RdInbound::State::kStreaming:
            inbound.state = RdInbound::State::kDiscarding;
            return;  // finish_inbound() follows
        case RdInbound::State::kRendezvous: {
            const RdOutcome outcome{.status = static_cast<std::uint32_t>(WcStatus::kSuccess),
                                    .key = 0};
            reply(static_cast<Peer&>(*inbound.peer), RdOp::kFinish, 0, inbound.sender_operation,
                  &outcome, sizeof outcome);
            break;
        }
        case RdInbound::State::kSmall: break;  // came whole: no honest sender waits
        default: acknowledge(inbound);
    }
    give_back(inbound);
}

}  // namespace rvt::core
