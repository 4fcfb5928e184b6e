// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Frames of flows in receives of a NIC.
#include "core/rd_nic.h"

#include <algorithm>
#include <utility>

#include <sys/epoll.h>
#include <sys/mman.h>

#include "core/rd_flow.h"
#include "core/rd_frame_ring.h"
#include "core/shortage.h"
#include "util/log.h"

namespace rvt::core {
namespace {

// As many as the limit of locked memory allows.
constexpr std::uint32_t kReceives[] = {512, 256, 128, 64, 32};
constexpr std::uint32_t kFreeShare = 8;  // of which not more than this part waits to be posted
constexpr std::uint64_t kMostRdmaBytes = 1u << 30;
constexpr std::uint64_t kIsReceive = std::uint64_t{1} << 63;
// Not every driver says that a pair takes no more receives.
constexpr std::uint64_t kLastReceiveUs = 1'000'000;

/// Of a receive, by its wr_id.
constexpr std::uint32_t index_of(std::uint64_t receive) noexcept {
    return static_cast<std::uint32_t>(receive);
}
/// In the receives' memory. What makes it a receive is multiplied away.
constexpr std::uint64_t place_of(std::uint64_t receive) noexcept {
    return receive * RdNic::kFrameBytes;
}
static_assert(place_of(kIsReceive | 3) == std::uint64_t{3} * RdNic::kFrameBytes);

}  // namespace

void RdNic::Unmap::operator()(std::byte* memory) const noexcept {
    munmap(memory, bytes);
}

// ---- life ----

Result<std::unique_ptr<RdNic>> RdNic::open(Device& device, const RegCacheAttr& registrations,
                                           RdChores& chores) {
    std::unique_ptr<RdNic> nic(new RdNic(device, chores));
    const Status started = nic->start(registrations);
    return started.is_ok() ? Result<std::unique_ptr<RdNic>>(std::move(nic))
                           : Result<std::unique_ptr<RdNic>>(started);
}

/// The memory of pairs that are left is named by nobody else.
RdNic::~RdNic() {
    leaving_.clear();
    const util::Guard guard(memory_lock_);
    for (Rdma& rdma : rdmas_) {
        give_back_locked(rdma);
    }
}

Status RdNic::start(const RegCacheAttr& registrations) {
    Status made = keep(context_, open_device(device_));
    if (made.is_ok()) {
        made = keep(channel_, create_comp_channel(*context_));
    }
    if (made.is_ok()) {
        made = keep(pd_, alloc_pd(*context_));
    }
    const std::uint32_t depth = std::min(device_.limits().max_cqe, kMostCqe);
    if (made.is_ok()) {
        made = keep(cq_, create_cq(*context_, depth, channel_.get()));
    }
    if (made.is_ok()) {
        made = start_receives();
    }
    if (made.is_ok()) {
        made = make_wake_set();
    }
    if (made.is_ok()) {
        max_flows_ = (depth - receives_->query().max_wr) / (RdFrameRing::kMaxFrames + kMostRdma);
        RegCacheAttr attr = registrations;
        attr.pd = pd_.get();
        cache_ = std::make_unique<RegCache>(std::move(attr));
    }
    return made.is_ok() && max_flows_ == 0 ? Status(ENOSPC) : made;
}

/// The device's events are those of all who use it: where another takes one of ours, it comes to
/// the channel. What happens to the NIC wakes sleepers as well: of one that is gone nothing
/// completes.
Status RdNic::make_wake_set() {
    wake_set_.reset(epoll_create1(EPOLL_CLOEXEC));
    for (const int fd : {device_.ops().wake_fd(device_), channel_->fd(), context_->events().fd()}) {
        epoll_event event{};
        event.events = EPOLLIN;
        if (epoll_ctl(wake_set_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
            return errno;
        }
    }
    return kOk;
}

Status RdNic::start_receives() {
    Status made = ENOMEM;
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < std::size(kReceives) && !made.is_ok(); ++i) {
        count = std::min(kReceives[i], device_.limits().max_srq_wr);
        const std::size_t bytes = std::size_t{count} * kFrameBytes;
        void* const memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            continue;
        }
        memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
        const iovec segment{memory, bytes};
        made =
            keep(region_, reg_mr(*pd_, {.segments = {&segment, 1}, .access = Access::kLocalWrite}));
    }
    if (made.is_ok()) {
        made = keep(receives_, create_srq(*pd_, {.max_wr = count, .max_sge = 1}));
    }
    if (!made.is_ok()) {
        return made;
    }
    const auto memory = reinterpret_cast<std::uint64_t>(memory_.get());
    for (std::uint32_t i = 0; i < count; ++i) {
        rooms_.push_back({.addr = memory + std::uint64_t{i} * kFrameBytes,
                          .length = kFrameBytes,
                          .lkey = region_->lkey()});
    }
    held_.reserve(count);
    for (std::uint32_t i = 0; i < count && made.is_ok(); ++i) {
        free_[free_count_++] = kIsReceive | i;
        made = free_count_ == kMostFree || i + 1 == count ? post_free() : kOk;
    }
    most_free_ = std::clamp(count / kFreeShare, 1u, kMostFree);
    return made;
}

