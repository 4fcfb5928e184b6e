// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that come, and the life of an endpoint. Included by rd_engine.h.
#pragma once

#include <cerrno>

#include "core/rd_engine.h"

namespace rvt::core {

/// Whether one of the two sides lacked something for a connection: memory, descriptors, or the
/// right to make files as large.
constexpr bool is_shortage(int error) noexcept {
    switch (error) {
        case ENOMEM:
        case ENOSPC:
        case EMFILE:
        case ENFILE:
        case EFBIG: return true;
        default: return false;
    }
}

template <class Lock, class Host>
RdEngine<Lock, Host>::RdEngine(Lock& lock, const RdAttr& attr, const RdTuning& tuning,
                               const RdKeys& keys, std::shared_ptr<protocol::PcapWriter> capture)
    : lock_(lock),
      unexpected_room_(most_unexpected(attr)),
      entries_(kMaxPosted),
      inbound_(kMaxInbound),
      tx_messages_(attr.tx_size),
      tx_accesses_(attr.tx_size),
      attr_(attr),
      tuning_(tuning),
      keys_(keys),
      capture_file_(std::move(capture)) {
    progress = capture_file_ != nullptr ? &RdEngine::captured_entry : &RdEngine::progress_entry;
}

template <class Lock, class Host>
RdEngine<Lock, Host>::~RdEngine() {
    if (av_ != nullptr) {
        av_->remove_observer(this);
    }
    {
        const util::Guard guard(lock_);
        is_enabled_ = false;  // nothing is lent any more
        tx_messages_.for_each_taken([](RdTxOp& op) {
            if (op.loan.is_any()) {
                op.loan.end();
            }
        });
    }
    // After this the control thread calls us no more.
    station_.close();
    // acquire: pairs with the release in deliver().
    for (Event* event = mail_.exchange(nullptr, std::memory_order_acquire); event != nullptr;) {
        event = std::exchange(std::unique_ptr<Event>(event)->next, nullptr);
    }
    free_pin_slot(pin_);
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::bind(const RdCompletion& completion, AddressVector* av) noexcept {
    util::Guard guard(lock_);
    match_late();  // who looks at a new counter may make no progress
    completion_ = completion;
    tx_cq_ = completion.tx_cq;
    rx_cq_ = completion.rx_cq;
    send_counter_ = completion.send;
    recv_counter_ = completion.recv;
    av_ = av;
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::bind_address(const util::SockAddr& address) {
    return station_.bind(address);
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::enable() {
    if (is_enabled_) {
        return EBUSY;
    }
    if (!station_.is_bound()) {
        const Status bound = station_.bind(attr_.bind);
        if (!bound.is_ok()) {
            return bound;
        }
    }
    const util::SockAddr own = station_.address();
    if (capture_file_ != nullptr) {
        capture_ = {capture_file_, "rdm-host-" + own.to_string(), to_address(own)};
    }
    Status opened = util::kOk;
    {
        // The control thread may look in as soon as the first part of the station is open.
        util::Guard guard(lock_);
        opened = station_.open({.user = this,
                                .sleepers = &sleepers,
                                .keys = keys_,
                                .has_auto_progress = attr_.has_auto_progress,
                                .wants_rma_events = attr_.wants_rma_events});
    }
    if (opened.is_ok()) {
        is_enabled_ = true;
        av_->add_observer(this);
    }
    return opened;
}

// ---- peers ----

/// The peer of a number, made if nobody has talked to it yet; nullptr for a number that the vector
/// does not have.
template <class Lock, class Host>
typename RdEngine<Lock, Host>::Peer* RdEngine<Lock, Host>::find_peer(std::uint64_t dest) noexcept {
    if (Peer* const known = peer_of(dest)) [[likely]] {
        return known;
    }
    const util::SockAddr* const address = av_ == nullptr ? nullptr : av_->at(dest);
    if (address == nullptr) {
        return nullptr;
    }
    Peer* const peer = peer_at(*address);
    if (peer->fi_addr == kSourceNotAvailable) {
        peer->fi_addr = dest;
    }
    if (dest >= by_index_.size()) {
        by_index_.resize(dest + 1);
    }
    by_index_[dest] = peer;
    return peer;
}

/// The peer at an address; nullptr: there is none yet.
template <class Lock, class Host>
typename RdEngine<Lock, Host>::Peer* RdEngine<Lock, Host>::known_at(
    const util::SockAddr& address) noexcept {
    const auto [begin, end] = peers_by_address_.equal_range(address.hash());
    for (auto it = begin; it != end; ++it) {
        if (it->second->address == address) {
            return it->second;
        }
    }
    return nullptr;
}

/// The peer at an address, made if it is new.
template <class Lock, class Host>
typename RdEngine<Lock, Host>::Peer* RdEngine<Lock, Host>::peer_at(
    const util::SockAddr& address) noexcept {
    if (Peer* const known = known_at(address)) {
        return known;
    }
    const std::uint32_t id = free_peer_id();
    peers_[id] = std::make_unique<Peer>();
    Peer* const peer = peers_[id].get();
    peer->id = id;
    peer->address = address;
    peer->path.close();
    if (av_ != nullptr) {
        const util::Result<std::uint64_t> number = av_->find(address);
        peer->fi_addr = number.is_ok() ? number.value() : kSourceNotAvailable;
    }
    peers_by_address_.emplace(address.hash(), peer);
    return peer;
}

/// An id for a new peer: that of one whom nothing refers to any more, if the peer that was given up
/// first is such a one; else a new one. So peers that come and go do not add up.
template <class Lock, class Host>
std::uint32_t RdEngine<Lock, Host>::free_peer_id() noexcept {
    if (!given_up_.empty()) {
        const std::uint32_t id = given_up_.front();
        given_up_.pop_front();
        Peer& peer = *peers_[id];
        peer.is_given_up = false;
        if (!is_referred_to(peer)) {
            const auto [begin, end] = peers_by_address_.equal_range(peer.address.hash());
            peers_by_address_.erase(
                std::find_if(begin, end, [&](const auto& each) { return each.second == &peer; }));
            return id;
        }
        give_up_if_unknown(peer);  // its messages may have been read until the next time
    }
    peers_.push_back(nullptr);
    return static_cast<std::uint32_t>(peers_.size() - 1);
}

/// Notes a peer that is neither connected nor in the address vector: its place may be used again.
template <class Lock, class Host>
void RdEngine<Lock, Host>::give_up_if_unknown(Peer& peer) noexcept {
    if (!peer.is_given_up && peer.state == Peer::State::kIdle &&
        peer.fi_addr == kSourceNotAvailable) {
        peer.is_given_up = true;
        given_up_.push_back(peer.id);
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::is_referred_to(const Peer& peer) noexcept {
    const bool is_used = peer.state != Peer::State::kIdle || peer.records != 0 ||
                         peer.fi_addr != kSourceNotAvailable || peer.is_busy || peer.has_work();
    const auto is_directed = [&](const RdRxEntry& entry) { return entry.source == peer.id; };
    const std::span<const RdLateReceive> late(late_.data(), late_count_);
    return is_used || posted_tagged_.find(is_directed) != nullptr ||
           posted_messages_.find(is_directed) != nullptr ||
           std::any_of(late.begin(), late.end(),
                       [&](const RdLateReceive& each) { return is_directed(*each.entry); });
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::address_inserted(std::uint64_t index,
                                            const util::SockAddr& address) noexcept {
    util::Guard guard(lock_);
    const auto [begin, end] = peers_by_address_.equal_range(address.hash());
    for (auto it = begin; it != end; ++it) {
        if (it->second->address == address && it->second->fi_addr == kSourceNotAvailable) {
            it->second->fi_addr = index;
        }
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::address_removed(std::uint64_t index,
                                           const util::SockAddr& address) noexcept {
    util::Guard guard(lock_);
    Peer* const peer = peer_of(index);
    if (peer != nullptr) {
        by_index_[index] = nullptr;
    }
    const auto [begin, end] = peers_by_address_.equal_range(address.hash());
    for (auto it = begin; it != end; ++it) {
        if (it->second->fi_addr == index) {
            const util::Result<std::uint64_t> other = av_->find(address);
            it->second->fi_addr = other.is_ok() ? other.value() : kSourceNotAvailable;
            give_up_if_unknown(*it->second);
        }
    }
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::connect(Peer& peer) noexcept {
    peer.state = Peer::State::kConnecting;
    station_.connect(peer.address);
}

// ---- word of the control thread ----

/// On the control thread: leaves an event for the owner, and wakes it if it sleeps.
template <class Lock, class Host>
void RdEngine<Lock, Host>::deliver(std::unique_ptr<Event> event) noexcept {
    Event* const raw = event.release();
    // relaxed: the compare-exchange below orders; a stale head only costs another round.
    raw->next = mail_.load(std::memory_order_relaxed);
    // release: pairs with the acquire in read_mail(); relaxed on failure: as above.
    while (!mail_.compare_exchange_weak(raw->next, raw, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
    station_.wake_owner();
}

template <class Lock, class Host>
[[gnu::cold]] void RdEngine<Lock, Host>::read_mail() noexcept {
    // acquire: pairs with the release in deliver().
    Event* newest = mail_.exchange(nullptr, std::memory_order_acquire);
    Event* oldest = nullptr;
    while (newest != nullptr) {
        Event* const next = std::exchange(newest->next, oldest);
        oldest = std::exchange(newest, next);
    }
    while (oldest != nullptr) {
        std::unique_ptr<Event> event(oldest);
        oldest = event->next;
        if (event->kind == Event::Kind::kConnected) {
            connected(std::move(event));
        } else if (Peer* const peer = known_at(event->address)) {  // else given up meanwhile
            take_word(*peer, *event);
        }
    }
}

/// What the control thread says of a peer, other than that it is connected.
template <class Lock, class Host>
void RdEngine<Lock, Host>::take_word(Peer& peer, Event& event) noexcept {
    switch (event.kind) {
        case Event::Kind::kConnected: break;
        case Event::Kind::kFailed:
            if (peer.state == Peer::State::kConnecting) {
                disconnected(peer, is_shortage(event.error) ? WcStatus::kNoMemory
                                                            : WcStatus::kPeerUnreachable);
            }
            break;
        case Event::Kind::kPeerGone:
            if (peer.link == event.link) {
                receive_last_words(peer);
            }
            break;
        case Event::Kind::kRegion:
            if (peer.link == event.link) {
                take_region(peer, event);
            }
            break;
        case Event::Kind::kLeft:
            if (peer.link == event.link && peer.state == Peer::State::kConnected) {
                left(peer);
            }
            break;
    }
}

/// A peer is gone. What it had sent before is received first: at most what the rings hold, in case
/// it still writes to them.
template <class Lock, class Host>
void RdEngine<Lock, Host>::receive_last_words(Peer& peer) noexcept {
    peer.is_gone = peer.state == Peer::State::kConnected;  // until it is disconnected below
    for (unsigned i = 0; i < kLastLooks && peer.state == Peer::State::kConnected; ++i) {
        if (peer.path.is_remote() || poll_peer(peer) == 0) {
            break;  // what had arrived by a wire has been handed over
        }
    }
    if (peer.state == Peer::State::kConnected) {
        disconnected(peer, WcStatus::kPeerDead);
    }
}

/// The peer's answer to our wish to map a region of its memory.
template <class Lock, class Host>
void RdEngine<Lock, Host>::take_region(Peer& peer, Event& event) noexcept {
    const auto own = static_cast<std::uint32_t>(event.key);
    RegionEntry* const asked = peer.book.find(own);
    if (asked == nullptr || asked->state != RegionEntry::State::kAsked) {
        return;  // opened meanwhile by what came with a message, or closed
    }
    if (event.region != nullptr && event.region->handle) {
        open_region(peer, own, *asked,
                    {.handle = *event.region->handle, .length = event.region->length});
        return;
    }
    const bool is_usable = event.region != nullptr && event.region->is_writable &&
                           (keys_.has_p2p || event.region->dma_buf.get() < 0);
    peer.book.answered(*asked, own, is_usable ? std::move(event.region) : nullptr);
}

/// On the control thread: memory of ours that a peer asks to map.
template <class Lock, class Host>
util::Result<typename Host::RegionSource> RdEngine<Lock, Host>::find_region(
    std::uint64_t key) noexcept {
    if (keys_.table == nullptr || key > 0xffffffffu) {
        return EACCES;
    }
    const ReadPin pin;
    const auto own = static_cast<std::uint32_t>(key);
    if (const auto handle = find_handle(own)) {
        return typename Host::RegionSource{.length = handle->length, .handle = *handle->by};
    }
    const util::Result<KeyRegion> region = keys_.table->view().region(own, keys_.pd, Access::kNone);
    if (!region.is_ok()) {
        return region.status();
    }
    const auto [base, length, indirect] = region.value();
    if (!indirect) {
        constexpr Access kBoth = Access::kRemoteRead | Access::kRemoteWrite;
        const util::Result<KeyRegion> open = keys_.table->view().region(own, keys_.pd, kBoth);
        return open.is_ok()
                   ? util::Result(typename Host::RegionSource{.address = base, .length = length})
                   : open.status();
    }
    const RegionMemory& memory = memory_of({.base = base});
    if (memory.device == nullptr || memory.segments.size() != 1 || !keys_.has_p2p) {
        return ENOTSUP;
    }
    // Also where peers have no right of their own to it: they receive messages from there.
    const DeviceMemory::File file = memory.device->file();
    if (file.fd < 0) {
        return ENOTSUP;
    }
    note_shared(own);
    return typename Host::RegionSource{
        .length = length, .file = util::duplicate(file.fd), .offset = file.offset};
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::connected(std::unique_ptr<Event> event) noexcept {
    Peer& peer = *peer_at(event->address);
    if (peer.state == Peer::State::kConnected) {
        disconnected(peer, WcStatus::kPeerDead);  // a restarted endpoint at the same address
    }
    peer.link = peer.path.open(*event, &peer);
    const auto [block, bytes] = peer.path.keys_block();
    if (block != nullptr) {
        const util::Result<KeyView> view = KeyView::attach(block, bytes);
        peer.has_keys_view = view.is_ok();
        if (view.is_ok()) {
            peer.keys_view = view.value();
            peer.book.open(view.value(), peer.path.key_domain());
        }
    }
    peer.state = Peer::State::kConnected;
    peer.path.hold_eager(is_holding_);
    if (peer.path.is_remote()) {
        remote_.push_back(&peer);
    } else {
        if (polled_.size() == 1) {  // it was polled without a look
            polled_[0].look = polled_[0].peer->path.look();
        }
        polled_.push_back({.look = peer.path.look(), .peer = &peer});
        copiers_.push_back({.use = peer.path.use_look(), .peer = &peer});
        count_hot();
    }
    if (peer.has_work()) {
        make_busy(peer);
    }
}

// ---- questions ----

/// Cancels a posted receive or unsent operation with this context. Of several receives this is the
/// oldest, or one near that which was cancelled last.
template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::cancel(void* context) noexcept {
    util::Guard guard(lock_);
    match_late();
    if (RdRxEntry* const entry = find_posted(context)) {
        const bool is_tagged = has(entry->flags, RdFlags::kTagged);
        if (is_tagged) {
            posted_tagged_.remove(entry);
        } else {
            posted_messages_.remove(entry);
        }
        end_receive(*entry, is_tagged, WcStatus::kCanceled);
        return util::kOk;
    }
    return cancel_unsent(context);
}

template <class Lock, class Host>
RdRxEntry* RdEngine<Lock, Host>::find_posted(void* context) noexcept {
    const auto is_it = [context](const RdRxEntry& entry) { return entry.context == context; };
    RdRxEntry* found = posted_tagged_.find_near(is_it);
    found = found != nullptr ? found : posted_messages_.find_near(is_it);
    found = found != nullptr ? found : posted_tagged_.find(is_it);
    return found != nullptr ? found : posted_messages_.find(is_it);
}

template <class Lock, class Host>
util::Status RdEngine<Lock, Host>::cancel_unsent(void* context) noexcept {
    if (open_operations_ == 0) {
        return ENOENT;  // at once, however many peers there are
    }
    for (const auto& peer : peers_) {
        RdTxOp* const op = peer->queue.take([&](const RdTxOp& each) {
            return each.context == context && each.state == RdTxOp::State::kQueued;
        });
        if (op != nullptr) {
            --peer->waiting;
            if (has(op->flags, RdFlags::kFence)) {
                fence_gone(*peer);
            }
            finish_tx(*op, WcStatus::kCanceled);
            return util::kOk;
        }
    }
    return ENOENT;
}

/// Reports a receive, which is in no queue any more, that gets no message.
template <class Lock, class Host>
void RdEngine<Lock, Host>::end_receive(RdRxEntry& entry, bool is_tagged, WcStatus status) noexcept {
    const bool is_multi = has(entry.flags, RdFlags::kMultiRecv);
    entry.is_queued = false;
    multi_receives_ -= is_multi ? 1 : 0;
    if (has(entry.flags, RdFlags::kHasUse) && entry.users == 0) {
        entry.use->release();
    }
    // Messages that are on their way into the buffer keep it; the last of them says so.
    const bool is_released = is_multi && entry.users == 0;
    if (rx_cq_ != nullptr) {
        rx_cq_->push(Cqe{
            .op_context = entry.context,
            .flags = kWcRecv | (is_tagged ? kWcTagged : kWcMsg) | (is_released ? kWcMultiRecv : 0),
            .status = status});
    }
    if (recv_counter_ != nullptr) {
        recv_counter_->add_error(1);
    }
    if (entry.users == 0) {
        entries_.give_back(&entry);
    }
}

/// Who waits for this makes no progress otherwise: the mail says who has connected, and may copy
/// already, and who was killed while it copied, whose mark stays for ever. Those that are about to
/// be in the mail are asked for first, and without the lock, which the control thread may want.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::uses_key(std::uint32_t key) noexcept {
    if (station_.is_in_use(key)) {
        return true;
    }
    util::Guard guard(lock_);
    // relaxed: whoever has not been asked was delivered before, by what is_in_use() has acquired.
    if (mail_.load(std::memory_order_relaxed) != nullptr) {
        read_mail();
    }
    const std::uint64_t own = station_.incarnation();
    return std::any_of(copiers_.begin(), copiers_.end(),
                       [&](const Copier& copier) { return copier.use.is_of(own, key); });
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::withdraw_key(std::uint32_t key) noexcept {
    util::Guard guard(lock_);
    withdraw_handle(key);
    if (!station_.withdraw(key)) {
        return;
    }
    for (Peer* const peer : remote_) {
        if (peer->knows_nic_keys) {
            reply(*peer, RdOp::kKeyEnds, 0, key, &key, 0);
        }
    }
}

template <class Lock, class Host>
std::string RdEngine<Lock, Host>::describe_peer(std::uint64_t dest) {
    util::Guard guard(lock_);
    const Peer* const peer = find_peer(dest);
    if (peer == nullptr) {
        return "not in the address vector";
    }
    switch (peer->state) {
        case Peer::State::kIdle: return "not connected";
        case Peer::State::kConnecting: return "connecting";
        case Peer::State::kConnected: return peer->path.describe();
    }
    return {};
}

}  // namespace rvt::core
