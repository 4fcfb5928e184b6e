// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The life of an RDM endpoint: open, bind, enable, names, control, close. fi_endpoint(3), fi_cm(3).
#include "ofi/ep_rdm.h"

#include <rdma/fi_ext_rvt.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ofi/address_format.h"
#include "ofi/av.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/ep_alias.h"
#include "ofi/ep_bind.h"
#include "ofi/ep_rdm_device.h"
#include "ofi/ep_tables.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/op_flags.h"
#include "ofi/refuse.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(offsetof(fid_ep, fid) == 0);

std::array<const RdmOps*, kLockPolicies> rdm_engine{};

constexpr std::uint64_t kCntrBindFlags =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

std::array<Cq*, 2> queues_of(const EpRdm& ep) noexcept {
    return {ep.tx_cq, ep.rx_cq};
}

std::array<Cntr*, 6> counters_of(const EpRdm& ep) noexcept {
    const EpRdm::Counters& c = ep.counters;
    return {c.send, c.recv, c.read, c.write, c.remote_read, c.remote_write};
}

core::Counter* counter_of(Cntr* cntr) noexcept {
    return cntr != nullptr ? &cntr->counter : nullptr;
}

// ---- close ----

void drop_queues(const std::array<Cq*, 2>& queues, const std::array<Cntr*, 6>& cntrs) noexcept {
    for (Cq* cq : queues) {
        if (cq != nullptr) {
            cq->users.drop();
        }
    }
    for (Cntr* cntr : cntrs) {
        if (cntr != nullptr) {
            cntr->users.drop();
        }
    }
}

int ep_rdm_close(fid* self) noexcept {
    EpRdm& ep = EpRdm::from(self);
    if (ep.aliases.is_any()) {
        return -FI_EBUSY;
    }
    const util::Status ended = ep.engine->end_copies(kCloseTimeoutMs);
    if (!ended.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot close endpoint: a peer copies to or from memory of this process");
        return to_fi(ended);
    }
    const auto queues = queues_of(ep);
    const auto cntrs = counters_of(ep);
    leave_queues(*ep.engine, queues, cntrs);
    Domain& domain = *ep.domain;
    domain.remove_endpoint(*ep.engine);
    Av* const av = ep.av;
    Eq* const eq = ep.eq;
    ep.device_watches.reset();
    if (eq != nullptr) {
        eq->forget(self);
    }
    ep.destroy(&ep);  // until then the control thread may complete into its queues
    drop_queues(queues, cntrs);
    if (av != nullptr) {
        av->users.drop();
    }
    if (eq != nullptr) {
        eq->users.drop();
    }
    domain.users.drop();
    return 0;
}

// ---- bind ----

core::RdCompletion completion_of(const EpRdm& ep) noexcept {
    return {
        .tx_cq = ep.tx_cq != nullptr ? ep.tx_cq->queue : nullptr,
        .rx_cq = ep.rx_cq != nullptr ? ep.rx_cq->queue : nullptr,
        .send = counter_of(ep.counters.send),
        .recv = counter_of(ep.counters.recv),
        .read = counter_of(ep.counters.read),
        .write = counter_of(ep.counters.write),
        .remote_read = counter_of(ep.counters.remote_read),
        .remote_write = counter_of(ep.counters.remote_write),
    };
}

