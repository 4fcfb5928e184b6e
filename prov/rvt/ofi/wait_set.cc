// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One epoll descriptor that holds those of the members.
#include "ofi/wait_set.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "ofi/errors.h"
#include "ofi/trywait.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

int wait_set_close(fid* self) noexcept {
    WaitSet& set = WaitSet::from(self);
    if (set.users.is_any()) {
        return -FI_EBUSY;
    }
    set.fabric->users.drop();
    delete &set;
    return 0;
}

int wait_set_control(fid* self, int command, void* argument) noexcept {
    return WaitSet::from(self).object.control(command, argument);
}

int wait_set_wait(fid_wait* self, int timeout_ms) noexcept {
    return WaitSet::from(self).wait(timeout_ms);
}

fi_ops wait_set_fid_ops = fid_ops(wait_set_close, no_bind, wait_set_control);

fi_ops_wait wait_set_ops = {.size = sizeof(fi_ops_wait), .wait = wait_set_wait};

}  // namespace

util::Status WaitSet::open(fi_wait_obj kind) {
    doorbell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!doorbell_.is_open()) {
        return errno;
    }
    const util::Status opened = object.open(kind, nullptr);
    return opened.is_ok() ? object.add_source(doorbell_.get()) : opened;
}

util::Status WaitSet::add_source(int fd) {
    const util::Status added = object.add_source(fd);
    if (added.is_ok()) {
        users.add();
    }
    return added;
}

void WaitSet::remove_source(int fd) noexcept {
    object.remove_source(fd);
    users.drop();
}

void WaitSet::add_member(fid* member) {
    const std::lock_guard guard(members_lock);
    members.push_back(member);
    ++members_added_;
    [[maybe_unused]] const int ignored = eventfd_write(doorbell_.get(), 1);
}

void WaitSet::remove_member(const fid* member) noexcept {
    const std::lock_guard guard(members_lock);
    std::erase(members, member);
}

int WaitSet::try_wait() noexcept {
    const std::lock_guard guard(members_lock);
    return try_wait_locked();
}

int WaitSet::try_wait_locked() noexcept {
    for (fid* member : members) {
        const int refused = ofi::try_wait(member);
        if (refused != 0) {
            return refused;
        }
    }
    // Who sleeps in a call does not look at the descriptor of a member that has come since, and is
    // still to wake up. Who polls the set's own does: the member has been asked for him, too.
    if (onlookers_.have_seen(members_added_)) {
        eventfd_t value = 0;
        eventfd_read(doorbell_.get(), &value);  // EAGAIN: none has come
    }
    object.about_to_wait();
    return 0;
}

/// Returns: what to hand back to wake_up(); nothing where a member has something.
std::optional<unsigned> WaitSet::fall_asleep() noexcept {
    const std::lock_guard guard(members_lock);
    return try_wait_locked() == 0 ? std::optional(onlookers_.fall_asleep(members_added_))
                                  : std::nullopt;
}

void WaitSet::wake_up(unsigned look) noexcept {
    const std::lock_guard guard(members_lock);
    onlookers_.wake_up(look);
}

int WaitSet::wait(int timeout_ms) noexcept {
    const TimeLimit limit(timeout_ms);
    while (const std::optional<unsigned> look = fall_asleep()) {
        const bool is_over = limit.is_over();
        if (!is_over) {
            object.sleep(limit);
        }
        wake_up(*look);
        if (is_over) {
            return -FI_ETIMEDOUT;
        }
    }
    return 0;
}

int wait_open(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** wait_set) noexcept {
    return entry([&]() -> int {
        const fi_wait_obj asked = attr != nullptr ? attr->wait_obj : FI_WAIT_UNSPEC;
        const fi_wait_obj kind = asked == FI_WAIT_UNSPEC ? FI_WAIT_FD : asked;
        if ((attr != nullptr && attr->flags != 0) || kind == FI_WAIT_NONE || kind == FI_WAIT_SET) {
            return -FI_EINVAL;
        }
        auto made = std::make_unique<WaitSet>();
        const util::Status opened = made->open(kind);
        if (!opened.is_ok()) {
            RVT_WARN(kFabric, "cannot open wait set: wait_obj %d: %s", static_cast<int>(kind),
                     strerrordesc_np(opened.error()));
            return to_fi(opened);
        }
        made->fabric = &Fabric::from(fabric);
        made->fabric->users.add();
        made->handle.fid = {FI_CLASS_WAIT, nullptr, &wait_set_fid_ops};
        made->handle.ops = &wait_set_ops;
        *wait_set = &made.release()->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
