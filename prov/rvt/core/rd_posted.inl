// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Receives that are posted, and questions about what has arrived. Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

// ---- receives ----

template <class Lock, class Host>
template <RdFlags kFixed>
RVT_ALWAYS_INLINE util::Status RdEngine<Lock, Host>::recv_one(void* buf, std::size_t len,
                                                              std::uint64_t source,
                                                              std::uint64_t tag,
                                                              std::uint64_t ignore, void* context,
                                                              RdFlags flags) noexcept {
    // Calls nothing, so that no register is saved and restored for what happens rarely.
    if (lock_.try_lock()) [[likely]] {
        const bool is_posted =
            post_simple<kFixed>(buf, len, source, tag, ignore, context, flags | kFixed);
        lock_.unlock();
        if (is_posted) [[likely]] {
            return util::kOk;
        }
    }
    return recv_any<kFixed>(buf, len, source, tag, ignore, context, flags);
}

/// A record set up for a match queue, of a receive of one buffer. Returns: nullptr for one that
/// takes more than that, or where memory must be found first.
template <class Lock, class Host>
RVT_ALWAYS_INLINE RdRxEntry* RdEngine<Lock, Host>::take_simple(void* buf, std::size_t len,
                                                               std::uint64_t source,
                                                               std::uint64_t tag, void* context,
                                                               RdFlags flags) noexcept {
    const Peer* const from = source != kAnySource ? peer_of(source) : nullptr;
    if ((source != kAnySource && from == nullptr) || has(flags, kSlowRecv) ||
        (buf == nullptr && len != 0) || !entries_.has_ready()) [[unlikely]] {
        return nullptr;
    }
    RdRxEntry* const entry = entries_.take_ready();
    entry->context = context;
    entry->flags = flags;
    entry->source = from != nullptr ? from->id : kAnySourceId;
    entry->tag = tag;
    entry->iov_count = 1;
    entry->is_queued = true;
    entry->iov[0] = {buf, len};
    return entry;
}

/// Posts a receive of one buffer that no message waits for. Returns: false where that is not so, or
/// where memory must be found first; nothing has happened then.
template <class Lock, class Host>
template <RdFlags kFixed>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::post_simple(void* buf, std::size_t len,
                                                         std::uint64_t source, std::uint64_t tag,
                                                         std::uint64_t ignore, void* context,
                                                         RdFlags flags) noexcept {
    constexpr bool kTagged = has(kFixed, RdFlags::kTagged);
    if (has_unexpected<kTagged>()) [[unlikely]] {
        return false;
    }
    RdRxEntry* const entry = take_simple(buf, len, source, tag, context, flags);
    if (entry == nullptr) [[unlikely]] {
        return false;
    }
    const bool is_posted = kTagged ? posted_tagged_.push_short(tag, ignore, entry->source, entry)
                                   : posted_messages_.push_short(0, 0, entry->source, entry);
    if (!is_posted) [[unlikely]] {
        entries_.give_back(entry);
    }
    return is_posted;
}

/// A receive of one buffer where post_simple() did not do: messages wait, a queue is long, or the
/// receive is not simple.
template <class Lock, class Host>
template <RdFlags kFixed>
[[gnu::noinline]] util::Status RdEngine<Lock, Host>::recv_any(void* buf, std::size_t len,
                                                              std::uint64_t source,
                                                              std::uint64_t tag,
                                                              std::uint64_t ignore, void* context,
                                                              RdFlags flags) noexcept {
    constexpr bool kTagged = has(kFixed, RdFlags::kTagged);
    util::Guard guard(lock_);
    if (RdRxEntry* const entry = take_simple(buf, len, source, tag, context, flags | kFixed)) {
        if (kTagged && matches_late()) [[unlikely]] {
            return match_later(*entry, ignore);
        }
        RdInbound* const inbound = kTagged ? unexpected_tagged_.match(tag, ignore, entry->source)
                                           : unexpected_messages_.match(0, ~0ull, entry->source);
        if (inbound == nullptr) {
            return queue_receive(*entry, ignore);
        }
        receive_unexpected(*inbound, *entry);
        return util::kOk;
    }
    const iovec iov{buf, len};
    return post_receive({.iov = &iov,
                         .iov_count = 1,
                         .source = source,
                         .tag = tag,
                         .ignore = ignore,
                         .context = context,
                         .flags = flags | kFixed});
}