/// fi_endpoint(3) wants counters to be bound before the endpoint is enabled. Sandia OpenSHMEM binds
/// them later, which other providers let it do.
int bind_events(EpRdm& ep, Cntr& cntr, std::uint64_t flags) {
    const CntrPlace places[] = {
        {FI_SEND, ep.counters.send},
        {FI_RECV, ep.counters.recv},
        {FI_READ, ep.counters.read},
        {FI_WRITE, ep.counters.write},
        {FI_REMOTE_READ, ep.counters.remote_read},
        {FI_REMOTE_WRITE, ep.counters.remote_write},
    };
    const int bound = bind_cntr(ep, cntr, flags, kCntrBindFlags, places);
    if (bound == 0 && (flags & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0 &&
        (ep.caps & FI_RMA_EVENT) == 0) {
        RVT_WARN(kEpCtrl,
                 "a counter of remote accesses misses those that peers of this host carry out by "
                 "themselves: FI_RMA_EVENT was not asked for");
    }
    if (bound != 0 || !ep.is_enabled) {
        return bound;
    }
    util::Status joined;
    for (int events = std::popcount(flags); events > 0 && joined.is_ok(); --events) {
        joined = cntr.add_source(*ep.engine);  // each is removed when the endpoint is closed
    }
    if (!joined.is_ok()) {
        unbind_cntr(cntr, flags, places);
        return to_fi(joined);
    }
    ep.engine->bind(completion_of(ep), &ep.av->addresses);
    ep.prepare_flags();
    return 0;
}

int bind_av(EpRdm& ep, Av& av, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (av.domain != ep.domain) {
        return -FI_EDOMAIN;
    }
    if (ep.av != nullptr) {
        return -FI_EINVAL;
    }
    ep.av = &av;
    av.users.add();
    return 0;
}

int ep_rdm_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    EpRdm& ep = EpRdm::from(self);
    if (other != nullptr && other->fclass == FI_CLASS_CNTR) {
        return entry([&] { return bind_events(ep, Cntr::from(other), flags); });
    }
    if (ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    if (other == nullptr) {
        return -FI_EINVAL;
    }
    switch (other->fclass) {
        case FI_CLASS_CQ: return bind_cq(ep, Cq::from(other), flags);
        case FI_CLASS_AV: return bind_av(ep, Av::from(other), flags);
        case FI_CLASS_EQ: return bind_eq(ep, Eq::from(other), flags);
        default: return -FI_EINVAL;
    }
}

// ---- enable ----

/// What is missing before the endpoint can work, or 0.
int check_bound(const EpRdm& ep) noexcept {
    if (ep.av == nullptr) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint: no address vector bound");
        return -FI_ENOAV;
    }
    const bool has_tx = ep.tx_cq != nullptr || ep.counters.send != nullptr ||
                        ep.counters.read != nullptr || ep.counters.write != nullptr;
    const bool has_rx = ep.rx_cq != nullptr || ep.counters.recv != nullptr;
    const bool sends = (ep.caps & (FI_SEND | FI_READ | FI_WRITE)) != 0;
    const bool receives = (ep.caps & FI_RECV) != 0;
    if ((sends && !has_tx) || (receives && !has_rx)) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint: no completion queue or counter bound for %s",
                 sends && !has_tx ? "FI_TRANSMIT" : "FI_RECV");
        return -FI_ENOCQ;
    }
    return 0;
}

/// Throws bad_alloc.
void choose_tables(EpRdm& ep) {
    if ((ep.caps & FI_HMEM) != 0) {
        ep.device_tables = std::make_unique<EpTables>(device_tables(ep.ops->tables));
    }
    auto* const ops =
        ep.device_tables != nullptr ? ep.device_tables.get() : &const_cast<RdmOps*>(ep.ops)->tables;
    ep.handle.msg = (ep.caps & FI_MSG) != 0 ? &ops->msg : &absent_tables.msg;
    ep.handle.tagged = (ep.caps & FI_TAGGED) != 0 ? &ops->tagged : &absent_tables.tagged;
    ep.handle.rma = (ep.caps & FI_RMA) != 0 ? &ops->rma : &absent_tables.rma;
    ep.handle.atomic = (ep.caps & FI_ATOMIC) != 0 ? &ops->atomic : &absent_tables.atomic;
}

/// Binds the port if it has none yet.
util::Status enable_engine(EpRdm& ep) {
    const std::lock_guard guard(ep.name_lock);
    return ep.engine->enable();
}

/// What happens to what leads to other hosts is told to the queues of the endpoint and of the
/// domain. An endpoint does without where that cannot be, as with a NIC that has just gone.
void watch_devices(EpRdm& ep) {
    Domain& domain = *ep.domain;
    if (ep.eq == nullptr && domain.eq == nullptr) {
        return;
    }
    const std::array<core::Device*, 2> devices = ep.engine->watch_wire();
    ep.device_watches = std::make_unique<std::array<DeviceWatch, 2>>();
    util::Status started;
    for (std::size_t i = 0; i < devices.size() && started.is_ok(); ++i) {
        if (devices[i] != nullptr) {
            started = ep.device_watches->at(i).start(
                *devices[i], {{{ep.eq, &ep.handle.fid}, {domain.eq, &domain.handle.fid}}});
        }
    }
    if (!started.is_ok()) {
        RVT_WARN(kEpCtrl, "no event queue hears of the interface of the endpoint at %s: %s",
                 ep.engine->address().to_string().c_str(), strerrordesc_np(started.error()));
    }
}

