// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports come and go with the endpoints that use them.
#include "ofi/msg_domain.h"

#include <algorithm>
#include <chrono>

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "core/key_table.h"
#include "core/mr.h"
#include "ofi/ep_msg.h"
#include "ofi/msg_nic.h"

namespace rvt::ofi {
namespace {

OpenMsgPort open_port = nullptr;

util::Status watch(int set, int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 ? util::kOk : util::Status(errno);
}

util::Status open_use(MsgPortUse& use, const Domain& domain) {
    util::Status made;
    use.context = domain.nic_context.get();
    use.pd = domain.nic_pd.get();
    if (domain.nic == nullptr) {
        made = keep(use.own_context, core::open_device(use.port->rc().device()));
        use.context = use.own_context.get();
    }
    if (made.is_ok()) {
        made = keep(use.channel, core::create_comp_channel(*use.context));
    }
    if (made.is_ok() && domain.nic == nullptr) {
        made = keep(use.own_pd, core::alloc_pd(*use.context, *domain.keys));
        use.pd = use.own_pd.get();
    }
    if (made.is_ok() && domain.nic == nullptr) {
        use.pd->allow_local_dma();
    }
    return made;
}

/// What happens to a port that is no NIC's is told to the queue of the domain, if it has one.
util::Status watch_port_of(MsgPortUse& use, Domain& domain) {
    if (domain.nic != nullptr || domain.eq == nullptr) {
        return util::kOk;
    }
    use.events = std::make_unique<util::Watched<DeviceEvents>>();
    return use.events->start(
        DeviceNews{.context = use.context, .told = {{{domain.eq, &domain.handle.fid}}}});
}

util::Result<std::shared_ptr<MsgPort>> open_port_of(const Domain& domain,
                                                    const util::SockAddr& address) {
    return domain.nic != nullptr ? domain.nic->open_port(address, MsgPortRole::kConnects)
                                 : open_msg_port(address);
}

}  // namespace

void set_msg_ports(OpenMsgPort open) noexcept {
    open_port = open;
}

util::Result<std::shared_ptr<MsgPort>> open_msg_port(const util::SockAddr& address) {
    return open_port != nullptr ? open_port(address)
                                : util::Result<std::shared_ptr<MsgPort>>(ENOSYS);
}

// ---- life ----

util::Result<std::unique_ptr<MsgDomain>> MsgDomain::open(Domain& domain) {
    std::unique_ptr<MsgDomain> made(new MsgDomain(domain));
    made->timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    made->wake_set_.reset(epoll_create1(EPOLL_CLOEXEC));
    if (!made->timer_.is_open() || !made->wake_set_.is_open()) {
        return errno;
    }
    if (const util::Status watched = watch(made->wake_set_.get(), made->timer_.get());
        !watched.is_ok()) {
        return watched;
    }
    const util::Status named = made->name_local_memory();
    return named.is_ok() ? util::Result<std::unique_ptr<MsgDomain>>(std::move(made))
                         : util::Result<std::unique_ptr<MsgDomain>>(named);
}

util::Status MsgDomain::name_local_memory() {
    if (domain_.nic == nullptr) {
        local_key_ = core::kLocalDmaLkey;
        return util::kOk;
    }
    const iovec word{&scratch_, sizeof scratch_};
    const util::Status made = core::keep(
        scratch_region_,
        core::reg_mr(*domain_.nic_pd, {.segments = {&word, 1}, .access = Access::kLocalWrite}));
    local_key_ = made.is_ok() ? scratch_region_->lkey() : 0;
    if (made.is_ok() && keeps_registrations()) {
        nic_memory_ = std::make_unique<NicMemory>(*domain_.nic_pd);
    }
    return made;
}

MsgDomain::~MsgDomain() = default;

void MsgDomain::give_back_all(MsgOps& ops) noexcept {
    const util::Guard<DomainLock> locked(domain_.lock);
    for (MsgOp& op : ops.all()) {
        give_back(op);
    }
}

util::Result<MsgPortUse*> MsgDomain::use(const util::SockAddr& bind) {
    const std::lock_guard guard(uses_lock_);
    for (const auto& use : uses_) {
        const util::SockAddr have = use->port->address();
        if (use->is_active && have.family == bind.family && have.ip == bind.ip &&
            (bind.port == 0 || bind.port == have.port)) {
            ++use->endpoints;
            return use.get();
        }
    }
    auto port = open_port_of(domain_, bind);
    return port.is_ok() ? add_use(port.take(), true) : util::Result<MsgPortUse*>(port.status());
}

util::Result<MsgPortUse*> MsgDomain::use(std::shared_ptr<MsgPort> port) {
    // A request came to another device than the domain was opened for.
    if (domain_.nic != nullptr ? &port->rc().device() != &domain_.nic->device()
                               : port->rc().device().grade() == Grade::kVerb) {
        return EINVAL;
    }
    const std::lock_guard guard(uses_lock_);
    for (const auto& use : uses_) {
        if (use->port == port) {
            ++use->endpoints;
            return use.get();
        }
    }
    return add_use(std::move(port), false);
}

util::Result<MsgPortUse*> MsgDomain::add_use(std::shared_ptr<MsgPort> port, bool is_active) {
    auto made = std::make_unique<MsgPortUse>();
    made->port = std::move(port);
    made->is_active = is_active;
    made->endpoints = 1;
    util::Status status = open_use(*made, domain_);
    if (status.is_ok()) {
        status = watch_port_of(*made, domain_);
    }
    if (status.is_ok()) {
        status = watch(wake_set_.get(), made->channel->fd());
    }
    if (!status.is_ok()) {
        return status;
    }
    const util::Guard<DomainLock> locked(domain_.lock);
    if (sleepers.may_any_sleep()) {
        status = watch_port_locked(*made);
    }
    if (!status.is_ok()) {
        return status;
    }
    uses_.push_back(std::move(made));
    return uses_.back().get();
}

void MsgDomain::release(MsgPortUse* use) noexcept {
    const std::lock_guard guard(uses_lock_);
    if (--use->endpoints != 0) {
        return;
    }
    std::unique_ptr<MsgPortUse> last;
    const util::Guard<DomainLock> locked(domain_.lock);
    const auto found = std::ranges::find(uses_, use, &std::unique_ptr<MsgPortUse>::get);
    last = std::move(*found);
    uses_.erase(found);
    // A forked child shares the set with its parent, whose threads still sleep on all of it.
    if (generation_ != util::fork_generation()) {
        return;
    }
    if (last->is_watched) {
        epoll_ctl(wake_set_.get(), EPOLL_CTL_DEL, last->port->wake_fd(), nullptr);
    }
    epoll_ctl(wake_set_.get(), EPOLL_CTL_DEL, last->channel->fd(), nullptr);
}

void MsgDomain::add(EpMsg& ep) {
    const util::Guard<DomainLock> locked(domain_.lock);
    endpoints_.push_back(&ep);
}

void MsgDomain::remove(EpMsg& ep) noexcept {
    const util::Guard<DomainLock> locked(domain_.lock);
    std::erase(endpoints_, &ep);
}

// ---- progress ----

unsigned MsgDomain::run_locked() noexcept {
    unsigned moved = 0;
    for (const auto& use : uses_) {
        moved += use->port->poll();
    }
    return may_have_completions_locked() ? moved + drain_locked() : moved;
}

/// Most looks find nothing; with many endpoints that must not cost a look at each. What a NIC has
/// completed only a look at each tells.
bool MsgDomain::may_have_completions_locked() noexcept {
    bool may_have = domain_.nic != nullptr;
    for (const auto& use : uses_) {
        may_have |= use->channel->take_news();
    }
    return may_have;
}

unsigned MsgDomain::drain_locked() noexcept {
    unsigned completed = 0;
    for (EpMsg* const ep : endpoints_) {
        const unsigned drained = ep->drain_locked();
        completed += drained;
        if (drained != 0 && sleepers.may_any_sleep()) [[unlikely]] {
            completed += ep->arm_drained_locked();  // somebody sleeps on
        }
    }
    return completed;
}

void MsgDomain::wake_waiting_locked(const core::RecvQueue& queue) noexcept {
    for (const auto& use : uses_) {
        use->port->rc().device().wake_waiting(&queue);
    }
}

bool MsgDomain::are_flushed_locked(const Srx& srx) const noexcept {
    return std::ranges::all_of(endpoints_,
                               [&](const EpMsg* ep) { return ep->srx != &srx || ep->is_flushed; });
}

// ---- sleeping ----

void MsgDomain::arm_queues_locked() noexcept {
    for (const auto& use : uses_) {
        use->channel->clear();
    }
    for (EpMsg* const ep : endpoints_) {
        ep->arm_queue_locked();
    }
}

std::uint64_t MsgDomain::next_due_us_locked() noexcept {
    std::uint64_t due_us = core::RcPort::kNever;
    for (const auto& use : uses_) {
        due_us = std::min(due_us, use->port->rc().next_due_us());
    }
    return due_us;
}

/// All devices have one clock. Where there is none, it is too late for everything.
std::uint64_t MsgDomain::now_us_locked() const noexcept {
    return uses_.empty() ? core::RcPort::kNever : uses_.front()->port->rc().device().now_us();
}

/// Sleepers wake up when something is due, though nothing arrives. A timer that runs out before
/// that stays: who wakes up too early sets it anew, and who posts need not.
util::Status MsgDomain::arm_timer_locked() noexcept {
    const std::uint64_t due_us = next_due_us_locked();
    const bool is_running = now_us_locked() < timer_due_us_;
    return is_running && timer_due_us_ <= due_us ? util::kOk : set_timer_locked(due_us);
}

util::Status MsgDomain::set_timer_locked(std::uint64_t due_us) noexcept {
    itimerspec when{};
    if (due_us != core::RcPort::kNever) {
        const std::uint64_t now_us = now_us_locked();
        const std::uint64_t left_us = due_us > now_us ? due_us - now_us : 1;
        when.it_value.tv_sec = static_cast<time_t>(left_us / 1'000'000);
        when.it_value.tv_nsec = static_cast<long>(left_us % 1'000'000 * 1000);
    }
    timer_due_us_ = due_us;
    return timerfd_settime(timer_.get(), 0, &when, nullptr) == 0 ? util::kOk : util::Status(errno);
}

void MsgDomain::set_timer_if_sooner_locked() noexcept {
    const std::uint64_t due_us = next_due_us_locked();
    if (due_us < timer_due_us_) {
        // Where it cannot be set the control thread looks, though later.
        [[maybe_unused]] const util::Status set = set_timer_locked(due_us);
    }
}

/// From the first who sleeps on, the wake set has the ports: in a set, each packet of a port costs
/// more (see util::ControlThread::Handler::watch_once()).
util::Status MsgDomain::watch_port_locked(MsgPortUse& use) noexcept {
    const util::Status watched =
        use.is_watched ? util::kOk : watch(wake_set_.get(), use.port->wake_fd());
    use.is_watched = use.is_watched || watched.is_ok();
    return watched;
}

util::Status MsgDomain::arm_locked() noexcept {
    arm_queues_locked();
    bool has_work = false;
    for (const auto& use : uses_) {
        if (const util::Status watched = watch_port_locked(*use); !watched.is_ok()) [[unlikely]] {
            return watched;
        }
        has_work |= use->port->arm().error() == EAGAIN;
    }
    // Of what has completed no channel tells any more, nor those who sleep at other queues.
    has_work |= drain_locked() != 0;
    return has_work ? util::Status(EAGAIN) : arm_timer_locked();
}

void MsgDomain::disarm_locked() noexcept {
    for (const auto& use : uses_) {
        use->port->rc().expect_traffic();  // what has woken us may have been a packet
    }
}

}  // namespace rvt::ofi
