// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Life of an endpoint's flows, and their traffic.
#include "core/rd_flows.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <sched.h>

#include "core/mr.h"
#include "core/qp.h"
#include "core/shortage.h"
#include "util/log.h"

namespace rvt::core {
namespace {

constexpr std::uint64_t kIdleUs = 50;      // after the last packet there is more to come
constexpr std::uint64_t kSoonUs = 20'000;  // what is due by then is not left to others
// Polls of a NIC's queue alone between two looks at the clock.
constexpr std::uint32_t kPollsPerLook = 64;
constexpr std::uint32_t kErrorCqe = 64;
// How long the end of an endpoint waits for peers that answer.
constexpr auto kLingerTime = std::chrono::seconds(10);

std::uint64_t random_number() {
    std::random_device source;
    return (std::uint64_t{source()} << 32) | source();
}

}  // namespace

std::size_t RdFlows::AddressHash::operator()(const Address& address) const noexcept {
    std::size_t hash = address.port;
    for (const std::uint8_t byte : address.gid) {
        hash = hash * 31 + byte;
    }
    return hash;
}

// ---- life ----

RdFlows::RdFlows(const RdFlowsAttr& attr)
    : device_(*attr.device),
      taker_(attr.taker),
      user_(attr.user),
      own_(attr.own),
      connect_timeout_us_(std::uint64_t{attr.connect_timeout_ms} * 1000),
      refused_timeout_us_(std::uint64_t{attr.refused_timeout_ms} * 1000),
      linger_silence_(attr.linger_silence_ms),
      max_flows_(attr.max_flows),
      is_hot_(*attr.is_hot),
      random_(random_number() | 1) {}

Result<std::unique_ptr<RdFlows>> RdFlows::open(const RdFlowsAttr& attr) {
    std::unique_ptr<RdFlows> flows(new RdFlows(attr));
    const Status status = flows->start(attr.nic, attr.registrations);
    if (!status.is_ok()) {
        return status;
    }
    return flows;
}

Status RdFlows::start(Device* nic, const RegCacheAttr& registrations) {
    Status made = keep(context_, open_device(device_));
    if (made.is_ok()) {
        made = keep(pd_, alloc_pd(*context_));
    }
    if (made.is_ok()) {
        pd_->allow_local_dma();
        made = keep(cq_, create_cq(*context_, kErrorCqe));
    }
    if (!made.is_ok()) {
        return made;
    }
    if (nic != nullptr) {
        auto opened = RdNic::open(*nic, registrations, chores_);
        if (opened.is_ok()) {
            nic_ = opened.take();
        } else {
            RVT_WARN(kEpCtrl, "NIC %s carries no flows: %s; packets will do%s", nic->name().c_str(),
                     strerrordesc_np(opened.error()),
                     region_shortage(*nic, opened.status()).c_str());
        }
    }
    const util::Guard guard(lock_);
    const CmConfig config{.local = device_.address(),
                          .ca_guid = own_.incarnation,
                          .secret = {random_number(), random_number()}};
    CmWire& wire = *this;
    agent_ = std::make_unique<CmAgent>(config, wire);
    device_.set_mad_sink(this);
    return agent_->listen(kRdServiceId, 0);
}

RdFlows::~RdFlows() {
    linger();
    device_.flush();  // what has come is acknowledged before the end
    device_.set_mad_sink(nullptr);
    const util::Guard guard(lock_);
    for (auto& [id, link] : links_) {
        if (link.state == State::kOpen || link.state == State::kAccepted) {
            // The peer learns at once; should the message be lost, when it sends next.
            [[maybe_unused]] const Status told =
                agent_->disconnect(link.handle, {}, device_.now_us());
        }
        destroy_locked(link);
    }
}

/// Sends what has been accepted from the application. The time is the system's: a device's clock
/// may stand still.
void RdFlows::linger() noexcept {
    using Clock = std::chrono::steady_clock;
    const auto is_open = [&](RdFlow& flow) {
        return !flow.is_closed_ && flow.qp_ != nullptr && flow.qp_->state() == QpState::kRts &&
               !flow.is_drained();
    };
    std::vector<RdFlow*> left;
    {
        const util::Guard guard(lock_);
        for (auto& [id, link] : links_) {
            if (link.state == State::kOpen && is_open(*link.flow)) {
                left.push_back(link.flow.get());
            }
            link.flow->is_closed_ = true;  // nothing is handed over any more
        }
    }
    const auto began = Clock::now();
    auto heard = began;
    while (!left.empty() && Clock::now() - heard < linger_silence_ &&
           Clock::now() - began < kLingerTime) {
        settle_heard();
        flush_open();
        const unsigned carried = nic_ != nullptr ? poll_nic() : 0;
        if (device_.progress() + carried != 0) {
            heard = Clock::now();
        } else {
            device_.sleep_on(-1, 1);
        }
        forget_ended(left);
        std::erase_if(left, [](RdFlow* flow) {
            return flow->is_drained() || flow->qp_->state() != QpState::kRts;
        });
    }
}

/// Takes out of `flows` those whose peer has said that it is going: nothing reaches it any more.
void RdFlows::forget_ended(std::vector<RdFlow*>& flows) noexcept {
    const util::Guard guard(lock_);
    while (const auto event = agent_->poll_event()) {
        Link* const link =
            event->type == CmEventType::kDisconnected ? find_locked(event->context) : nullptr;
        if (link != nullptr && link->handle == event->handle) {
            link->state = State::kEnded;
            std::erase(flows, link->flow.get());
        }
    }
}

void RdFlows::destroy_locked(Link& link) noexcept {
    RdFlow& flow = *link.flow;
    if (flow.nic_ != nullptr && flow.qp_ != nullptr) {
        flow.drop_reads();
        nic_->retire(std::move(flow.qp_));
    }
    flow.qp_.reset();
    {
        const util::Guard guard(open_lock_);
        std::erase(open_, &flow);
    }
    std::erase(waiting_, &flow);
    std::erase(heard_, &flow);
    std::erase(left_, &flow);
    std::erase_if(news_, [&](const News& news) { return news.flow == &flow; });
    for (const RdFlow::Part& part : flow.parts_) {
        waiting_bytes_ -= part.bytes.size();
    }
}

/// Destroys what the owner has closed.
void RdFlows::reap() noexcept {
    // relaxed: what is closed right now is seen at the next call.
    if (!has_closed_.load(std::memory_order_relaxed)) [[likely]] {
        return;
    }
    const util::Guard guard(lock_);
    has_closed_.store(false, std::memory_order_relaxed);  // relaxed: under the lock
    for (const std::uint64_t id : std::exchange(closed_, {})) {
        if (const auto found = links_.find(id); found != links_.end()) {
            destroy_locked(found->second);
            links_.erase(found);
        }
    }
    grant_wishes_locked(device_.now_us());
}

// ---- traffic ----

void RdFlows::note_open(RdFlow& flow) {
    const util::Guard guard(open_lock_);
    open_.push_back(&flow);
    has_open_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
    note_traffic();
}

void RdFlows::note_waiting(RdFlow& flow, std::size_t bytes) {
    waiting_bytes_ += bytes;
    if (std::find(waiting_.begin(), waiting_.end(), &flow) == waiting_.end()) {
        waiting_.push_back(&flow);
        chores_.note();
        // The peer has our answer to its request, whether or not its word for that arrives.
        cm_due_us_.store(0, std::memory_order_relaxed);  // relaxed: read by this thread
    }
    if (!is_owner_polling_) {
        user_->work_waits();
    }
}

bool RdFlows::has_waiting() const noexcept {
    return !waiting_.empty() || !news_.empty() || (nic_ != nullptr && nic_->has_held());
}

/// Whether something is left for the next do_chores().
bool RdFlows::has_chores() const noexcept {
    // relaxed: what is noted right now is seen at the next call.
    return has_waiting() || !left_.empty() || has_closed_.load(std::memory_order_relaxed) ||
           room_due_us_.load(std::memory_order_relaxed) != kNever ||
           (nic_ != nullptr && nic_->has_lost());
}

// ---- polling ----

std::uint64_t RdFlows::packets_due_us() noexcept {
    // relaxed: what is due by then was known to this thread, or another looks after it.
    return std::min(device_.next_due_us(), cm_due_us_.load(std::memory_order_relaxed));
}

std::uint64_t RdFlows::next_due_us() noexcept {
    // relaxed: as above.
    return std::min(packets_due_us(), look_due_us_.load(std::memory_order_relaxed));
}

std::uint64_t RdFlows::owner_due_us() noexcept {
    // relaxed: as above.
    return std::min(next_due_us(), room_due_us_.load(std::memory_order_relaxed));
}

/// Of who polls now.
std::uint64_t RdFlows::due_us() noexcept {
    return is_owner_polling_ ? owner_due_us() : next_due_us();
}

/// Behind a while without traffic: whether nothing is open, waits, or is about to be due.
bool RdFlows::is_quiet(std::uint64_t now, std::uint64_t due_us) const noexcept {
    // relaxed: see flush_open().
    if (has_open_.load(std::memory_order_relaxed) || !waiting_.empty() ||
        (nic_ != nullptr && nic_->has_lost())) {
        return false;
    }
    return due_us == kNever || due_us > now + kSoonUs;
}

/// Returns: how many flows had something to heed.
[[gnu::noinline]] unsigned RdFlows::settle_heard() noexcept {
    unsigned settled = 0;
    for (RdFlow* const flow : heard_) {
        settled += flow->settle() ? 1 : 0;
    }
    heard_.clear();
    return settled;
}

RVT_ALWAYS_INLINE void RdFlows::look_around(std::uint64_t now) noexcept {
    if (cq_->may_have_entries()) [[unlikely]] {
        take_errors();
    }
    if (device_.port_changes() != port_changes_) [[unlikely]] {
        look_at_port();
    }
    // relaxed: set by this thread, or by one that only wants it to be seen soon.
    if (now >= cm_due_us_.load(std::memory_order_relaxed)) [[unlikely]] {
        look_at_cm();
    }
    // relaxed: a hint to who polls; what it is about comes under locks.
    if (now >= look_due_us_.load(std::memory_order_relaxed)) [[unlikely]] {
        look_at_peers(now);
    }
}

RVT_ALWAYS_INLINE unsigned RdFlows::poll_packets() noexcept {
    std::uint64_t now = 0;
    const unsigned moved = device_.progress(now);
    if (moved != 0) {
        last_traffic_us_.store(now, std::memory_order_relaxed);  // relaxed: see traffic_us()
        expect_life();
    }
    look_around(now);
    if (moved == 0 && now - traffic_us() > kIdleUs && is_quiet(now, due_us())) [[unlikely]] {
        device_.flush();  // no poll may come that lets acknowledgements go
        is_hot_.store(false, std::memory_order_relaxed);   // relaxed: a hint to who polls
        is_quiet_.store(true, std::memory_order_relaxed);  // relaxed: see take_quiet()
    }
    return moved;
}

/// Inline, as is what it calls: see Device::take_in().
/// @param arrived  Packets, where a NIC carries nothing.
RVT_ALWAYS_INLINE unsigned RdFlows::poll_polling(unsigned& arrived) noexcept {
    const unsigned settled = heard_.empty() ? 0 : settle_heard();
    device_.note_poll();
    flush_open();
    if (nic_ != nullptr && nic_->is_in_use()) {
        arrived = 0;
        return poll_beside_nic(settled);
    }
    arrived = poll_packets();
    return settled + arrived;
}

unsigned RdFlows::poll(bool leaves_nic) noexcept {
    if (!poll_lock_.try_lock()) [[unlikely]] {
        sched_yield();  // who has it may wait for this processor
        return 1;
    }
    is_owner_polling_ = true;
    leaves_nic_ = leaves_nic;
    unsigned arrived = 0;
    unsigned moved = poll_polling(arrived);
    // relaxed: see flush_open().
    if (chores_.has_some() || has_open_.load(std::memory_order_relaxed)) [[unlikely]] {
        moved += do_chores();
    }
    if (arrived != 0) {
        came_ticks_ = util::cpu_ticks();
    }
    is_owner_polling_ = false;
    poll_lock_.unlock();
    return moved;
}

/// What the owner does behind a poll. Returns: as drain_waiting().
[[gnu::noinline]] unsigned RdFlows::do_chores() noexcept {
    chores_.take();
    const unsigned moved = drain_waiting();
    flush_open();  // answers to what has just come
    close_left();
    reap();
    make_room();
    tell_lost();
    if (has_chores()) {
        chores_.note();
    }
    return moved;
}

bool RdFlows::poll_for_owner() noexcept {
    if (!poll_lock_.try_lock()) {
        return false;
    }
    leaves_nic_ = true;
    unsigned ignored = 0;
    poll_polling(ignored);
    if (nic_ != nullptr && nic_->has_lost()) [[unlikely]] {
        user_->work_waits();
    }
    poll_lock_.unlock();
    return true;
}

void RdFlows::let_go_for_owner() noexcept {
    if (poll_lock_.try_lock()) {
        device_.flush();
        poll_lock_.unlock();
    }
}

/// It waits for nobody while it keeps the owner from polling: who is in its way has to be let run.
bool RdFlows::send_held() noexcept {
    if (!poll_lock_.try_lock()) {
        return false;
    }
    device_.send_hold().note_poll([this] { return device_.now_us(); });
    {
        const util::Guard guard(open_lock_);
        opened_now_.swap(open_);
    }
    std::erase_if(opened_now_, [](RdFlow* flow) { return flow->try_flush(); });
    const bool all_sent = opened_now_.empty();
    {
        const util::Guard guard(open_lock_);
        open_.insert(open_.end(), opened_now_.begin(), opened_now_.end());
    }
    opened_now_.clear();
    poll_lock_.unlock();
    device_.flush();
    return all_sent;
}

/// Returns: how many frames have come or gone. Precondition: there is a NIC.
RVT_ALWAYS_INLINE unsigned RdFlows::poll_nic() noexcept {
    const unsigned taken = nic_->poll(failed_);
    if (!failed_.empty()) [[unlikely]] {
        end_failed();
    }
    return taken;
}

/// To ask the NIC costs no system call, so that the owner always does. The socket has mostly
/// nothing: somebody else watches it.
/// Returns: `moved`, and what this has.
RVT_ALWAYS_INLINE unsigned RdFlows::poll_beside_nic(unsigned moved) noexcept {
    const std::uint32_t count = polls() + 1;
    polls_.store(count, std::memory_order_relaxed);  // relaxed: see polls()
    const unsigned carried = poll_nic();
    nic_has_moved_ |= carried != 0;
    moved += carried;
    // relaxed: set by who has a packet sent or has seen one; it is seen at the next call.
    if (leaves_nic_ || asks_socket_.load(std::memory_order_relaxed)) [[unlikely]] {
        return moved + poll_socket();
    }
    if (count % kPollsPerLook == 0) {
        look_at_clock();
    }
    return moved;
}

[[gnu::noinline]] unsigned RdFlows::poll_socket() noexcept {
    std::uint64_t now = 0;
    const unsigned arrived = device_.progress(now);
    packets_us_ = arrived != 0 ? now : packets_us_;
    nic_has_moved_ |= arrived != 0;
    note_time(now);
    look_around(now);
    const std::uint64_t traffic = leaves_nic_ ? traffic_us() : packets_us_;
    if (arrived == 0 && now - traffic > kIdleUs &&
        is_quiet(now, leaves_nic_ ? due_us() : packets_due_us())) {
        device_.flush();                                       // as above
        asks_socket_.store(false, std::memory_order_relaxed);  // relaxed: see poll_beside_nic()
        if (leaves_nic_) {
            is_hot_.store(false, std::memory_order_relaxed);  // relaxed: a hint to who polls
        }
        is_quiet_.store(true, std::memory_order_relaxed);  // relaxed: see take_quiet()
    }
    return arrived;
}

[[gnu::noinline]] void RdFlows::look_at_clock() noexcept {
    const std::uint64_t now = device_.now_us();
    note_time(now);
    look_around(now);
    if (packets_due_us() <= now + kSoonUs) {
        asks_socket_.store(true, std::memory_order_relaxed);  // relaxed: see poll_beside_nic()
    }
}

void RdFlows::note_time(std::uint64_t now) noexcept {
    if (std::exchange(nic_has_moved_, false)) {
        last_traffic_us_.store(now, std::memory_order_relaxed);  // relaxed: see traffic_us()
        expect_life();
    }
}

void RdFlows::end_failed() noexcept {
    const util::Guard guard(lock_);
    for (const std::uint64_t id : std::exchange(failed_, {})) {
        if (Link* const link = find_locked(id)) {
            end_locked(*link);
        }
    }
}

/// Takes in all that the NIC has received: a peer's word that a flow ends comes another way, and
/// must not overtake the flow's last frames.
void RdFlows::read_nic() noexcept {
    unsigned polls = nic_ != nullptr ? RdNic::kMostPolls : 0;
    while (polls != 0 && poll_nic() >= RdNic::kEnoughPerPoll) {
        --polls;
    }
}

Status RdFlows::arm_nic() noexcept {
    if (nic_ == nullptr) {
        return kOk;
    }
    if (!poll_lock_.try_lock()) {
        return EAGAIN;  // who polls looks again
    }
    const Status armed = nic_->arm();
    poll_lock_.unlock();
    return armed;
}

void RdFlows::clear_nic_wake_fd() noexcept {
    if (nic_ != nullptr && poll_lock_.try_lock()) {
        nic_->clear_wake_fd();
        poll_lock_.unlock();
    }
}

RVT_ALWAYS_INLINE void RdFlows::flush_open() noexcept {
    // relaxed: a frame that begins right now is seen at the next call.
    if (has_open_.load(std::memory_order_relaxed)) {
        flush_those_open();
    }
}

void RdFlows::flush_those_open() noexcept {
    {
        const util::Guard guard(open_lock_);
        opened_now_.swap(open_);
        has_open_.store(false, std::memory_order_relaxed);  // relaxed: as above
    }
    for (RdFlow* const flow : opened_now_) {
        flow->flush();
    }
    opened_now_.clear();
}

/// Returns: how many flows had something to hand over.
unsigned RdFlows::drain_waiting() noexcept {
    const std::size_t before = waiting_.size();
    std::erase_if(waiting_, [](RdFlow* flow) { return flow->drain(); });
    if (nic_ != nullptr) {
        nic_->take_held();
    }
    tell_late();
    return static_cast<unsigned>(before - waiting_.size());
}

/// Tells the user that a flow is open, or has ended: that only when the owner has been handed what
/// came before it.
void RdFlows::tell(RdFlow& flow, bool is_end) {
    if (news_.empty() && !(is_end && flow.has_waiting())) {
        tell_now({.flow = &flow, .is_end = is_end});
        return;
    }
    news_.push_back({.flow = &flow, .is_end = is_end});
    chores_.note();
}

void RdFlows::tell_late() noexcept {
    while (!news_.empty() && !(news_.front().is_end && news_.front().flow->has_waiting())) {
        const News news = news_.front();
        news_.pop_front();
        tell_now(news);
    }
}

void RdFlows::tell_lost() noexcept {
    if (nic_ == nullptr || !nic_->has_lost()) [[likely]] {
        return;
    }
    for (const RdNic::Lost& lost : nic_->take_lost()) {
        taker_->rdma_ended(lost.name, lost.status);
    }
}

void RdFlows::tell_now(const News& news) noexcept {
    if (news.is_end && news.flow->has_left_) {
        user_->flow_left(*news.flow);
    } else if (news.is_end) {
        user_->flow_ended(*news.flow);
    } else {
        user_->flow_opened(*news.flow);
    }
}

/// A request that failed has ended its pair: the peer does not answer, or refuses.
void RdFlows::take_errors() noexcept {
    Wc wc;
    while (cq_->may_have_entries() && cq_->take({&wc, 1}) == 1) {
        const util::Guard guard(lock_);
        if (Link* const link = find_locked(wc.wr_id)) {
            end_locked(*link);
        }
    }
    if (!cq_->take_overrun()) {
        return;
    }
    // Of each request there is one, so that many pairs that fail at a time fill the queue.
    const util::Guard guard(lock_);
    for (auto& [id, link] : links_) {
        const Qp* const qp = link.flow->is_over_nic() ? nullptr : link.flow->qp_.get();
        if (qp != nullptr && qp->state() == QpState::kErr) {
            end_locked(link);
        }
    }
}

/// Without its address a device reaches nobody, and packets of a size that the peer was told of
/// may not leave any more: flows that are so end.
void RdFlows::look_at_port() noexcept {
    port_changes_ = device_.port_changes();
    const util::Guard guard(lock_);
    for (auto& [id, link] : links_) {
        if (device_.is_port_down() ||
            (!link.flow->is_over_nic() && link.flow->payload_bytes_ > device_.payload_bytes())) {
            end_locked(link);
        }
    }
}

void RdFlows::trim() noexcept {
    // relaxed: what is noted right now is seen at the next call.
    if (!has_large_.load(std::memory_order_relaxed)) {
        return;
    }
    const util::Guard guard(lock_);
    has_large_.store(false, std::memory_order_relaxed);  // relaxed: set again below
    for (auto& [id, link] : links_) {
        if (!link.flow->trim()) {
            note_large();
        }
    }
}

}  // namespace rvt::core