Result<IbPort> RdNic::port() noexcept {
    return device_.ops().ib_port(device_);
}

Status RdNic::make_pair(RdFlow& flow, const IbPort& port, Owned<Qp>& place) {
    const util::Guard guard(lock_);
    if (is_gone_ || flows_.size() >= max_flows_) {
        return refuse(is_gone_ ? ENODEV : ENOSPC, "");
    }
    Status made = keep(
        place, create_qp(*pd_, {.type = QpType::kRc,
                                .send_cq = cq_.get(),
                                .recv_cq = cq_.get(),
                                .srq = receives_.get(),
                                .cap = {.max_send_wr = RdFrameRing::kMaxFrames + kMostRdma,
                                        .max_recv_wr = 0,
                                        .max_send_sge = 1,
                                        .max_recv_sge = 0,
                                        .max_inline_bytes = device_.limits().max_inline_bytes}}));
    if (made.is_ok()) {
        made = place->modify({.state = QpState::kInit,
                              .access = Access::kRemoteRead | Access::kRemoteWrite,
                              .pkey_index = port.pkey_index},
                             QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess);
    }
    if (made.is_ok()) {
        flows_[place->qpn()] = &flow;
        note_pairs_locked();
    }
    return made.is_ok() ? made : refuse(made, pair_shortage(device_, made).c_str());
}

Status RdNic::register_frames(std::span<std::byte> memory, Owned<Mr>& place) {
    const iovec segment{memory.data(), memory.size()};
    const Status made = keep(place, reg_mr(*pd_, {.segments = {&segment, 1}}));
    return made.is_ok() ? made : refuse(made, region_shortage(device_, made).c_str());
}

void RdNic::retire(Owned<Qp> pair) noexcept {
    if (pair->state() == QpState::kInit) {  // it has never taken a receive
        const util::Guard guard(lock_);
        flows_.erase(pair->qpn());
        note_pairs_locked();
        return;
    }
    known_[pair->qpn() % known_.size()] = {};
    {
        const util::Guard guard(lock_);
        flows_[pair->qpn()] = nullptr;
    }
    const Status ends = pair->modify({.state = QpState::kErr}, QpMask::kState);
    const bool has_told = std::erase(told_, pair.get()) != 0;
    leaving_.push_back({.pair = std::move(pair),
                        .until_us = ends.is_ok() ? device_.now_us() + kLastReceiveUs : 0,
                        .has_told = has_told});
}

/// Destroys the pairs that hold no receives any more.
/// @param is_all_read  The queue has been found empty, after the NIC's word was heard.
void RdNic::end_left(bool is_all_read) noexcept {
    const std::uint64_t now = device_.now_us();
    std::erase_if(leaving_, [&](Leaving& one) {
        const bool ends = (one.has_told && is_all_read) || now >= one.until_us;
        if (ends) {
            const std::uint32_t qpn = one.pair->qpn();
            {
                // Before its number is free: make_pair() may get it at once.
                const util::Guard guard(lock_);
                flows_.erase(qpn);
                note_pairs_locked();
            }
            one.pair.reset();
            lose_rdma_of(qpn);  // of which nothing was said
        }
        return ends;
    });
}