int enable(EpRdm& ep) {
    if (ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    const int missing = check_bound(ep);
    if (missing != 0) {
        return missing;
    }
    ep.engine->bind(completion_of(ep), &ep.av->addresses);
    if (ep.hmem_options.p2p == FI_HMEM_P2P_DISABLED) {
        ep.engine->forbid_p2p();
    }
    util::Status enabled = enable_engine(ep);
    if (enabled.is_ok()) {
        watch_devices(ep);
        enabled = join_queues(*ep.engine, queues_of(ep), counters_of(ep));
    }
    if (enabled.is_ok()) {
        enabled = ep.domain->add_endpoint(*ep.engine);
        if (!enabled.is_ok()) {
            leave_queues(*ep.engine, queues_of(ep), counters_of(ep));
        }
    }
    if (!enabled.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint at %s: %s", ep.attr.bind.to_string().c_str(),
                 strerrordesc_np(enabled.error()));
        return to_fi(enabled);
    }
    ep.prepare_flags();
    choose_tables(ep);
    ep.is_enabled = true;
    ep.hmem_options.is_enabled = true;
    RVT_INFO(kEpCtrl, "endpoint enabled at %s", ep.engine->address().to_string().c_str());
    return 0;
}

// ---- control ----

int change_op_flags(EpRdm& ep, std::uint64_t flags) noexcept {
    const int changed =
        set_op_flags(ep.tx_op_flags, ep.rx_op_flags, {kTxOpFlags, kRxOpFlags}, flags);
    ep.prepare_flags();
    return changed;
}

int ep_rdm_control(fid* self, int command, void* argument) noexcept {
    EpRdm& ep = EpRdm::from(self);
    switch (command) {
        case FI_ENABLE: return entry([&] { return enable(ep); });
        case FI_GETOPSFLAG:
            return get_op_flags({ep.tx_op_flags, ep.rx_op_flags},
                                *static_cast<std::uint64_t*>(argument));
        case FI_SETOPSFLAG: return change_op_flags(ep, *static_cast<std::uint64_t*>(argument));
        case FI_ALIAS: return ep_alias_open(ep, *static_cast<struct fi_alias*>(argument));
        default: return -FI_ENOSYS;
    }
}

ssize_t ep_rdm_cancel(fid* self, void* context) noexcept {
    EpRdm& ep = EpRdm::from(self);
    return ep.is_enabled ? to_fi(ep.engine->cancel(context)) : -FI_EOPBADSTATE;
}

// ---- names ----

util::Status bind_if_unbound(EpRdm& ep) {
    const std::lock_guard guard(ep.name_lock);
    return ep.engine->address().port != 0 ? util::kOk : ep.engine->bind_address(ep.attr.bind);
}

/// An endpoint has a name once it is bound to a port; asking for it binds it.
int ep_rdm_getname(fid* self, void* address, std::size_t* bytes) noexcept {
    if (bytes == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        EpRdm& ep = EpRdm::from(self);
        if (const util::Status bound = bind_if_unbound(ep); !bound.is_ok()) {
            return to_fi(bound);
        }
        const bool has_room =
            write_formatted_address(ep.domain->addr_format, ep.engine->address(), address, bytes);
        return has_room ? 0 : -FI_ETOOSMALL;
    });
}

int ep_rdm_setname(fid* self, void* address, std::size_t bytes) noexcept {
    return entry([&]() -> int {
        EpRdm& ep = EpRdm::from(self);
        util::Result<util::SockAddr> wanted =
            read_sized_address(ep.domain->addr_format, address, bytes);
        if (wanted.is_ok()) {
            wanted = at_home(wanted.value(), ep.domain->home());
        }
        if (!wanted.is_ok()) {
            return to_fi(wanted.status());
        }
        const std::lock_guard guard(ep.name_lock);
        const util::Status bound = ep.engine->bind_address(wanted.value());
        if (bound.is_ok()) {
            ep.attr.bind = wanted.value();
        }
        return to_fi(bound);
    });
}