/// Files a receive that no message waits for.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::queue_receive(RdRxEntry& entry, std::uint64_t ignore) noexcept {
    const bool is_tagged = has(entry.flags, RdFlags::kTagged);
    const Status queued = is_tagged ? posted_tagged_.push(entry.tag, ignore, entry.source, &entry)
                                    : posted_messages_.push(0, 0, entry.source, &entry);
    if (!queued.is_ok()) {
        entries_.give_back(&entry);
        return EAGAIN;
    }
    return util::kOk;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::recv(const RdRecv& request) noexcept {
    util::Guard guard(lock_);
    if (has(request.flags, RdFlags::kPeek)) {
        return ask(request);
    }
    if (has(request.flags, RdFlags::kClaim | RdFlags::kDiscard)) {
        return receive_claimed(request);
    }
    return post_receive(request);
}

/// The id by which the match queues know a source. Returns: EINVAL for a number the address vector
/// does not have.
template <class Lock, class Host>
util::Result<std::uint32_t> RdEngine<Lock, Host>::source_id(std::uint64_t source) noexcept {
    if (source == kAnySource) {
        return kAnySourceId;
    }
    const Peer* const peer = find_peer(source);
    if (peer == nullptr) {
        return EINVAL;
    }
    return peer->id;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::fill_entry(RdRxEntry& entry, const RdRecv& request) noexcept {
    const util::Result<std::uint32_t> source = source_id(request.source);
    if (!source.is_ok()) {
        return source.status();
    }
    entry.context = request.context;
    entry.flags = request.flags;
    entry.source = source.value();
    entry.tag = request.tag;
    entry.use = request.use;
    entry.iov_count = static_cast<std::uint8_t>(request.iov_count);
    entry.is_queued = false;
    if (request.iov_count == 1) [[likely]] {
        entry.iov[0] = *request.iov;
    } else {
        std::copy_n(request.iov, request.iov_count, entry.iov.begin());
    }
    return util::kOk;
}

template <class Lock, class Host>
[[gnu::noinline]] util::Status RdEngine<Lock, Host>::post_receive(const RdRecv& request) noexcept {
    const bool is_multi = has(request.flags, RdFlags::kMultiRecv);
    if (!util::iov_is_usable(request.iov, request.iov_count, kMaxIov) ||
        (is_multi && (request.iov_count != 1 || has(request.flags, RdFlags::kTagged)))) {
        return EINVAL;
    }
    RdRxEntry* const entry = entries_.take();
    if (entry == nullptr) {
        return EAGAIN;
    }
    const Status filled = fill_entry(*entry, request);
    if (!filled.is_ok()) {
        entries_.give_back(entry);
        return filled;
    }
    if (is_multi) {
        return use_multi_recv(*entry);
    }
    entry->is_queued = true;
    if (has(request.flags, RdFlags::kTagged) && matches_late()) {
        return match_later(*entry, request.ignore);
    }
    if (RdInbound* const inbound = match_unexpected(request, entry->source, true)) {
        receive_unexpected(*inbound, *entry);
        return util::kOk;
    }
    return queue_receive(*entry, request.ignore);
}

/// Whether messages wait that a receive must be compared with.
template <class Lock, class Host>
template <bool kTagged>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::has_unexpected() const noexcept {
    return kTagged ? !unexpected_tagged_.is_empty() : !unexpected_messages_.is_empty();
}

/// Whether a tagged receive may be compared with the messages that wait when progress is made. Who
/// sleeps, or looks at a counter, may not make any before it expects the message; but none is
/// compared before those that wait already.
template <class Lock, class Host>
RVT_ALWAYS_INLINE bool RdEngine<Lock, Host>::matches_late() const noexcept {
    return late_count_ != 0 || (unexpected_tagged_.is_long() && recv_counter_ == nullptr &&
                                rx_cq_ != nullptr && !rx_cq_->is_armed());
}

/// Compares a receive with a long queue of waiting messages when progress is made, or when there
/// are some such receives: what they touch lies outside the cache, and comes for all of them
/// together. Nobody sees the difference: completions are read after progress.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::match_later(RdRxEntry& entry, std::uint64_t ignore) noexcept {
    unexpected_tagged_.prefetch(entry.tag, ignore, entry.source);
    late_[late_count_].entry = &entry;
    late_[late_count_].ignore = ignore;
    if (late_count_ >= kLateBehind) {
        ask_for_message(late_[late_count_ - kLateBehind]);
    }
    if (++late_count_ == late_.size()) {
        match_late();
    } else if (late_count_ == 1) {
        station_.wake_sleepers();
    }
    return util::kOk;
}

/// Asks for the memory of the message that a receive will take. What leads to it has been asked for
/// a while ago.
template <class Lock, class Host>
RVT_ALWAYS_INLINE void RdEngine<Lock, Host>::ask_for_message(const RdLateReceive& late) noexcept {
    unexpected_tagged_.prefetch_message(late.entry->tag, late.ignore, late.entry->source);
}