void RdNic::note_pairs_locked() noexcept {
    pair_count_.store(flows_.size(), std::memory_order_relaxed);  // relaxed: see is_in_use()
}

/// Says once that the NIC does not carry what is asked of it.
Status RdNic::refuse(Status why, const char* what_to_change) noexcept {
    // relaxed: a flag on its own.
    if (!has_refused_.exchange(true, std::memory_order_relaxed)) {
        RVT_WARN(kEpCtrl, "NIC %s carries no further flow: %s; packets will do%s",
                 device_.name().c_str(), strerrordesc_np(why.error()), what_to_change);
    }
    return why;
}

// ---- the application's memory ----

std::uint32_t RdLoan::key() const noexcept {
    return imported != nullptr ? (*imported)->rkey() : region->rkey();
}

void RdLoan::end() noexcept {
    imported.reset();
    if (region != nullptr) {
        nic->end_loan(*std::exchange(region, nullptr));
    }
}

CachedRegion* RdNic::lend(const iovec& memory) noexcept {
    const util::Guard guard(memory_lock_);
    const auto region =
        cache_->take(memory.iov_base, memory.iov_len, RegCache::Nic::kReads, RegCache::Want::kKept);
    return region.is_ok() ? region.value() : nullptr;
}

void RdNic::end_loan(CachedRegion& region) noexcept {
    const util::Guard guard(memory_lock_);
    cache_->give_back(region);
}