constexpr Refuse<-FI_ENOSYS> kNoConnections{};
constexpr Refuse<-FI_ENOSYS> kNoContexts{};

// ---- extensions, rdma/fi_ext_rvt.h

int ep_rdm_describe_peer(fid_ep* self, fi_addr_t peer, char* buffer, std::size_t* bytes) noexcept {
    return entry([&]() -> int {
        EpRdm& ep = EpRdm::from(self);
        if (!ep.is_enabled) {
            return -FI_EOPBADSTATE;
        }
        const std::string text = ep.engine->describe_peer(peer);
        copy_text(text.c_str(), buffer, *bytes);
        *bytes = text.size() + 1;
        return 0;
    });
}

fi_rvt_ops_ep ep_rdm_extension = {
    .size = sizeof(fi_rvt_ops_ep),
    .describe_peer = ep_rdm_describe_peer,
};

int ep_rdm_ops_open(fid* /*self*/, const char* name, std::uint64_t flags, void** ops,
                    void* /*context*/) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (std::strcmp(name, FI_RVT_EP_OPS) != 0) {
        return -FI_ENOSYS;
    }
    *ops = &ep_rdm_extension;
    return 0;
}

fi_ops ep_rdm_fid_ops = fid_ops(ep_rdm_close, ep_rdm_bind, ep_rdm_control, ep_rdm_ops_open);

fi_ops_ep ep_rdm_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = ep_rdm_cancel,
    .getopt = ep_rdm_getopt,
    .setopt = ep_rdm_setopt,
    .tx_ctx = kNoContexts,
    .rx_ctx = kNoContexts,
    .rx_size_left = kNoContexts,  // deprecated calls; a full queue answers -FI_EAGAIN
    .tx_size_left = kNoContexts,
};

// ---- open ----

/// The capabilities of both sides together; a side that was narrowed loses its own.
std::uint64_t caps_of(const fi_info& info) noexcept {
    std::uint64_t caps = info.caps;
    if (info.tx_attr != nullptr && info.tx_attr->caps != 0) {
        caps &= ~(FI_SEND | FI_READ | FI_WRITE) | info.tx_attr->caps;
    }
    if (info.rx_attr != nullptr && info.rx_attr->caps != 0) {
        caps &= ~(FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE) | info.rx_attr->caps;
    }
    return caps;
}

int fill_attr(core::RdAttr& attr, const Domain& domain, const fi_info& info) {
    const auto source = source_of(info, domain.addr_format, domain.home());
    if (!source.is_ok()) {
        return to_fi(source.status());
    }
    attr.bind = source.value();
    if (info.tx_attr != nullptr && info.tx_attr->size != 0) {
        attr.tx_size = info.tx_attr->size;
    }
    if (info.rx_attr != nullptr) {
        attr.rx_size = info.rx_attr->size != 0 ? info.rx_attr->size : attr.rx_size;
        attr.total_buffered_recv = info.rx_attr->total_buffered_recv != 0
                                       ? info.rx_attr->total_buffered_recv
                                       : attr.total_buffered_recv;
    }
    attr.has_auto_progress = domain.has_auto_progress;
    attr.wants_rma_events = (info.caps & FI_RMA_EVENT) != 0;
    attr.orders_reads = info.tx_attr != nullptr && (info.tx_attr->msg_order & kOrderOfReads) != 0;
    return 0;
}

int check_info(const fi_info* info) noexcept {
    if (info == nullptr || info->ep_attr == nullptr) {
        return -FI_EINVAL;
    }
    if (info->ep_attr->type != FI_EP_RDM) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: type %d asked, FI_EP_RDM offered",
                 static_cast<int>(info->ep_attr->type));
        return -FI_ENOSYS;
    }
    if (info->ep_attr->tx_ctx_cnt > 1 || info->ep_attr->rx_ctx_cnt > 1) {
        RVT_WARN(kEpCtrl,
                 "cannot open endpoint: shared or several contexts asked, 1 of each kind offered");
        return -FI_EINVAL;
    }
    return 0;
}

