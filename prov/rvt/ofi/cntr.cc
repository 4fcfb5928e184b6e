// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Counters: reading one drives the endpoints that count into it. fi_cntr(3).
#include "ofi/cntr.h"

#include <sys/eventfd.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "ofi/errors.h"
#include "ofi/wait_set.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

/// Returns: whether nothing has moved for long.
template <class Lock>
bool try_progress(Cntr& cntr) noexcept {
    const util::Guard<Lock> guard(cntr.domain->lock.as<Lock>());
    const bool has_moved = cntr.progressors.run_locked() != 0;
    if (!has_moved) {
        cntr.domain->send_for_others_locked();
    }
    const bool is_yield_due = cntr.courtesy.is_due(has_moved);
    if (is_yield_due) [[unlikely]] {
        cntr.progressors.remind_peers_locked();
    }
    return is_yield_due;
}

template <class Lock>
void progress(Cntr& cntr) noexcept {
    if (try_progress<Lock>(cntr)) [[unlikely]] {
        cntr.courtesy.yield();
    }
}

template <class Lock>
std::uint64_t cntr_read(fid_cntr* self) noexcept {
    Cntr& cntr = Cntr::from(self);
    progress<Lock>(cntr);
    return cntr.counter.value();
}

template <class Lock>
std::uint64_t cntr_readerr(fid_cntr* self) noexcept {
    Cntr& cntr = Cntr::from(self);
    progress<Lock>(cntr);
    return cntr.counter.errors();
}

int cntr_add(fid_cntr* self, std::uint64_t value) noexcept {
    Cntr& cntr = Cntr::from(self);
    cntr.counter.add(value);
    cntr.note_change();
    return 0;
}
int cntr_adderr(fid_cntr* self, std::uint64_t value) noexcept {
    Cntr& cntr = Cntr::from(self);
    cntr.counter.add_error(value);
    cntr.note_change();
    return 0;
}
int cntr_set(fid_cntr* self, std::uint64_t value) noexcept {
    Cntr& cntr = Cntr::from(self);
    cntr.counter.set(value);
    cntr.note_change();
    return 0;
}
int cntr_seterr(fid_cntr* self, std::uint64_t value) noexcept {
    Cntr& cntr = Cntr::from(self);
    cntr.counter.set_error(value);
    cntr.note_change();
    return 0;
}

/// Arms the counter, and its endpoints by `arm`. False: an endpoint has work.
bool arm_locked(Cntr& cntr, bool (Progressors::*arm)() noexcept) noexcept {
    // While others sleep, what woke them must stay readable until they have seen it.
    const CntrSight sight = cntr.sight_locked();
    if (cntr.onlookers.have_seen(sight)) {
        eventfd_t value = 0;
        eventfd_read(cntr.wake_fd.get(), &value);  // EAGAIN: nobody had signalled
    }
    cntr.counter.arm(cntr.wake_fd.get());
    if (cntr.sight_locked() != sight) {
        cntr.counter.wake();  // of a change in between they may not have heard
    }
    return cntr.domain->may_sleep_locked() && (cntr.progressors.*arm)();
}

/// Returns: what to hand back to wake_up(); nothing where an endpoint has work.
std::optional<unsigned> fall_asleep(Cntr& cntr) noexcept {
    const util::Guard<DomainLock> guard(cntr.domain->lock);
    const CntrSight sight = cntr.sight_locked();
    return arm_locked(cntr, &Progressors::fall_asleep_locked)
               ? std::optional(cntr.onlookers.fall_asleep(sight))
               : std::nullopt;
}

/// The last one to wake up disarms. The others are asleep on the same descriptors, which stay
/// readable until they have looked at what has woken the caller.
void wake_up(Cntr& cntr, unsigned look) noexcept {
    const util::Guard<DomainLock> guard(cntr.domain->lock);
    cntr.onlookers.wake_up(look);
    cntr.progressors.wake_up_locked();
    if (!cntr.progressors.sleepers().may_others_sleep()) {
        cntr.counter.arm(-1);
    }
}

/// fi_cntr(3): an error counted since the call began ends the wait.
template <class Lock>
int cntr_wait(fid_cntr* self, std::uint64_t threshold, int timeout_ms) noexcept {
    Cntr& cntr = Cntr::from(self);
    if (!cntr.wait.can_sleep()) {
        return -FI_EINVAL;
    }
    const TimeLimit limit(timeout_ms);
    const std::uint64_t errors = cntr.counter.errors();
    util::BusyPoll::Wait wait(cntr.wait.busy_poll);
    for (;;) {
        progress<Lock>(cntr);
        if (cntr.counter.value() >= threshold) {
            wait.succeed();
            return 0;
        }
        if (cntr.counter.errors() != errors) {
            return -FI_EAVAIL;
        }
        if (limit.is_over()) {
            return -FI_ETIMEDOUT;
        }
        if (cntr.wait.kind() == FI_WAIT_YIELD) {
            cntr.wait.sleep(limit);
            continue;
        }
        if (wait.goes_on()) {
            continue;
        }
        // Arm first, then look again: a count in between has signalled or is seen.
        if (const std::optional<unsigned> look = fall_asleep(cntr)) {
            if (cntr.counter.value() < threshold && cntr.counter.errors() == errors) {
                cntr.wait.sleep(limit);
            }
            wake_up(cntr, *look);
        }
    }
}

