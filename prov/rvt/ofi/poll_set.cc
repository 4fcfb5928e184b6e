// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Poll sets ask their members one by one, driving their endpoints as a read would.
#include "ofi/poll_set.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/errors.h"

namespace rvt::ofi {
namespace {

Users* users_of(fid* object) noexcept {
    switch (object->fclass) {
        case FI_CLASS_CQ: return &Cq::from(object).users;
        case FI_CLASS_CNTR: return &Cntr::from(object).users;
        default: return nullptr;
    }
}

bool has_completion(Cq& cq) noexcept {
    const util::Guard<DomainLock> guard(cq.domain->lock);
    if (cq.queue->is_empty()) {
        cq.progressors.run_locked();
    }
    return !cq.queue->is_empty();
}

CntrState driven_state(Cntr& cntr) noexcept {
    {
        const util::Guard<DomainLock> guard(cntr.domain->lock);
        cntr.progressors.run_locked();
    }
    return cntr.state();
}

/// Whether a member has something: a queue an entry, a counter moved since it was last reported.
/// Notes that it is reported now, if there is room for it; else it will be by the next call.
bool has_something(PollSet::Member& member, bool has_room) noexcept {
    if (member.object->fclass == FI_CLASS_CQ) {
        return has_completion(Cq::from(member.object));
    }
    const CntrState now = driven_state(Cntr::from(member.object));
    return has_room && std::exchange(member.seen, now) != now;
}

int poll_poll(fid_poll* self, void** contexts, int count) noexcept {
    PollSet& set = PollSet::from(self);
    const std::lock_guard guard(set.lock);
    int found = 0;
    for (PollSet::Member& member : set.members) {
        const bool has_room = found < count;
        if (has_something(member, has_room) && has_room) {
            contexts[found++] = member.object->context;
        }
    }
    return found;
}

int poll_add(fid_poll* self, fid* object, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    Users* users = users_of(object);
    if (users == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        PollSet& set = PollSet::from(self);
        const std::lock_guard guard(set.lock);
        set.members.push_back({object, {}});
        users->add();
        return 0;
    });
}

int poll_del(fid_poll* self, fid* object, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    PollSet& set = PollSet::from(self);
    const std::lock_guard guard(set.lock);
    const auto found = std::ranges::find(set.members, object, &PollSet::Member::object);
    if (found == set.members.end()) {
        return -FI_EINVAL;
    }
    set.members.erase(found);
    users_of(object)->drop();
    return 0;
}

int poll_close(fid* self) noexcept {
    PollSet& set = PollSet::from(self);
    for (const PollSet::Member& member : set.members) {
        users_of(member.object)->drop();
    }
    set.domain->users.drop();
    delete &set;
    return 0;
}

fi_ops poll_fid_ops = fid_ops(poll_close);

fi_ops_poll poll_ops = {
    .size = sizeof(fi_ops_poll),
    .poll = poll_poll,
    .poll_add = poll_add,
    .poll_del = poll_del,
};

}  // namespace

int poll_open(fid_domain* domain, fi_poll_attr* attr, fid_poll** poll_set) noexcept {
    return entry([&]() -> int {
        if (attr != nullptr && attr->flags != 0) {
            return -FI_EBADFLAGS;
        }
        auto made = std::make_unique<PollSet>();
        made->domain = &Domain::from(domain);
        made->domain->users.add();
        made->handle.fid = {FI_CLASS_POLL, nullptr, &poll_fid_ops};
        made->handle.ops = &poll_ops;
        *poll_set = &made.release()->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
