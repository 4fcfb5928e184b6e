// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Life and traffic of a datagram endpoint. Its peers and groups are in ud_endpoint_peers.cc.
#include "core/ud_endpoint.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/addresses.h"
#include "core/grh.h"

namespace rvt::core {
namespace {

constexpr std::size_t kMaxSge = kMaxIov + 2;
// How long a NIC that is gone may take to flush.
constexpr std::uint64_t kFlushUs = 1'000'000;
// What a datagram is read from and written to is the application's, registered or not: this region
// is for nobody but this pair, which answers no request of a peer for memory.

void count(Counter* counter, WcStatus status) noexcept {
    if (counter == nullptr) {
        return;
    }
    if (status == WcStatus::kSuccess) {
        counter->add(1);
    } else {
        counter->add_error(1);
    }
}

/// Completions name the buffers of a receive by it.
void* name_of_first(const RdRecv& request) noexcept {
    void* const first = request.iov_count != 0 ? request.iov[0].iov_base : nullptr;
    return request.use == nullptr ? first : request.use->name_of(first);
}

/// Has so many bytes taken to the device that they are for, and lets go of it.
/// Returns: how the receive ends.
[[gnu::noinline]] WcStatus end_use(BufferUse& use, WcStatus status, std::uint64_t bytes) noexcept {
    const bool is_lost = !use.filled(0, bytes).is_ok();
    use.release();
    return is_lost ? WcStatus::kGeneralErr : status;
}

}  // namespace

// ---- life ----

UdEndpoint::UdEndpoint(const UdAttr& attr) : attr_(attr), has_sources_(attr.reports_source) {
    progress = [](ProgressSource* self) noexcept {
        return static_cast<UdEndpoint*>(self)->progress_locked();
    };
}

UdEndpoint::~UdEndpoint() {
    close();
}

Status UdEndpoint::open(std::unique_ptr<UdHost> host) {
    host_ = std::move(host);
    sharing_ = host_->sharing();
    Device& device = host_->device();
    max_bytes_ = device.limits().max_ud_bytes;
    most_bytes_.store(max_bytes_, std::memory_order_relaxed);  // relaxed: nobody else knows it yet
    polling_ = host_->polling();
    tx_.resize(std::bit_ceil(attr_.tx_size));
    rx_.resize(attr_.rx_size);
    grhs_.resize(attr_.rx_size);
    excess_.resize(max_bytes_);
    free_rx_ = kNone;  // an attempt that failed may have left some
    for (std::uint32_t i = 0; i < rx_.size(); ++i) {
        free_rx_locked(i);
    }
    Status opened = open_pair();
    if (opened.is_ok()) {
        opened = start_pair();
    }
    if (opened.is_ok()) {
        opened = join_device();
    }
    last_arrival_us_ = device.now_us();
    if (opened.is_ok()) {
        opened = host_->start();
    }
    if (!opened.is_ok()) {
        close();
    }
    return opened;
}

Status UdEndpoint::open_queue() {
    Status made = keep(context_, open_device(host_->device()));
    if (made.is_ok() && sharing_ != nullptr) {
        made = keep(channel_, create_comp_channel(*context_));
    }
    // Both sides complete into it, and no more than is outstanding: it never overruns.
    const auto size = static_cast<std::uint32_t>(tx_.size() + rx_.size());
    if (made.is_ok()) {
        made = keep(cq_, create_cq(*context_, size, channel_.get()));
    }
    return made;
}

Status UdEndpoint::open_pair() {
    Status made = open_queue();
    const auto tx_size = static_cast<std::uint32_t>(tx_.size());
    const auto rx_size = static_cast<std::uint32_t>(rx_.size());
    if (made.is_ok()) {
        made = keep(pd_, alloc_pd(*context_));
    }
    if (made.is_ok()) {
        made = open_memory();
    }
    const std::uint32_t most_send_sge = staging_ != nullptr ? 1 : kMaxIov;
    const std::uint32_t most_recv_sge = staging_ != nullptr ? 1 : kMaxSge;
    const std::uint32_t inline_bytes =
        std::min<std::uint32_t>(host_->device().limits().max_inline_bytes, kUdInjectBytes);
    if (made.is_ok()) {
        made = keep(qp_, create_qp(*pd_, {.type = QpType::kUd,
                                          .send_cq = cq_.get(),
                                          .recv_cq = cq_.get(),
                                          .cap = {.max_send_wr = tx_size,
                                                  .max_recv_wr = rx_size,
                                                  .max_send_sge = most_send_sge,
                                                  .max_recv_sge = most_recv_sge,
                                                  .max_inline_bytes = inline_bytes},
                                          .signal_all = staging_ == nullptr,
                                          .qpn = sharing_ == nullptr ? kUdEndpointQpn : 0}));
    }
    return made;
}

/// What of the application's memory the pair reaches: all, or nothing.
Status UdEndpoint::open_memory() {
    if (host_->device().grade() != Grade::kVerb) {
        pd_->allow_local_dma();
        return kOk;
    }
    auto staging =
        UdStaging::open(*pd_, {.sends = tx_.size(), .receives = rx_.size(), .bytes = max_bytes_});
    if (staging.is_ok()) {
        staging_ = staging.take();
    }
    return staging.status();
}

Status UdEndpoint::start_pair() {
    const struct {
        QpState to;
        QpMask also;
    } steps[] = {{QpState::kInit, QpMask::kPkeyIndex | QpMask::kPort | QpMask::kQkey},
                 {QpState::kRtr, QpMask::kNone},
                 {QpState::kRts, QpMask::kSqPsn}};
    for (const auto& [to, also] : steps) {
        const Status moved =
            qp_->modify({.state = to, .qkey = kUdEndpointQkey}, QpMask::kState | also);
        if (!moved.is_ok()) {
            return moved;
        }
    }
    return kOk;
}

/// Takes what comes for the endpoint, or its part of it.
Status UdEndpoint::join_device() {
    Device& device = host_->device();
    if (sharing_ == nullptr) {
        device.set_mad_sink(this);
        wake_fd_ = device.ops().wake_fd(device);
        return kOk;
    }
    has_sources_ = true;  // they tell the resolver who is still there
    wake_fd_ = sharing_->wake_fd();
    UdResolverOwner& self = *this;
    resolver_ = std::make_unique<UdResolver>(device, sharing_->services(), host_->address().port,
                                             tx_.size(), self);
    const Status opened = resolver_->open({.qpn = qp_->qpn(), .qkey = kUdEndpointQkey});
    return opened.is_ok() ? sharing_->watch(channel_->fd()) : opened;
}

/// What has not left by now is lost, as datagrams may be.
void UdEndpoint::close() noexcept {
    if (host_ == nullptr) {
        return;
    }
    host_->stop();
    resolver_.reset();
    if (sharing_ == nullptr) {
        host_->device().set_mad_sink(nullptr);
    }
    host_->device().flush();
    qp_.reset();
    for (const Peer& peer : peers_) {
        unused_ahs_.push_back(peer.ah);
    }
    for (Ah* ah : unused_ahs_) {
        if (ah != nullptr) {
            [[maybe_unused]] const Status destroyed = destroy_ah(ah);
        }
    }
    staging_.reset();
    cq_.reset();
    pd_.reset();
    channel_.reset();
    context_.reset();
    host_.reset();
}

void UdEndpoint::bind(const RdCompletion& completion, AddressVector* av) noexcept {
    completion_ = completion;
    av_ = av;
}

// ---- sending ----

Status UdEndpoint::send_locked(const RdSend& request) noexcept {
    if (is_too_long(request)) {
        return EMSGSIZE;
    }
    const Peer* const peer = find_peer_locked(request.dest);
    if (peer == nullptr) [[unlikely]] {
        return send_first_locked(request);
    }
    return has_room_to_send_locked() ? post_locked(request, *peer) : Status(EAGAIN);
}

/// Of a NIC not all are, where nobody asks how they end unless they fail. One that takes the last
/// place is: only what completes makes room.
bool UdEndpoint::is_signaled_locked(const RdSend& request) const noexcept {
    const bool is_wanted = has(request.flags, RdFlags::kCompletion) || request.use != nullptr ||
                           completion_.send != nullptr;
    const bool is_last_place = tx_tail_ - tx_head_ + 1 == tx_.size();
    return is_wanted || is_last_place || tx_tail_ - signaled_end_ + 1 >= kSignalInterval;
}

RVT_ALWAYS_INLINE Status UdEndpoint::post_locked(const RdSend& request, const Peer& peer) noexcept {
    std::array<Sge, kMaxIov> list;
    std::size_t count = request.iov_count;
    bool is_inline = has(request.flags, RdFlags::kInject);
    if (is_nic_gone()) [[unlikely]] {
        return ENODEV;
    }
    if (staging_ == nullptr) [[likely]] {
        for (std::size_t i = 0; i < count; ++i) {
            list[i] = sge_of(request.iov[i].iov_base, request.iov[i].iov_len);
        }
    } else {
        list[0] = staging_->put_send(tx_tail_, {request.iov, count});
        count = 1;
        is_inline = list[0].length <= qp_->init().cap.max_inline_bytes;
    }
    const bool has_data = has(request.flags, RdFlags::kData);
    tx_[tx_tail_ & (tx_.size() - 1)] = {.context = request.context,
                                        .use = request.use,
                                        .completes = has(request.flags, RdFlags::kCompletion),
                                        .is_to_group = is_group(request.dest)};
    const bool is_signaled = staging_ == nullptr || is_signaled_locked(request);
    const Status posted =
        qp_->post_send({.wr_id = tx_tail_,
                        .opcode = has_data ? WrOpcode::kSendImm : WrOpcode::kSend,
                        .flags = (is_inline ? SendFlags::kInline : SendFlags::kNone) |
                                 (is_signaled ? SendFlags::kSignaled : SendFlags::kNone),
                        .imm = static_cast<std::uint32_t>(request.data),
                        .sg_list = {list.data(), count},
                        .ah = peer.ah,
                        .remote_qpn = peer.pair.qpn,
                        .remote_qkey = peer.pair.qkey});
    if (!posted.is_ok()) {
        return posted.error() == ENOMEM ? Status(EAGAIN) : posted;
    }
    ++tx_tail_;
    signaled_end_ = is_signaled ? tx_tail_ : signaled_end_;
    drain_locked();
    if (awaits_send_locked() && !is_hot()) [[unlikely]] {
        mark_hot();  // it waits for room, which polls find
    }
    return kOk;
}

/// To whom nothing has been sent yet, or not for long.
Status UdEndpoint::send_first_locked(const RdSend& request) noexcept {
    if (is_nic_gone()) {
        return ENODEV;
    }
    if (!has_room_to_send_locked()) {
        return EAGAIN;
    }
    // A poll may have found it meanwhile.
    if (const Peer* const known = find_peer_locked(request.dest); known != nullptr) {
        return post_locked(request, *known);
    }
    const util::SockAddr* const address = is_group(request.dest) ? nullptr : av_->at(request.dest);
    if (address == nullptr || address->family != host_->address().family) {
        return EINVAL;
    }
    Result<UdPair> pair = UdPair{.qpn = kUdEndpointQpn, .qkey = kUdEndpointQkey};
    if (resolver_ != nullptr) {
        pair = resolver_->find_locked(request.dest, *address);
    }
    if (!pair.is_ok()) {
        return resolver_->keep_locked(request, *address);
    }
    const auto peer = learn_peer_locked(request.dest, *address, pair.value());
    return peer.is_ok() ? post_locked(request, *peer.value()) : peer.status();
}

Status UdEndpoint::post_kept_locked(const UdKept& kept, const UdPair& pair) noexcept {
    if (!can_send_locked()) {
        return EAGAIN;
    }
    RdSend request = kept.request;
    request.iov = kept.iov.data();
    const Peer* peer = find_peer_locked(request.dest);
    if (peer == nullptr) {
        const util::SockAddr* const address = av_->at(request.dest);
        const auto learned = address != nullptr ? learn_peer_locked(request.dest, *address, pair)
                                                : Result<const Peer*>(ENOENT);
        peer = learned.is_ok() ? learned.value() : nullptr;
    }
    const Status posted = peer != nullptr ? post_locked(request, *peer) : Status(ENOENT);
    if (!posted.is_ok() && posted.error() != EAGAIN) {
        fail_kept_locked(kept, WcStatus::kPeerUnreachable);
    }
    return posted;
}

/// A queue that the application does not read takes no more.
bool UdEndpoint::has_room_to_send_locked() noexcept {
    if (completion_.tx_cq != nullptr && completion_.tx_cq->has_overflow()) {
        return false;
    }
    if (tx_tail_ - tx_head_ == tx_.size()) {
        poll_locked();
    }
    return tx_tail_ - tx_head_ != tx_.size();
}

bool UdEndpoint::can_send_locked() const noexcept {
    const bool is_held_up = completion_.tx_cq != nullptr && completion_.tx_cq->has_overflow();
    return !is_held_up && tx_tail_ - tx_head_ != tx_.size();
}

Sge UdEndpoint::sge_of(const void* data, std::uint64_t bytes) noexcept {
    return {.addr = reinterpret_cast<std::uint64_t>(data),
            .length = static_cast<std::uint32_t>(bytes),
            .lkey = kLocalDmaLkey};
}

void UdEndpoint::finish_send_locked(const Wc& wc) noexcept {
    const TxRecord& record = tx_[wc.wr_id & (tx_.size() - 1)];
    // Those before it have succeeded, of which nobody wants to know: a pair's sends end in order.
    tx_head_ = staging_ != nullptr ? wc.wr_id + 1 : tx_head_ + 1;
    report_send_locked(record, wc.status);
}

void UdEndpoint::report_send_locked(const TxRecord& record, WcStatus status) noexcept {
    if (record.use != nullptr) [[unlikely]] {
        record.use->release();
    }
    count(completion_.send, status);
    if (completion_.tx_cq == nullptr || (!record.completes && status == WcStatus::kSuccess)) {
        return;
    }
    completion_.tx_cq->emplace([&](Cqe& cqe) {
        cqe = {.op_context = record.context,
               .flags = kWcMsg | kWcSend | (record.is_to_group ? kWcMulticast : 0),
               .status = status};
    });
}

// ---- receiving ----

Status UdEndpoint::recv_locked(const RdRecv& request) noexcept {
    const std::uint32_t i = free_rx_;
    if (i == kNone) {
        return EAGAIN;
    }
    if (staging_ != nullptr) [[unlikely]] {
        return post_staged_recv_locked(request, i);
    }
    std::array<Sge, kMaxSge> list;
    std::size_t used = 0;
    list[used++] = sge_of(grhs_[i].data(), kGrhBytes);
    std::uint64_t left = max_bytes_;
    for (std::size_t k = 0; k < request.iov_count && left != 0; ++k) {
        const std::uint64_t bytes = std::min<std::uint64_t>(request.iov[k].iov_len, left);
        list[used++] = sge_of(request.iov[k].iov_base, bytes);
        left -= bytes;
    }
    if (left != 0) {
        list[used++] = sge_of(excess_.data(), left);
    }
    RxRecord& record = rx_[i];
    const std::uint32_t next = record.next;
    record = {.context = request.context,
              .buffer = name_of_first(request),
              .use = request.use,
              .room = max_bytes_ - left,
              .next = next,
              .completes = has(request.flags, RdFlags::kCompletion),
              .is_posted = true};
    const Status posted = qp_->post_recv({.wr_id = i | kRecvBit, .sg_list = {list.data(), used}});
    if (!posted.is_ok()) {
        record.is_posted = false;
        return posted.error() == ENOMEM ? Status(EAGAIN) : posted;
    }
    free_rx_ = next;
    return kOk;
}

Status UdEndpoint::post_staged_recv_locked(const RdRecv& request, std::uint32_t i) noexcept {
    if (is_nic_gone()) {
        return ENODEV;
    }
    const Status posted =
        staging_->post(*qp_, kRecvBit, i, std::span(request.iov, request.iov_count));
    if (!posted.is_ok()) {
        return posted.error() == ENOMEM ? Status(EAGAIN) : posted;
    }
    free_rx_ = std::exchange(rx_[i], {.context = request.context,
                                      .buffer = name_of_first(request),
                                      .use = request.use,
                                      .room = util::iov_length(request.iov, request.iov_count),
                                      .next = kNone,
                                      .completes = has(request.flags, RdFlags::kCompletion),
                                      .is_posted = true})
                   .next;
    return kOk;
}

void UdEndpoint::free_rx_locked(std::uint32_t i) noexcept {
    rx_[i].is_posted = false;
    rx_[i].next = free_rx_;
    free_rx_ = i;
}

void UdEndpoint::finish_recv_locked(const Wc& wc) noexcept {
    const auto i = static_cast<std::uint32_t>(wc.wr_id & ~kRecvBit);
    if (staging_ == nullptr) [[likely]] {
        free_rx_locked(i);
        report_recv_locked(rx_[i], grhs_[i], wc);
        return;
    }
    const std::size_t bytes = wc.status == WcStatus::kSuccess ? wc.byte_len - kGrhBytes : 0;
    const auto taken = staging_->take(i, bytes);
    if (!taken) {
        host_->device().stats().add(Stat::kDrops);  // for a receive that has been cancelled
        return;
    }
    free_rx_locked(taken->receive);
    report_recv_locked(rx_[taken->receive], taken->grh, wc);
}

void UdEndpoint::report_recv_locked(const RxRecord& record,
                                    std::span<const std::byte, kGrhBytes> grh,
                                    const Wc& wc) noexcept {
    const bool has_message = wc.status == WcStatus::kSuccess;
    const std::uint64_t bytes = has_message ? wc.byte_len - kGrhBytes : 0;
    const std::uint64_t len = std::min(bytes, record.room);
    WcStatus status = bytes > len ? WcStatus::kTruncated : wc.status;
    if (record.use != nullptr) [[unlikely]] {
        status = end_use(*record.use, status, len);
    }
    const bool has_data = has_any(wc.flags, WcFlags::kWithImm);
    count(completion_.recv, status);
    if (completion_.rx_cq == nullptr || (!record.completes && status == WcStatus::kSuccess)) {
        return;
    }
    // fi_cq(3): that it was sent to a group is for who asks for sources.
    const bool is_to_group =
        has_sources_ && has_message && !groups_.empty() && is_multicast(grh_dest(grh));
    completion_.rx_cq->emplace([&](Cqe& cqe) {
        cqe = {
            .op_context = record.context,
            .flags = kWcMsg | kWcRecv | (has_data ? kWcRemoteCqData : 0) |
                     (is_to_group ? kWcMulticast : 0),
            .len = len,
            .buf = record.buffer,
            .data = has_data ? wc.imm : 0,
            .source = has_sources_ && has_message ? source_of(grh, wc) : kSourceNotAvailable,
            .status = status,
            .extra = static_cast<std::uint32_t>(status == WcStatus::kTruncated ? bytes - len : 0)};
    });
}

/// The number of who sent; the pair has written the route header from the packet's own addresses.
std::uint64_t UdEndpoint::source_of(std::span<const std::byte, kGrhBytes> grh,
                                    const Wc& wc) const noexcept {
    Address source{.gid = grh_source(grh),
                   .port = wc.src_port != 0 ? wc.src_port : host_->address().port};
    if (resolver_ != nullptr) {
        const auto name = resolver_->source_of(source, wc.src_qpn);
        if (!name.is_ok()) {
            return kSourceNotAvailable;
        }
        source.port = name.value().port;
    }
    const auto number = av_->find(to_sock_addr(source));
    return number.is_ok() ? number.value() : kSourceNotAvailable;
}

bool UdEndpoint::take_back_locked(std::uint32_t i) noexcept {
    return staging_ != nullptr ? staging_->cancel(i) : qp_->take_back_recv(i | kRecvBit).is_ok();
}

Status UdEndpoint::cancel_locked(void* context) noexcept {
    for (std::uint32_t i = 0; i < rx_.size(); ++i) {
        if (rx_[i].is_posted && rx_[i].context == context && take_back_locked(i)) {
            free_rx_locked(i);
            report_recv_locked(rx_[i], grhs_[i], {.status = WcStatus::kCanceled});
            return kOk;
        }
    }
    return ENOENT;
}

// ---- peers ----

const UdEndpoint::Peer* UdEndpoint::find_peer_locked(std::uint64_t dest) const noexcept {
    if (is_group(dest)) [[unlikely]] {
        const std::uint64_t i = dest & ~kGroupBit;
        return i < groups_.size() && groups_[i].sends ? &groups_[i].peer : nullptr;
    }
    return dest < peers_.size() && peers_[dest].ah != nullptr ? &peers_[dest] : nullptr;
}

// ---- progress ----

unsigned UdEndpoint::progress_locked() noexcept {
    // relaxed: a hint, which one thread at a time writes.
    polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return is_hot() || polling_.is_cheap ? poll_locked() : 0;
}

unsigned UdEndpoint::poll_locked() noexcept {
    Device& device = host_->device();
    // What a reader has no room for waits in the socket or ring, where it is lost last.
    const bool is_held_up = completion_.rx_cq != nullptr && completion_.rx_cq->has_overflow();
    if (!is_held_up) {
        sharing_ == nullptr ? static_cast<void>(device.progress()) : sharing_->poll();
    }
    unsigned moved = drain_locked();
    if (sharing_ != nullptr) {
        moved += is_nic_gone() ? end_with_nic_locked() : 0;
        run_shared_locked(moved);
    }
    const bool is_at_rest = is_quiet_locked(moved) || is_held_up;
    if (moved != 0 && !is_hot()) {
        mark_hot();  // come to rest again later
    }
    if (is_hot() && is_at_rest && !awaits_send_locked() && arm_device_locked().is_ok()) {
        // relaxed: the host looks from here on, at what has come by now too.
        is_hot_.store(false, std::memory_order_relaxed);
        host_->leave_to_host();
    }
    return moved;
}

void UdEndpoint::run_shared_locked(unsigned moved) noexcept {
    if (av_ != nullptr) {  // opened, for its name to be known, before it is bound
        resolver_->run_locked(*av_);
    }
    if (moved != 0 && sleepers.may_any_sleep()) [[unlikely]] {
        ask_for_notice_locked();  // somebody sleeps on
    }
}

/// Whether nothing has come for a while.
bool UdEndpoint::is_quiet_locked(unsigned moved) noexcept {
    if (polling_.idle_us == UdPolling::kNever) {
        return false;
    }
    const std::uint64_t now = host_->device().now_us();
    if (moved != 0) {
        last_arrival_us_ = now;
    }
    const std::uint64_t quiet_us = now - last_arrival_us_;
    if (quiet_us < polling_.idle_us) {
        return false;
    }
    polling_ = host_->polling();  // peers may have come, or gone, by another way
    return quiet_us >= polling_.idle_us;
}

/// What waits ends at once, what the NIC has when it has flushed that, or its time is over: at
/// once where nobody sees what it flushes.
/// Returns: how many datagrams have.
unsigned UdEndpoint::end_with_nic_locked() noexcept {
    const std::uint64_t now = host_->device().now_us();
    if (lost_due_us_ == 0) {
        const Status flushed = qp_->modify({.state = QpState::kErr}, QpMask::kState);
        lost_due_us_ = flushed.is_ok() && !cq_->has_failed() ? now + kFlushUs : now;
        resolver_->fail_all_locked(WcStatus::kWrFlushErr);
    }
    const unsigned taken = drain_locked();
    return now < lost_due_us_ || is_lost_ ? taken : taken + flush_lost_locked();
}

/// The NIC touches no memory of the pair any more, if there is one at all.
unsigned UdEndpoint::flush_lost_locked() noexcept {
    [[maybe_unused]] const Status stopped = qp_->modify({.state = QpState::kReset}, QpMask::kState);
    unsigned ended = drain_locked();
    is_lost_ = true;
    for (; tx_head_ != tx_tail_; ++ended) {
        finish_send_locked({.wr_id = tx_head_, .status = WcStatus::kWrFlushErr});
    }
    for (std::uint32_t i = 0; i < rx_.size(); ++i) {
        if (rx_[i].is_posted) {
            free_rx_locked(i);
            report_recv_locked(rx_[i], grhs_[i], {.status = WcStatus::kWrFlushErr});
            ++ended;
        }
    }
    return ended;
}

/// Takes the pair's completions over. Returns: how many.
unsigned UdEndpoint::drain_locked() noexcept {
    if (is_lost_) [[unlikely]] {
        return 0;
    }
    std::array<Wc, 16> wcs;
    unsigned all = 0;
    unsigned taken = 0;
    do {
        taken = cq_->take(wcs);
        for (unsigned i = 0; i < taken; ++i) {
            (wcs[i].wr_id & kRecvBit) != 0 ? finish_recv_locked(wcs[i])
                                           : finish_send_locked(wcs[i]);
        }
        all += taken;
    } while (taken == wcs.size());
    return all;
}

Status UdEndpoint::arm_locked() noexcept {
    Device& device = host_->device();
    device.flush();
    if (poll_locked() != 0 || awaits_send_locked()) {
        return EAGAIN;
    }
    mark_hot();  // what wakes the sleeper is looked for at once
    return arm_device_locked();
}

void UdEndpoint::disarm_locked() noexcept {
    mark_hot();
    if (sharing_ != nullptr) {
        sharing_->expect_traffic();
    }
}

/// Of what others take in on a shared device the queue tells.
Status UdEndpoint::arm_device_locked() noexcept {
    Device& device = host_->device();
    if (sharing_ == nullptr) {
        return device.ops().arm(device);
    }
    ask_for_notice_locked();
    const Status armed = sharing_->arm();
    // Of the queue of a NIC only a look says whether it has something.
    const bool has_entries = staging_ != nullptr ? drain_locked() != 0 : cq_->may_have_entries();
    const bool has_any = has_entries || resolver_->has_news();
    return has_any ? Status(EAGAIN) : armed;
}

void UdEndpoint::ask_for_notice_locked() noexcept {
    channel_->clear();
    [[maybe_unused]] const Status asked = cq_->req_notify(false);
}

}  // namespace rvt::core