template <class Lock, class Host>
[[gnu::noinline]] void RdEngine<Lock, Host>::match_late() noexcept {
    const std::span<const RdLateReceive> receives(late_.data(), std::exchange(late_count_, 0));
    for (const RdLateReceive& each : receives.last(std::min(receives.size(), kLateBehind))) {
        ask_for_message(each);
    }
    for (const RdLateReceive& each : receives) {
        RdRxEntry& entry = *each.entry;
        RdInbound* const inbound = unexpected_tagged_.match(entry.tag, each.ignore, entry.source);
        if (inbound != nullptr) {
            receive_unexpected(*inbound, entry);
        } else if (!posted_tagged_.push(entry.tag, each.ignore, entry.source, &entry).is_ok()) {
            end_receive(entry, true, WcStatus::kNoMemory);
        }
    }
}

/// Lets waiting messages into a new multi-receive buffer, and queues what is left of it.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::use_multi_recv(RdRxEntry& entry) noexcept {
    if (!posted_messages_.push(0, 0, entry.source, &entry).is_ok()) {
        entries_.give_back(&entry);
        return EAGAIN;
    }
    entry.is_queued = true;
    ++multi_receives_;
    // The message that uses the buffer up may free the entry; its generation tells.
    const std::uint32_t generation = entry.pool_generation;
    while (entry.pool_generation == generation && entry.is_queued) {
        RdInbound* const inbound = match_unexpected({}, entry.source, true);
        if (inbound == nullptr) {
            break;
        }
        receive_unexpected(*inbound, entry);
    }
    return util::kOk;
}

/// The oldest waiting message that fits the request.
template <class Lock, class Host>
RdInbound* RdEngine<Lock, Host>::match_unexpected(const RdRecv& request, std::uint32_t source,
                                                  bool take) noexcept {
    if (has(request.flags, RdFlags::kTagged)) {
        return take ? unexpected_tagged_.match(request.tag, request.ignore, source)
                    : unexpected_tagged_.peek(request.tag, request.ignore, source);
    }
    return take ? unexpected_messages_.match(0, ~0ull, source)
                : unexpected_messages_.peek(0, ~0ull, source);
}

// ---- questions about what has arrived ----

/// FI_PEEK: looks, and reserves or drops what it finds if so asked.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::ask(const RdRecv& request) noexcept {
    const util::Result<std::uint32_t> source = source_id(request.source);
    if (!source.is_ok()) {
        return source.status();
    }
    progress_any();
    const bool takes = has(request.flags, RdFlags::kClaim | RdFlags::kDiscard);
    RdInbound* const inbound = match_unexpected(request, source.value(), takes);
    report_peek(request, inbound);
    if (inbound != nullptr && has(request.flags, RdFlags::kDiscard)) {
        drop_inbound(*inbound);
    } else if (inbound != nullptr && has(request.flags, RdFlags::kClaim)) {
        claimed_[request.context] = inbound;
    }
    return util::kOk;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::report_peek(const RdRecv& request, const RdInbound* inbound) noexcept {
    Cqe cqe{.op_context = request.context,
            .flags = kWcRecv | (has(request.flags, RdFlags::kTagged) ? kWcTagged : kWcMsg)};
    if (inbound == nullptr) {
        cqe.status = WcStatus::kNoMessage;
        cqe.tag = request.tag;
    } else {
        cqe.flags |= (inbound->wire_flags & wire::kHasData) != 0 ? kWcRemoteCqData : 0;
        cqe.len = inbound->total;
        cqe.data = inbound->data;
        cqe.tag = inbound->tag;
        cqe.source = inbound->peer->fi_addr;
    }
    rx_cq_->push(cqe);
}

/// FI_CLAIM without FI_PEEK: receives, or with FI_DISCARD drops, the message that this context
/// reserved.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::receive_claimed(const RdRecv& request) noexcept {
    const auto claim = claimed_.find(request.context);
    if (claim == claimed_.end()) {
        return EINVAL;
    }
    RdInbound& inbound = *claim->second;
    if (has(request.flags, RdFlags::kDiscard)) {
        claimed_.erase(claim);
        report_peek(request, &inbound);
        drop_inbound(inbound);
        return util::kOk;
    }
    if (!util::iov_is_usable(request.iov, request.iov_count, kMaxIov)) {
        return EINVAL;
    }
    RdRxEntry* const entry = entries_.take();
    if (entry == nullptr) {
        return EAGAIN;
    }
    const Status filled = fill_entry(*entry, request);
    if (!filled.is_ok()) {
        entries_.give_back(entry);
        return filled;
    }
    claimed_.erase(claim);
    receive_unexpected(inbound, *entry);
    return util::kOk;
}

}  // namespace rvt::core
