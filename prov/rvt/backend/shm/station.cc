// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing an endpoint's presence, and its sleep.
#include "backend/shm/station.h"

#include <cerrno>
#include <random>
#include <utility>

#include <linux/membarrier.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/log.h"

namespace rvt::shm {
namespace {

std::uint64_t random_number() {
    std::random_device source;
    return (std::uint64_t{source()} << 32) | source();
}

}  // namespace

util::Status Station::bind(const util::SockAddr& address) {
    if (is_bound()) {
        return EBUSY;
    }
    util::Result<util::UdpPort> port = util::bind_udp_port(address);
    if (port.is_ok()) {
        port_ = port.take();
    }
    return port.status();
}

util::Status Station::adopt(util::UdpPort port) {
    if (is_bound()) {
        return EBUSY;
    }
    port_ = std::move(port);
    return util::kOk;
}

util::Status Station::open(const StationAttr& attr) {
    util::Result<util::Mapping> memory =
        util::Mapping::create("rvt-endpoint", kPageBytes, kPageBytes);
    if (!memory.is_ok()) {
        return memory.status();
    }
    wake_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_fd_.is_open()) {
        return errno;
    }
    sleepers_ = attr.sleepers != nullptr ? attr.sleepers : &nobody_;
    has_auto_progress_ = attr.has_auto_progress;
    page_memory_ = memory.take();
    page_ = page_memory_.at<EndpointPage>(0);
    page_->magic = kMagic;
    page_->version = kLayoutVersion;
    page_->incarnation = random_number() | 1;  // of which a mark without a key is not 0
    page_->probe = random_number();
    page_->control_may_enter = attr.control_may_enter ? 1 : 0;
    page_->has_user_keys = attr.keys.has_user_keys ? 1 : 0;
    page_->wants_rma_events = attr.wants_rma_events ? 1 : 0;
    page_->key_domain = attr.keys.pd;
    page_->service = attr.service;
    util::Result<std::unique_ptr<Connector>> connector =
        Connector::open({.address = port_.address,
                         .page = &page_memory_,
                         .keys = attr.keys.memory,
                         .wake_fd = wake_fd_.get(),
                         .has_auto_progress = attr.has_auto_progress,
                         .user = attr.user});
    if (connector.is_ok()) {
        connector_ = connector.take();
    }
    return connector.status();
}

void Station::close() noexcept {
    // Until it has let go of the user, the control thread may be in a call of it, which finds the
    // connector here.
    connector_.get_deleter()(connector_.get());
    static_cast<void>(connector_.release());
    page_ = &unopened_;
    page_memory_.reset();
    wake_fd_.reset();
}

void Station::close_link(std::uint64_t link, const char* why) noexcept {
    RVT_WARN(kEpCtrl, "close connection: %s", why);
    connector_->close(link);
}

void Station::note_polling() noexcept {
    // relaxed: a hint to initiators of one-sided access.
    page_->last_poll.store(util::cpu_ticks(), std::memory_order_relaxed);
    if (is_in_stead_) {
        return;
    }
    poller_ = pthread_self();
    // relaxed: our own word.
    const std::uint32_t armed = page_->armed.load(std::memory_order_relaxed);
    if (armed == 0) {
        return;
    }
    if (episode_of(armed) != 0) {
        end_episode();
    }
    const bool is_long_awake = poll_count() - armed_at_poll_ >= kLongAwake;
    // relaxed: a late sight costs senders a fence, or a needless wake-up.
    page_->armed.store(is_long_awake ? 0 : armed & kFenceFirst, std::memory_order_relaxed);
}

/// Whoever else sleeps is told by who polls; the connector notices when nobody does any more, and
/// rests itself. Those whom the caller's own thread has announced are woken.
void Station::end_episode() noexcept {
    const bool has_sleepers = sleepers_->may_others_sleep();
    const bool must_watch = has_auto_progress_ || has_sleepers;
    // relaxed: a late sight of either costs a message to the connector.
    const bool is_asleep = is_control_asleep_.load(std::memory_order_relaxed);
    if ((must_watch || is_asleep) && !is_watched_.load(std::memory_order_relaxed) && connector_) {
        is_watched_.store(must_watch, std::memory_order_relaxed);  // relaxed: the message orders it
        connector_->note_polling(has_sleepers);
    }
    if (sleepers_->tell()) {
        wake_owner();
    }
}

std::uint32_t Station::next_episode() noexcept {
    episode_ = episode_of(episode_ + 1) == 0 ? 1 : episode_ + 1;
    return episode_;
}

void Station::arm(bool has_peers, bool wants_room) noexcept {
    if (poller_ != pthread_self() && is_polling(*page_)) {
        // seq_cst: pairs with the fence in goes_on_watching(): who ceases to look sees who sleeps.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        // relaxed: ordered by the fence.
        if (is_watched_.load(std::memory_order_relaxed)) {
            // Another thread looks at the rings: to be woken by each message would slow down both.
            drain();
            return;
        }
    }
    armed_at_poll_ = poll_count();
    // relaxed: our own word.
    const bool do_senders_fence = (page_->armed.load(std::memory_order_relaxed) & kFenceFirst) != 0;
    // Where a fence is enough for want of senders, the first ones must still be told by a system
    // call: they may have looked at the word already.
    begin_episode(next_episode() | (wants_room ? kWantsRoom : 0) | (has_peers ? kFenceFirst : 0),
                  do_senders_fence || !has_peers);
}

