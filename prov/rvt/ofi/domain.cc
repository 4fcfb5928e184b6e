// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening, binding and closing of domains. fi_domain(3).
#include "ofi/domain.h"

#include <algorithm>
#include <type_traits>

#include "hmem/claimants.h"
#include "hmem/opened_memory.h"
#include "ofi/atomic_valid.h"
#include "ofi/av.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/ep_dgram.h"
#include "ofi/ep_msg.h"
#include "ofi/ep_rdm.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/mr.h"
#include "ofi/msg_domain.h"
#include "ofi/msg_nic.h"
#include "ofi/poll_set.h"
#include "ofi/registry.h"
#include "ofi/srx.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(offsetof(fid_domain, fid) == 0);

constexpr std::uint64_t kRegMr = std::uint64_t{1}
                                 << 59;  // FI_REG_MR, whose name newer headers warn of

int domain_close(fid* self) noexcept {
    Domain& domain = Domain::from(self);
    if (domain.users.is_any()) {
        return -FI_EBUSY;
    }
    registry::remove(self);
    if (domain.eq != nullptr) {
        domain.nic_events.reset();
        domain.eq->forget(self);
        domain.eq->users.drop();
    }
    domain.fabric->users.drop();
    delete &domain;
    return 0;
}

/// What happens to the NIC is told to the queue.
util::Status watch_nic(Domain& domain) {
    domain.nic_events = std::make_unique<util::Watched<DeviceEvents>>();
    return domain.nic_events->start(DeviceNews{.context = domain.nic_context.get(),
                                               .told = {{{domain.eq, &domain.handle.fid}}}});
}

int domain_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    Domain& domain = Domain::from(self);
    if (other->fclass != FI_CLASS_EQ) {
        return -FI_EINVAL;
    }
    if ((flags & ~kRegMr) != 0) {
        return -FI_EBADFLAGS;
    }
    if (domain.eq != nullptr) {
        return -FI_EALREADY;
    }
    domain.eq = &Eq::from(other);
    const int watched = domain.nic == nullptr ? 0 : entry([&] { return to_fi(watch_nic(domain)); });
    if (watched != 0) {
        domain.nic_events.reset();
        domain.eq = nullptr;
        return watched;
    }
    domain.eq_flags = flags;
    domain.eq->users.add();
    return 0;
}

/// No transmit context is shared between endpoints; max_ep_stx_ctx says 0.
int domain_stx_ctx(fid_domain* /*self*/, fi_tx_attr* /*attr*/, fid_stx** /*stx*/,
                   void* /*context*/) noexcept {
    return -FI_ENOSYS;
}
int domain_scalable_ep(fid_domain* /*self*/, fi_info* /*info*/, fid_ep** /*sep*/,
                       void* /*context*/) noexcept {
    return -FI_ENOSYS;
}
int domain_query_collective(fid_domain* /*self*/, fi_collective_op /*op*/,
                            fi_collective_attr* /*attr*/, std::uint64_t /*flags*/) noexcept {
    return -FI_ENOSYS;
}

fi_ep_type type_of(const fi_info* info) noexcept {
    return info != nullptr && info->ep_attr != nullptr ? info->ep_attr->type : FI_EP_UNSPEC;
}

/// Whether there are endpoints of that type over NICs, in domains of their own.
bool is_of_nic(fi_ep_type type) noexcept {
    return type == FI_EP_MSG || type == FI_EP_DGRAM;
}

int domain_endpoint2(fid_domain* self, fi_info* info, fid_ep** ep, std::uint64_t flags,
                     void* context) noexcept {
    if (Domain::from(self).nic != nullptr && !is_of_nic(type_of(info))) {
        RVT_WARN(kDomain,
                 "cannot open endpoint: the domain of a NIC has FI_EP_MSG and FI_EP_DGRAM alone");
        return -FI_EINVAL;
    }
    switch (type_of(info)) {
        case FI_EP_DGRAM: return ep_dgram_open(self, info, ep, flags, context);
        case FI_EP_MSG: break;
        default: return ep_rdm_open(self, info, ep, flags, context);
    }
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    return entry([&] { return ep_msg_open(Domain::from(self), *info, ep, context); });
}
int domain_endpoint(fid_domain* self, fi_info* info, fid_ep** ep, void* context) noexcept {
    return domain_endpoint2(self, info, ep, 0, context);
}

int domain_control(fid* /*self*/, int command, void* argument) noexcept {
    switch (command) {
        case FI_MAP_RAW_MR: return domain_map_raw_key(static_cast<struct fi_mr_map_raw*>(argument));
        case FI_UNMAP_KEY: return 0;
        default: return -FI_ENOSYS;
    }
}

fi_ops domain_fid_ops = fid_ops(domain_close, domain_bind, domain_control);

