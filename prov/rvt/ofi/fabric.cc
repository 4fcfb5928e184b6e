// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Fabrics: names that parent domains and event queues. fi_fabric(3).
#include "ofi/fabric.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "ofi/domain.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/pep.h"
#include "ofi/registry.h"
#include "ofi/trywait.h"
#include "ofi/wait_set.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(std::is_standard_layout_v<Fabric> && offsetof(Fabric, handle) == 0);

int fabric_close(fid* self) noexcept {
    Fabric& fabric = Fabric::from(self);
    if (fabric.users.is_any()) {
        return -FI_EBUSY;
    }
    registry::remove(self);
    delete &fabric;
    return 0;
}

int fabric_domain(fid_fabric* self, fi_info* info, fid_domain** domain, void* context) noexcept {
    return domain_open(self, info, domain, 0, context);
}

int fabric_domain2(fid_fabric* self, fi_info* info, fid_domain** domain, std::uint64_t flags,
                   void* context) noexcept {
    return domain_open(self, info, domain, flags, context);
}

fi_ops fabric_fid_ops = fid_ops(fabric_close);

fi_ops_fabric fabric_ops = {
    .size = sizeof(fi_ops_fabric),
    .domain = fabric_domain,
    .passive_ep = pep_open,
    .eq_open = eq_open,
    .wait_open = wait_open,
    .trywait = fabric_trywait,
    .domain2 = fabric_domain2,
};

}  // namespace

int fabric_open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept {
    return entry([&]() -> int {
        if (attr == nullptr ||
            (attr->name != nullptr && std::strcmp(attr->name, kFabricName) != 0)) {
            RVT_WARN(kFabric, "cannot open fabric: %s asked, %s offered",
                     attr != nullptr ? attr->name : "no attributes", kFabricName);
            return attr == nullptr ? -FI_EINVAL : -FI_ENODATA;
        }
        auto* made = new Fabric;
        made->handle.fid = {FI_CLASS_FABRIC, context, &fabric_fid_ops};
        made->handle.ops = &fabric_ops;
        made->handle.api_version = attr->api_version;  // libfabric sets it again once we return
        registry::add(&made->handle.fid, kFabricName);
        *fabric = &made->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
