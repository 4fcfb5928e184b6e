// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Joining and leaving groups.
#include "ofi/mc.h"

#include <memory>

#include "ofi/address_format.h"
#include "ofi/ep_dgram.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(offsetof(fid_mc, fid) == 0);

int mc_close(fid* self) noexcept {
    Mc& mc = Mc::from(self);
    {
        const util::Guard<DomainLock> guard(mc.ep->domain->lock);
        mc.ep->endpoint.leave_locked(mc.number);
    }
    mc.eq->forget(self);
    mc.ep->groups.drop();
    delete &mc;
    return 0;
}

fi_ops mc_fid_ops = fid_ops(mc_close);

/// Where its events go: fi_domain(3), fi_domain_bind.
Eq* queue_of(const EpDgram& ep) noexcept {
    return ep.eq != nullptr ? ep.eq : ep.domain->eq;
}

int check(const EpDgram& ep, const void* address, std::uint64_t flags) noexcept {
    if ((flags & ~std::uint64_t{FI_SEND | FI_RECV}) != 0) {
        return -FI_EBADFLAGS;
    }
    if ((ep.caps & FI_MULTICAST) == 0) {
        RVT_WARN(kEpCtrl, "cannot join a group: the endpoint was opened without FI_MULTICAST");
        return -FI_EOPNOTSUPP;
    }
    if (queue_of(ep) == nullptr) {
        return -FI_ENOEQ;
    }
    if (!ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    return address == nullptr || (flags & ~ep.caps) != 0 ? -FI_EINVAL : 0;
}

int join(EpDgram& ep, const util::SockAddr& group, std::uint64_t sides, fid_mc** mc,
         void* context) {
    auto made = std::make_unique<Mc>();
    Eq* const eq = queue_of(ep);
    util::Result<std::uint64_t> joined = EINVAL;
    {
        const util::Guard<DomainLock> guard(ep.domain->lock);
        joined = ep.endpoint.join_locked(group, (sides & FI_SEND) != 0, (sides & FI_RECV) != 0);
    }
    if (!joined.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot join %s: %s", group.to_string().c_str(),
                 joined.error() == EINVAL ? "it is no group that the endpoint's address can reach"
                                          : strerrordesc_np(joined.error()));
        return to_fi(joined.status());
    }
    made->ep = &ep;
    made->eq = eq;
    made->number = joined.value();
    made->handle.fid = {FI_CLASS_MC, context, &mc_fid_ops};
    made->handle.fi_addr = (sides & FI_SEND) != 0 ? made->number : FI_ADDR_NOTAVAIL;
    ep.groups.add();
    *mc = &made.release()->handle;
    const fi_eq_entry event{&(*mc)->fid, context, 0};
    eq->push(FI_JOIN_COMPLETE, &event, sizeof event, event.fid);
    return 0;
}

}  // namespace

int mc_join(fid_ep* self, const void* address, std::uint64_t flags, fid_mc** mc,
            void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    const int refused = check(ep, address, flags);
    if (refused != 0) {
        return refused;
    }
    return entry([&]() -> int {
        const util::Result<util::SockAddr> group =
            read_formatted_address(ep.domain->addr_format, address);
        if (!group.is_ok()) {
            return to_fi(group.status());
        }
        const std::uint64_t sides = flags != 0 ? flags : ep.caps & (FI_SEND | FI_RECV);
        return join(ep, group.value(), sides, mc, context);
    });
}

}  // namespace rvt::ofi