fi_ops_domain domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = av_open,
    .cq_open = cq_open,
    .endpoint = domain_endpoint,
    .scalable_ep = domain_scalable_ep,
    .cntr_open = cntr_open,
    .poll_open = poll_open,
    .stx_ctx = domain_stx_ctx,
    .srx_ctx = srx_open,
    .query_atomic = domain_query_atomic,
    .query_collective = domain_query_collective,
    .endpoint2 = domain_endpoint2,
};

/// The table lies in a memory file that peers map; where there are no such files, in memory of this
/// process alone, and peers then ask for every access.
util::Result<void*> open_key_block(Domain& domain, std::size_t bytes) {
    util::Result<util::Mapping> file =
        util::Mapping::create("rvt-keys", bytes, core::KeyTable::block_bytes(1));
    if (file.is_ok()) {
        domain.key_file = file.take();
        return static_cast<void*>(domain.key_file.at<char>(0));
    }
    RVT_INFO(kDomain, "key table of %zu bytes is not shared with peers: %s", bytes,
             strerrordesc_np(file.error()));
    domain.key_memory = util::PrivateMemory::allocate(bytes);
    if (domain.key_memory.data() == nullptr) {
        return ENOMEM;
    }
    return domain.key_memory.data();
}

util::Status open_keys(Domain& domain) {
    const std::size_t bytes = core::KeyTable::block_bytes(kKeyTableEntries);
    const util::Result<void*> block = open_key_block(domain, bytes);
    if (!block.is_ok()) {
        return block.status();
    }
    util::Result<std::unique_ptr<core::KeyTable>> table =
        core::KeyTable::create(block.value(), bytes);
    if (!table.is_ok()) {
        return table.status();
    }
    domain.keys = table.take();
    return util::kOk;
}

/// Opens the NIC that the info names, if it names one, or takes in the interface.
util::Status open_nic(Domain& domain, const fi_info& info) {
    auto nic = open_msg_nic(info);
    if (!nic.is_ok() && is_interface(info.domain_attr->name)) {
        domain.interface = info.domain_attr->name;
        return util::kOk;
    }
    if (!nic.is_ok() || nic.value() == nullptr) {
        return nic.status();
    }
    if (!is_of_nic(type_of(&info))) {
        return EINVAL;
    }
    domain.nic = nic.take();
    const util::Status opened =
        core::keep(domain.nic_context, core::open_device(domain.nic->device()));
    return opened.is_ok() ? core::keep(domain.nic_pd, core::alloc_pd(*domain.nic_context)) : opened;
}

void copy_attributes(Domain& domain, const fi_info& info) noexcept {
    const fi_domain_attr& attr = *info.domain_attr;
    domain.caps = info.caps;
    domain.addr_format = info.addr_format != FI_FORMAT_UNSPEC && info.addr_format != FI_SOCKADDR
                             ? info.addr_format
                             : std::uint32_t{FI_SOCKADDR_IN};
    domain.av_type = attr.av_type;
    domain.has_auto_progress = attr.data_progress == FI_PROGRESS_AUTO;
    domain.mr_mode = to_mr_mode(domain.version(), attr.mr_mode);
}

/// What the domain's regions are named by: its NIC, or a table of keys.
int open_parts(Domain& domain, const fi_info& info) {
    if (const util::Status opened = open_nic(domain, info); !opened.is_ok()) {
        const bool is_unknown = opened.error() == ENODEV || opened.error() == EINVAL;
        RVT_WARN(kDomain, "cannot open domain %s/%s: %s", kFabricName, info.domain_attr->name,
                 is_unknown ? "no info of ours has that name and type"
                            : strerrordesc_np(opened.error()));
        return is_unknown ? -FI_EINVAL : to_fi(opened);
    }
    const util::Status keys = domain.nic == nullptr ? open_keys(domain) : util::kOk;
    if (!keys.is_ok()) {
        RVT_WARN(kDomain, "cannot open domain: key table of %u entries: %s", kKeyTableEntries,
                 strerrordesc_np(keys.error()));
    }
    return to_fi(keys);
}

}  // namespace

const char* Domain::name() const noexcept {
    return nic != nullptr       ? nic->name().c_str()
           : !interface.empty() ? interface.c_str()
                                : kDomainName;
}

Home Domain::home() const noexcept {
    return {.interface = interface, .is_nics = nic != nullptr};
}

Domain::Domain(LockPolicy policy) noexcept : lock(policy) {}
Domain::~Domain() = default;

util::Status Domain::open_msg() {
    const std::lock_guard guard(msg_lock);
    if (msg == nullptr) {
        auto made = MsgDomain::open(*this);
        if (!made.is_ok()) {
            return made.status();
        }
        msg = made.take();
    }
    return util::kOk;
}

