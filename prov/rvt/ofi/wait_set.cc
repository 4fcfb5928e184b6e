// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One epoll descriptor that holds those of the members.
#include "ofi/wait_set.h"

#include <sys/epoll.h>

#include <algorithm>

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
}

void WaitSet::remove_member(const fid* member) noexcept {
    const std::lock_guard guard(members_lock);
    std::erase(members, member);
}

int WaitSet::try_wait() noexcept {
    const std::lock_guard guard(members_lock);
    for (fid* member : members) {
        const int refused = ofi::try_wait(member);
        if (refused != 0) {
            return refused;
        }
    }
    object.about_to_wait();
    return 0;
}

int WaitSet::wait(int timeout_ms) noexcept {
    const TimeLimit limit(timeout_ms);
    while (try_wait() == 0) {
        if (limit.is_over()) {
            return -FI_ETIMEDOUT;
        }
        object.sleep(limit);
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
        const util::Status opened = made->object.open(kind, nullptr);
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