void Station::arm_by_barrier(bool has_peers) noexcept {
    begin_episode(next_episode(), !has_peers);
}

void Station::arm_for_control(bool has_peers) noexcept {
    is_watched_.store(false, std::memory_order_relaxed);        // relaxed: under the lock
    is_control_asleep_.store(true, std::memory_order_relaxed);  // relaxed: under the lock
    arm_by_barrier(has_peers);
}

void Station::begin_episode(std::uint32_t armed, bool is_ordered) noexcept {
    // First: a peer whose message has been taken already may see the new episode all the same, and
    // wakes once in each; to swallow that would be to sleep through its next message.
    drain();
    // release: pairs with the acquire in disarm_for_control(). The barrier below orders it for
    // peers.
    page_->armed.store(armed, std::memory_order_release);
    // membarrier(2) is a fence in every thread of every process that is registered: whoever
    // published before it is seen by the caller's next look at the rings, whoever publishes after
    // it sees the word. Senders that are not registered fence themselves, and so does the control
    // thread.
    if (is_ordered || syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0) {
        // seq_cst: pairs with the fences in Path::wake() and Switchboard::deliver().
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
}

void Station::drain() noexcept {
    eventfd_t ignored = 0;
    has_drained_ = eventfd_read(wake_fd_.get(), &ignored) == 0;
    if (has_drained_) {
        sleepers_->untell();
    }
}

void Station::disarm() noexcept {
    // seq_cst: pairs with the fence in disarm_for_control(): the last one of those who were asleep
    // sees that it is.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // relaxed: ordered by the fence.
    if (sleepers_->may_others_sleep() || is_control_asleep_.load(std::memory_order_relaxed)) {
        return;
    }
    if (sleepers_->tell()) {
        wake_owner();
    }
    // relaxed: our own word; a late sight costs a peer one needless wake-up.
    const std::uint32_t armed = page_->armed.load(std::memory_order_relaxed);
    page_->armed.store(armed & kFenceFirst, std::memory_order_relaxed);
}

void Station::disarm_for_control() noexcept {
    is_control_asleep_.store(false, std::memory_order_relaxed);  // relaxed: ordered by the fence
    std::atomic_thread_fence(std::memory_order_seq_cst);  // seq_cst: pairs with the one in disarm()
    // acquire: pairs with the release in begin_episode(): whose episode it is has been counted.
    std::uint32_t armed = page_->armed.load(std::memory_order_acquire);
    if (episode_of(armed) == 0 || sleepers_->may_others_sleep()) {
        return;
    }
    // relaxed: a peer that has seen it just now rings in vain, and asks when it has waited.
    page_->armed.compare_exchange_strong(armed, armed & kFenceFirst, std::memory_order_relaxed);
}

bool Station::goes_on_watching() noexcept {
    is_watched_.store(false, std::memory_order_relaxed);  // relaxed: ordered by the fence
    std::atomic_thread_fence(std::memory_order_seq_cst);  // seq_cst: pairs with the one in arm()
    const bool goes_on = sleepers_->may_others_sleep();
    if (goes_on) {
        is_watched_.store(true, std::memory_order_relaxed);  // relaxed: as in note_polling()
    }
    return goes_on;
}

void Station::wake_who_sleeps() noexcept {
    // relaxed: by the control thread under the lock, or on its way back to it.
    const bool is_control_asleep = is_control_asleep_.load(std::memory_order_relaxed);
    if (sleepers_->may_others_sleep() || is_control_asleep || sleepers_->tell()) {
        wake_owner();
    }
}

void Station::wake_armed() noexcept {
    // seq_cst: pairs with the barrier in begin_episode(): who falls asleep sees the caller's work,
    // or his episode is seen here.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // relaxed: ordered by the fence.
    std::uint32_t armed = page_->armed.load(std::memory_order_relaxed);
    // relaxed: who arms again meanwhile looks for work behind that.
    if (episode_of(armed) != 0 && page_->armed.compare_exchange_strong(armed, armed & kFenceFirst,
                                                                       std::memory_order_relaxed)) {
        wake_owner();
    }
}

void Station::give_back_wake() noexcept {
    if (std::exchange(has_drained_, false) && sleepers_->may_others_sleep()) {
        wake_owner();
    }
}

void Station::wake_owner() noexcept {
    // EAGAIN: it is readable already.
    [[maybe_unused]] const int ignored = eventfd_write(wake_fd_.get(), 1);
}

void Station::mark_use(std::uint64_t owner_incarnation, std::uint32_t key) noexcept {
    // relaxed: the fence orders it before the look-up of the key; the owner fences between its
    // invalidation and its look at the mark, so that one of the two sees the other.
    page_->using_key.store(use_mark(owner_incarnation, key), std::memory_order_relaxed);
    // pairs with the fence of KeyTable::remove()'s caller, and the one in refuse_copies()
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Station::unmark_use() noexcept {
    // release: pairs with the acquire in UseLook::is_of().
    page_->using_key.store(0, std::memory_order_release);
}

void Station::refuse_copies() noexcept {
    // relaxed: the fence orders it before the caller's look at the marks. Who copies fences between
    // its mark and its look at this, so that one of the two sees the other.
    page_->no_copies.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the one in mark_use()
}

}  // namespace rvt::shm