int cntr_close(fid* self) noexcept {
    Cntr& cntr = Cntr::from(self);
    if (cntr.users.is_any()) {
        return -FI_EBUSY;
    }
    if (cntr.wait_set != nullptr) {
        cntr.wait_set->remove_member(self);
    }
    cntr.domain->users.drop();
    delete &cntr;
    return 0;
}

int cntr_control(fid* self, int command, void* argument) noexcept {
    return entry([&] { return Cntr::from(self).wait.control(command, argument); });
}

fi_ops cntr_fid_ops = fid_ops(cntr_close, no_bind, cntr_control);

template <class Lock>
constexpr fi_ops_cntr make_ops() noexcept {
    return {
        .size = sizeof(fi_ops_cntr),
        .read = cntr_read<Lock>,
        .readerr = cntr_readerr<Lock>,
        .add = cntr_add,
        .set = cntr_set,
        .wait = cntr_wait<Lock>,
        .adderr = cntr_adderr,
        .seterr = cntr_seterr,
    };
}
constinit std::array<fi_ops_cntr, kLockPolicies> cntr_ops = {make_ops<util::OwnerLock>(),
                                                             make_ops<util::SpinLock>()};

int open_waiting(Cntr& cntr, const fi_cntr_attr& attr) {
    cntr.wake_fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    util::Status opened = cntr.wake_fd.is_open() ? util::kOk : util::Status(errno);
    if (opened.is_ok()) {
        opened = cntr.wait.open(attr.wait_obj, attr.wait_set);
    }
    if (opened.is_ok()) {
        opened = cntr.wait.add_source(cntr.wake_fd.get());
    }
    if (!opened.is_ok()) {
        RVT_WARN(kCntr, "cannot open counter: wait_obj %d: %s", static_cast<int>(attr.wait_obj),
                 strerrordesc_np(opened.error()));
        return to_fi(opened);
    }
    if (attr.wait_obj == FI_WAIT_SET) {
        cntr.wait_set = &WaitSet::from(attr.wait_set);
        cntr.wait_set->add_member(&cntr.handle.fid);
    }
    return 0;
}

int open(Domain& domain, const fi_cntr_attr& attr, fid_cntr** cntr, void* context) {
    if (attr.flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (attr.events != FI_CNTR_EVENTS_COMP) {
        RVT_WARN(kCntr, "cannot open counter: events %d asked, FI_CNTR_EVENTS_COMP offered",
                 static_cast<int>(attr.events));
        return -FI_ENOSYS;
    }
    auto made = std::make_unique<Cntr>();
    made->domain = &domain;
    made->handle.fid = {FI_CLASS_CNTR, context, &cntr_fid_ops};
    made->handle.ops = &cntr_ops[static_cast<std::size_t>(domain.lock.policy())];
    const int waiting = open_waiting(*made, attr);
    if (waiting != 0) {
        return waiting;
    }
    domain.users.add();
    *cntr = &made.release()->handle;
    return 0;
}

}  // namespace

util::Status Cntr::add_source(core::ProgressSource& source) {
    // Its last user may be leaving: either both have the source afterwards, or neither.
    const util::Guard<DomainLock> guard(domain->lock);
    const util::Status added = wait.add_source(source.wake_fd());
    if (added.is_ok()) {
        progressors.add(source);
        ++sources_added;
        // Who sleeps already has not armed this source: let it look again.
        counter.wake();
    }
    return added;
}

void Cntr::remove_source(const core::ProgressSource& source) noexcept {
    const util::Guard<DomainLock> guard(domain->lock);
    if (progressors.remove(source)) {
        wait.remove_source(source.wake_fd());
    }
}

CntrState Cntr::state() const noexcept {
    // acquire: pairs with the release in note_change(): who sees a change noted sees the count.
    const std::uint64_t noted = changes.load(std::memory_order_acquire);
    return {counter.value() + counter.errors(), noted};
}

void Cntr::note_change() noexcept {
    // release: pairs with the acquire in state(). After the count: noted before, it could be seen
    // by who then finds the count as it was, and sleeps.
    changes.fetch_add(1, std::memory_order_release);
    // Who is falling asleep meanwhile sees one of the changes, or is seen here.
    counter.wake();
}

int Cntr::try_wait() noexcept {
    util::BusyPoll::Wait wait_first(wait.busy_poll);
    do {
        const util::Guard<DomainLock> guard(domain->lock);
        progressors.run_locked();
        const CntrState now = state();
        if (now != seen) {
            wait_first.succeed();
            seen = now;
            return -FI_EAGAIN;
        }
    } while (wait_first.goes_on());
    const util::Guard<DomainLock> guard(domain->lock);
    const bool is_armed = arm_locked(*this, &Progressors::arm_for_waiter_locked);
    const CntrState now = state();
    if (!is_armed || now != seen) {
        seen = now;
        return -FI_EAGAIN;
    }
    wait.about_to_wait();
    return 0;
}

int cntr_open(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept {
    static constexpr fi_cntr_attr kDefault{
        .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC, .wait_set = nullptr, .flags = 0};
    return entry([&] {
        return open(Domain::from(domain), attr != nullptr ? *attr : kDefault, cntr, context);
    });
}

}  // namespace rvt::ofi