int open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
    core::RdAttr attr;
    const int refused = fill_attr(attr, domain, info);
    if (refused != 0) {
        return refused;
    }
    const RdmOps* const ops = rdm_engine[static_cast<std::size_t>(domain.lock.policy())];
    if (ops == nullptr) {
        return -FI_ENOSYS;
    }
    EpRdm* const made = ops->create(domain, attr);
    made->ops = ops;
    made->domain = &domain;
    made->attr = attr;
    made->caps = caps_of(info);
    made->hmem_options.reach = HmemReach::kAnyPeer;
    made->tx_op_flags = info.tx_attr != nullptr ? info.tx_attr->op_flags : 0;
    made->rx_op_flags = info.rx_attr != nullptr ? info.rx_attr->op_flags : 0;
    made->handle.fid = {FI_CLASS_EP, context, &ep_rdm_fid_ops};
    made->handle.ops = &ep_rdm_ops;
    made->handle.cm = &ep_rdm_cm_ops;
    made->handle.msg = &not_enabled_tables.msg;
    made->handle.tagged = &not_enabled_tables.tagged;
    made->handle.rma = &not_enabled_tables.rma;
    made->handle.atomic = &not_enabled_tables.atomic;
    made->handle.collective = &absent_collective_ops;
    domain.users.add();
    *ep = &made->handle;
    return 0;
}

}  // namespace

constinit fi_ops_cm ep_rdm_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = ep_rdm_setname,
    .getname = ep_rdm_getname,
    .getpeer = kNoConnections,
    .connect = kNoConnections,
    .listen = kNoConnections,
    .accept = kNoConnections,
    .reject = kNoConnections,
    .shutdown = kNoConnections,
    .join = kNoConnections,
};

/// fi_endpoint(3), "operation flags": op_flags are for calls without flags of their own. Without
/// FI_SELECTIVE_COMPLETION every operation completes; with it only those that say so.
void EpRdm::prepare_flags() noexcept {
    const RdFlags tx_always = is_tx_selective ? RdFlags::kNone : RdFlags::kCompletion;
    const RdFlags rx_always = is_rx_selective ? RdFlags::kNone : RdFlags::kCompletion;
    tx_mask = tx_cq != nullptr ? ~RdFlags::kNone : ~RdFlags::kCompletion;
    rx_mask = rx_cq != nullptr ? ~RdFlags::kNone : ~RdFlags::kCompletion;
    const RdFlags rma_event = (caps & FI_RMA_EVENT) != 0 ? RdFlags::kRmaEvent : RdFlags::kNone;
    send_base = tx_always;
    access_base = tx_always | rma_event;
    recv_base = rx_always;
    send_flags = send_flags_of(tx_op_flags);
    access_flags = access_flags_of(tx_op_flags);
    // Who counts writes flushes a window by it, also without FI_DELIVERY_COMPLETE. Without a
    // counter nobody can wait for an injected one.
    inject_access_flags = RdFlags::kInject | rma_event;
    if (counters.write != nullptr) {
        inject_access_flags = inject_access_flags | RdFlags::kDeliveryComplete;
    }
    recv_flags = recv_flags_of(rx_op_flags);
    tagged_recv_flags = recv_flags & ~RdFlags::kMultiRecv;
    const auto mask_without = [this](std::uint64_t directed) {
        return (caps & directed) != 0 ? 0 : ~std::uint64_t{0};
    };
    source_mask = mask_without(FI_DIRECTED_RECV);
    tagged_source_mask = mask_without(FI_DIRECTED_RECV | kTaggedDirectedRecv);
}

int ep_rdm_open(fid_domain* domain, fi_info* info, fid_ep** ep, std::uint64_t flags,
                void* context) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    const int refused = check_info(info);
    return refused != 0 ? refused
                        : entry([&] { return open(Domain::from(domain), *info, ep, context); });
}

void set_rdm_engine(const std::array<const RdmOps*, kLockPolicies>& ops) noexcept {
    rdm_engine = ops;
}

}  // namespace rvt::ofi