core::RdKeys Domain::rd_keys() noexcept {
    return {
        .table = keys.get(),
        .memory = key_file.is_mapped() ? &key_file : nullptr,
        .has_user_keys = !mr_mode.has_provider_keys,
        .accessed = count_region_access,
        .accessed_context = this,
        .opener = (caps & FI_HMEM) != 0 ? &hmem::opener() : nullptr,
        .has_p2p = !hmem::has_no_p2p(),
    };
}

util::Status Domain::watch_key(std::uint64_t key, Cntr& cntr) {
    const std::lock_guard guard(endpoints_lock);
    for (auto at = endpoints.begin(); at != endpoints.end(); ++at) {
        const util::Status joined = cntr.add_source(**at);
        if (!joined.is_ok()) {
            std::for_each(endpoints.begin(), at,
                          [&](core::RdEndpoint* each) { cntr.remove_source(*each); });
            return joined;
        }
    }
    const util::Guard<DomainLock> lock_guard(lock);
    watched_keys[key] = &cntr;
    return util::kOk;
}

void Domain::unwatch_key(std::uint64_t key) noexcept {
    const std::lock_guard guard(endpoints_lock);
    Cntr& cntr = *watched_keys.at(key);
    for (const core::RdEndpoint* const each : endpoints) {
        cntr.remove_source(*each);
    }
    const util::Guard<DomainLock> lock_guard(lock);
    watched_keys.erase(key);
}

void Domain::count_key(std::uint64_t key) noexcept {
    const auto found = watched_keys.find(key);
    if (found != watched_keys.end()) {
        found->second->counter.add(1);
    }
}

util::Status Domain::add_endpoint(core::RdEndpoint& endpoint) {
    const std::lock_guard guard(endpoints_lock);
    for (auto at = watched_keys.begin(); at != watched_keys.end(); ++at) {
        const util::Status joined = at->second->add_source(endpoint);
        if (!joined.is_ok()) {
            std::for_each(watched_keys.begin(), at,
                          [&](const auto& each) { each.second->remove_source(endpoint); });
            return joined;
        }
    }
    const util::Guard<DomainLock> lock_guard(lock);
    endpoints.push_back(&endpoint);
    has_several_endpoints = endpoints.size() > 1;
    return util::kOk;
}

void Domain::remove_endpoint(const core::RdEndpoint& endpoint) noexcept {
    const std::lock_guard guard(endpoints_lock);
    if (std::ranges::find(endpoints, &endpoint) == endpoints.end()) {
        return;  // it was never enabled
    }
    for (const auto& [key, cntr] : watched_keys) {
        cntr->remove_source(endpoint);
    }
    const util::Guard<DomainLock> lock_guard(lock);
    std::erase(endpoints, &endpoint);
    has_several_endpoints = endpoints.size() > 1;
}

void Domain::send_for_next_locked() noexcept {
    next_sender = next_sender + 1 < endpoints.size() ? next_sender + 1 : 0;
    endpoints[next_sender]->send_waiting_locked();
}

bool Domain::may_sleep_locked() const noexcept {
    return !has_several_endpoints ||
           std::ranges::none_of(endpoints, &core::RdEndpoint::has_unsent_locked);
}

MrMode to_mr_mode(std::uint32_t version, int mr_mode) noexcept {
    if (mr_mode == kMrBasic) {
        return {.has_virtual_addresses = true, .has_provider_keys = true};
    }
    if (mr_mode == kMrScalable || version < kVersionMrModeBits) {
        return {};
    }
    return {.has_virtual_addresses = (mr_mode & FI_MR_VIRT_ADDR) != 0,
            .has_provider_keys = (mr_mode & FI_MR_PROV_KEY) != 0};
}

int domain_open(fid_fabric* fabric, fi_info* info, fid_domain** domain, std::uint64_t flags,
                void* context) noexcept {
    return entry([&]() -> int {
        if (flags != 0) {
            return -FI_EBADFLAGS;
        }
        if (info == nullptr || info->domain_attr == nullptr) {
            return -FI_EINVAL;
        }
        auto made = std::make_unique<Domain>(choose_lock_policy(info->domain_attr->threading));
        made->fabric = &Fabric::from(fabric);
        copy_attributes(*made, *info);
        made->has_msg_info = type_of(info) == FI_EP_MSG;
        if (const int refused = open_parts(*made, *info); refused != 0) {
            return refused;
        }
        made->handle.fid = {FI_CLASS_DOMAIN, context, &domain_fid_ops};
        made->handle.ops = &domain_ops;
        made->handle.mr = &domain_mr_ops;
        registry::add(&made->handle.fid,
                      made->nic != nullptr ? made->nic->identity().c_str() : made->name());
        made->fabric->users.add();
        *domain = &made.release()->handle;
        return 0;
    });
}

}  // namespace rvt::ofi