ImportedRegion RdNic::import(const BufferUse::NicPlace& place) noexcept {
    const util::Guard guard(memory_lock_);
    const auto [known, is_new] = imported_.try_emplace(place.key);
    if (!is_new) {
        return known->second;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the device's
    const iovec named{reinterpret_cast<void*>(place.begin), place.bytes};
    auto region = std::make_shared<Owned<Mr>>();
    const Status made =
        keep(*region, reg_mr(*pd_, {.segments = {&named, 1},
                                    .access = Access::kLocalWrite | Access::kRemoteRead,
                                    .device = place.memory}));
    if (made.is_ok()) {
        known->second = std::move(region);
    }
    RVT_INFO(kMr, "NIC %s %s %llu bytes of a device's memory at 0x%llx%s%s", device_.name().c_str(),
             made.is_ok() ? "reaches" : "does not import",
             static_cast<unsigned long long>(place.bytes),
             static_cast<unsigned long long>(place.begin),
             made.is_ok() ? " by itself" : ", which go in frames: ",
             made.is_ok() ? "" : strerrordesc_np(made.error()));
    return known->second;
}

bool RdNic::is_too_long(std::uint64_t bytes) const noexcept {
    return bytes > std::min<std::uint64_t>(device_.limits().max_message_bytes, kMostRdmaBytes);
}

std::uint32_t RdNic::keep_rdma_locked(Rdma rdma) noexcept {
    if (free_rdmas_.empty()) {
        free_rdmas_.push_back(static_cast<std::uint32_t>(rdmas_.size()));
        rdmas_.emplace_back();
    }
    const std::uint32_t index = free_rdmas_.back();
    free_rdmas_.pop_back();
    rdmas_[index] = std::move(rdma);
    return index;
}

std::optional<RdNic::Begun> RdNic::begin_rdma(const iovec& local, RegCache::Nic use, const Qp& qp,
                                              std::uint64_t name) noexcept {
    if (is_too_long(local.iov_len)) {
        return {};
    }
    const util::Guard guard(memory_lock_);
    const auto region = cache_->take(local.iov_base, local.iov_len, use, RegCache::Want::kKept);
    if (!region.is_ok()) {
        return {};
    }
    return Begun{
        .index = keep_rdma_locked({.region = region.value(), .qpn = qp.qpn(), .name = name}),
        .local = {.addr = reinterpret_cast<std::uint64_t>(local.iov_base),
                  .length = static_cast<std::uint32_t>(local.iov_len),
                  .lkey = region.value()->lkey()}};
}

std::optional<RdNic::Begun> RdNic::begin_rdma(const BufferUse::NicPlace& place, std::uint64_t bytes,
                                              const Qp& qp, std::uint64_t name) noexcept {
    ImportedRegion imported = is_too_long(bytes) ? nullptr : import(place);
    if (imported == nullptr) {
        return {};
    }
    const std::uint32_t lkey = (*imported)->lkey();
    const util::Guard guard(memory_lock_);
    return Begun{
        .index = keep_rdma_locked({.imported = std::move(imported), .qpn = qp.qpn(), .name = name}),
        .local = {
            .addr = place.address, .length = static_cast<std::uint32_t>(bytes), .lkey = lkey}};
}

void RdNic::give_back_locked(Rdma& rdma) noexcept {
    rdma.imported.reset();
    if (rdma.region != nullptr) {
        cache_->give_back(*std::exchange(rdma.region, nullptr));
    }
}

std::uint64_t RdNic::free_rdma_locked(std::uint32_t index) noexcept {
    Rdma& rdma = rdmas_[index];
    give_back_locked(rdma);
    free_rdmas_.push_back(index);
    return rdma.name;
}

void RdNic::end_rdma(std::uint32_t index) noexcept {
    const util::Guard guard(memory_lock_);
    free_rdma_locked(index);
}

void RdNic::lose_rdma(std::uint32_t index) noexcept {
    const util::Guard guard(memory_lock_);
    note_lost_locked(free_rdma_locked(index), WcStatus::kPeerDead);
}

/// Returns: nothing for one that has ended with its pair.
std::optional<std::uint64_t> RdNic::rdma_has_ended(const Wc& wc) noexcept {
    const auto index = static_cast<std::uint32_t>(wc.wr_id & ~kIsRdma);
    const util::Guard guard(memory_lock_);
    if (!rdmas_[index].is_any() || rdmas_[index].qpn != wc.qpn) {
        return {};
    }
    return free_rdma_locked(index);
}

void RdNic::lose_rdma_of(std::uint32_t qpn) noexcept {
    const util::Guard guard(memory_lock_);
    for (std::uint32_t index = 0; index < rdmas_.size(); ++index) {
        if (rdmas_[index].is_any() && rdmas_[index].qpn == qpn) {
            note_lost_locked(free_rdma_locked(index), WcStatus::kPeerDead);
        }
    }
}

void RdNic::note_lost_locked(std::uint64_t name, WcStatus status) noexcept {
    lost_.push_back({.name = name, .status = status});
    has_lost_.store(true, std::memory_order_relaxed);  // relaxed: see has_lost()
    chores_.note();
}

void RdNic::note_lost(std::uint64_t name) noexcept {
    const util::Guard guard(memory_lock_);
    note_lost_locked(name, WcStatus::kPeerDead);
}

std::vector<RdNic::Lost> RdNic::take_lost() noexcept {
    const util::Guard guard(memory_lock_);
    has_lost_.store(false, std::memory_order_relaxed);  // relaxed: see has_lost()
    return std::exchange(lost_, {});
}

void RdNic::take_rdma(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept {
    const auto name = rdma_has_ended(wc);
    if (!name) {
        return;
    }
    RdFlow* const flow = find(wc.qpn);
    const bool is_done = flow != nullptr && wc.status == WcStatus::kSuccess;
    if (is_done && flow->note_rdma_done(*name)) [[likely]] {
        return;
    }
    if (!is_done) {
        // Of a pair that fails, the first request says why.
        const bool is_refused = wc.status == WcStatus::kRemAccessErr;
        const util::Guard guard(memory_lock_);
        note_lost_locked(*name, is_refused ? wc.status : WcStatus::kPeerDead);
    }
    if (flow != nullptr) {
        failed.push_back(flow->id());
    }
}

// ---- regions ----

Mr* RdNic::expose(std::uint32_t key, const iovec& memory, Access rights,
                  DeviceMemory* device) noexcept {
    const util::Guard guard(memory_lock_);
    Owned<Mr>& place = exposed_[key];
    if (place == nullptr) {
        const bool is_written = has_all(rights, Access::kRemoteWrite);
        const Status made =
            keep(place, reg_mr(*pd_, {.segments = {&memory, 1},
                                      .access = is_written ? rights | Access::kLocalWrite : rights,
                                      .device = device}));
        if (!made.is_ok()) {
            exposed_.erase(key);
            RVT_INFO(kMr, "NIC %s does not reach %zu bytes at %p for peers: %s; frames will do",
                     device_.name().c_str(), memory.iov_len, memory.iov_base,
                     strerrordesc_np(made.error()));
            return nullptr;
        }
        RVT_INFO(kMr, "NIC %s reaches %zu bytes at %p for peers", device_.name().c_str(),
                 memory.iov_len, memory.iov_base);
    }
    return place.get();
}

bool RdNic::withdraw(std::uint32_t key) noexcept {
    const util::Guard guard(memory_lock_);
    imported_.erase(key);
    return exposed_.erase(key) != 0;
}

// ---- events ----

void RdNic::take_events(std::vector<std::uint64_t>& failed) noexcept {
    while (const auto event = context_->events().poll()) {
        switch (event->type) {
            case EventType::kQpLastWqeReached: note_last_receive(event->object); break;
            case EventType::kQpFatal:
            case EventType::kQpReqErr:
            case EventType::kQpAccessErr:
                if (const RdFlow* flow = find(static_cast<const Qp*>(event->object)->qpn())) {
                    failed.push_back(flow->id());
                }
                break;
            case EventType::kCqErr:
            case EventType::kDeviceFatal: fail_all(failed); break;
            default: break;
        }
    }
}

void RdNic::note_last_receive(const Object* pair) noexcept {
    for (Leaving& one : leaving_) {
        if (one.pair.get() == pair) {
            one.has_told = true;
            return;
        }
    }
    told_.push_back(pair);  // its flow is about to be closed
}

void RdNic::fail_all(std::vector<std::uint64_t>& failed) noexcept {
    {
        const util::Guard guard(lock_);
        is_gone_ = true;
        for (const auto& [qpn, flow] : flows_) {
            if (flow != nullptr) {
                failed.push_back(flow->id());
            }
        }
    }
    for (Leaving& one : leaving_) {
        one.until_us = 0;
    }
    [[maybe_unused]] const Status refused = refuse(ENODEV, "");
}

// ---- traffic ----

RVT_ALWAYS_INLINE void RdNic::give_back(std::uint64_t receive) noexcept {
    free_[free_count_] = receive;
    if (++free_count_ == most_free_) [[unlikely]] {
        post_free_ones();
    }
}

/// Posts the receives that have been given back. Where the NIC does not take them, peers would wait
/// for ever in the end: its flows end, and others go by packets.
void RdNic::post_free_ones() noexcept {
    if (const Status posted = post_free(); !posted.is_ok()) [[unlikely]] {
        RVT_WARN(kEpData, "NIC %s does not take receives back: %s; packets will do",
                 device_.name().c_str(), strerrordesc_np(posted.error()));
        context_->events().post({.type = EventType::kDeviceFatal, .object = nullptr});
    }
}

Status RdNic::post_free() noexcept {
    std::array<RecvWr, kMostFree> wrs;
    const unsigned count = std::exchange(free_count_, 0);
    for (unsigned i = 0; i < count; ++i) {
        wrs[i] = {.wr_id = free_[i], .sg_list = {&rooms_[index_of(free_[i])], 1}};
    }
    return receives_->post_recvs({wrs.data(), count});
}

RVT_ALWAYS_INLINE RdFlow* RdNic::find(std::uint32_t qpn) noexcept {
    const Known& known = known_[qpn % known_.size()];
    return known.qpn == qpn ? known.flow : look_up(qpn);
}

RdFlow* RdNic::look_up(std::uint32_t qpn) noexcept {
    const util::Guard guard(lock_);
    const auto found = flows_.find(qpn);
    if (found == flows_.end() || found->second == nullptr) {
        return nullptr;
    }
    known_[qpn % known_.size()] = {.qpn = qpn, .flow = found->second};
    return found->second;
}

/// Returns: false when its flow has no room now.
RVT_ALWAYS_INLINE bool RdNic::take_frame(const Wc& wc) noexcept {
    RdFlow* const flow = find(wc.qpn);
    if (flow != nullptr) {
        if (!flow->can_take()) {
            return false;
        }
        flow->take_frame({&memory_[place_of(wc.wr_id)], wc.byte_len});
    }
    give_back(wc.wr_id);
    return true;
}

/// Whether there is no way past them, however much room there is.
RVT_ALWAYS_INLINE bool RdNic::holds_frames_of(std::uint32_t qpn) const noexcept {
    return has_held() && std::ranges::find(held_, qpn, &Wc::qpn) != held_.end();
}

/// A receive that has failed, and with it the pair: the peer may send nothing by which it would
/// learn of that.
[[gnu::cold]] void RdNic::take_lost_receive(const Wc& wc,
                                            std::vector<std::uint64_t>& failed) noexcept {
    if (const RdFlow* const flow = find(wc.qpn); flow != nullptr) {
        failed.push_back(flow->id());
    }
    give_back(wc.wr_id);
}

RVT_ALWAYS_INLINE void RdNic::take(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept {
    if ((wc.wr_id & kIsReceive) == 0) {
        take_sent(wc, failed);
    } else if (wc.status != WcStatus::kSuccess) [[unlikely]] {
        take_lost_receive(wc, failed);
    } else if (holds_frames_of(wc.qpn) || !take_frame(wc)) [[unlikely]] {
        hold(wc);
    }
}

void RdNic::hold(const Wc& wc) noexcept {
    held_.push_back(wc);
    chores_.note();
}

/// The completion of something that a flow has posted.
[[gnu::noinline]] void RdNic::take_sent(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept {
    if ((wc.wr_id & kIsRdma) != 0) {
        take_rdma(wc, failed);
        return;
    }
    RdFlow* const flow = find(wc.qpn);
    if (flow != nullptr && wc.status == WcStatus::kSuccess) [[likely]] {
        flow->note_sent(wc.wr_id);
    } else if (flow != nullptr) {
        failed.push_back(flow->id());
    }
}

void RdNic::hand_over_held() noexcept {
    std::erase_if(held_, [&](const Wc& wc) { return take_frame(wc); });
}

unsigned RdNic::poll(std::vector<std::uint64_t>& failed) noexcept {
    if (context_->events().may_have_some()) [[unlikely]] {
        take_events(failed);
    }
    unsigned taken = 0;
    unsigned count = unheeded_ == 0 ? cq_->poll(read_) : std::exchange(unheeded_, 0);
    while (count != 0) {
        for (const Wc* wc = read_.data(); wc != read_.data() + count; ++wc) {
            take(*wc, failed);
        }
        taken += count;
        // Pairs that leave wait for a look that finds nothing.
        if ((count < read_.size() && leaving_.empty()) || taken >= kEnoughPerPoll) [[likely]] {
            break;
        }
        count = cq_->poll(read_);
    }
    if (!leaving_.empty()) [[unlikely]] {
        end_left(count == 0);
    }
    return taken;
}

/// In this order: what the device has of ours comes to the channel.
void RdNic::clear_wake_fd() noexcept {
    device_.progress();
    channel_->clear();
}

Status RdNic::arm() noexcept {
    clear_wake_fd();  // what the queue has said until now is no news
    if (!is_in_use()) {
        return kOk;
    }
    if (const Status armed = cq_->req_notify(false); !armed.is_ok()) {
        return armed;
    }
    if (unheeded_ == 0) {
        unheeded_ = cq_->poll(read_);
    }
    return unheeded_ != 0 ? Status(EAGAIN) : kOk;
}

}  // namespace rvt::core
