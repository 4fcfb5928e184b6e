// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The life of a datagram endpoint: open, bind, enable, names, options, close. fi_endpoint(3),
// fi_cm(3).
#include "ofi/ep_dgram.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/shortage.h"
#include "ofi/address_format.h"
#include "ofi/av.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/ep_bind.h"
#include "ofi/ep_dgram_device.inl"
#include "ofi/ep_dgram_msg.inl"
#include "ofi/ep_tables.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/mc.h"
#include "ofi/op_flags.h"
#include "ofi/refuse.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(offsetof(fid_ep, fid) == 0);

DgramHosts hosts;

constexpr std::uint64_t kCntrBindFlags =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr unsigned kControlRounds = 16;

// In the order of LockPolicy.
constinit std::array<fi_ops_msg, kLockPolicies> msg_ops = {ep_dgram_msg_ops<util::OwnerLock>(),
                                                           ep_dgram_msg_ops<util::SpinLock>()};
constinit std::array<fi_ops_msg, kLockPolicies> device_msg_ops = {
    ep_dgram_device_ops<util::OwnerLock>(), ep_dgram_device_ops<util::SpinLock>()};

std::array<Cq*, 2> queues_of(const EpDgram& ep) noexcept {
    return {ep.tx_cq, ep.rx_cq};
}

std::array<Cntr*, 2> counters_of(const EpDgram& ep) noexcept {
    return {ep.send_cntr, ep.recv_cntr};
}

core::Counter* counter_of(Cntr* cntr) noexcept {
    return cntr != nullptr ? &cntr->counter : nullptr;
}

// ---- close ----

int ep_dgram_close(fid* self) noexcept {
    EpDgram& ep = EpDgram::from(self);
    if (ep.groups.is_any()) {
        return -FI_EBUSY;
    }
    const auto queues = queues_of(ep);
    const auto cntrs = counters_of(ep);
    leave_queues(ep.endpoint, queues, cntrs);
    Domain& domain = *ep.domain;
    Av* const av = ep.av;
    Eq* const eq = ep.eq;
    if (av != nullptr) {
        av->addresses.remove_observer(&ep.user);
    }
    ep.events.reset();
    if (eq != nullptr) {
        eq->forget(self);
    }
    delete &ep;  // until then the control thread may complete into its queues
    std::ranges::for_each(queues, drop<Cq>);
    std::ranges::for_each(cntrs, drop<Cntr>);
    drop(av);
    drop(eq);
    domain.users.drop();
    return 0;
}

// ---- bind ----

/// Events that datagrams do not have may be asked for, and do not happen.
int bind_events(EpDgram& ep, Cntr& cntr, std::uint64_t flags) noexcept {
    const CntrPlace places[] = {
        {FI_SEND, ep.send_cntr},
        {FI_RECV, ep.recv_cntr},
    };
    return bind_cntr(ep, cntr, flags, kCntrBindFlags, places);
}

int bind_av(EpDgram& ep, Av& av, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (av.domain != ep.domain) {
        return -FI_EDOMAIN;
    }
    if (ep.av != nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        av.addresses.add_observer(&ep.user);
        ep.av = &av;
        av.users.add();
        return 0;
    });
}

int ep_dgram_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    EpDgram& ep = EpDgram::from(self);
    if (ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    if (other == nullptr) {
        return -FI_EINVAL;
    }
    switch (other->fclass) {
        case FI_CLASS_CQ: return bind_cq(ep, Cq::from(other), flags);
        case FI_CLASS_CNTR: return bind_events(ep, Cntr::from(other), flags);
        case FI_CLASS_AV: return bind_av(ep, Av::from(other), flags);
        case FI_CLASS_EQ: return bind_eq(ep, Eq::from(other), flags);
        default: return -FI_EINVAL;
    }
}

// ---- enable ----

/// What is missing before the endpoint can work, or 0.
int check_bound(const EpDgram& ep) noexcept {
    if (ep.av == nullptr) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint: no address vector bound");
        return -FI_ENOAV;
    }
    const bool lacks_tx =
        (ep.caps & FI_SEND) != 0 && ep.tx_cq == nullptr && ep.send_cntr == nullptr;
    const bool lacks_rx =
        (ep.caps & FI_RECV) != 0 && ep.rx_cq == nullptr && ep.recv_cntr == nullptr;
    if (lacks_tx || lacks_rx) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint: no completion queue or counter bound for %s",
                 lacks_tx ? "FI_TRANSMIT" : "FI_RECV");
        return -FI_ENOCQ;
    }
    return 0;
}

/// Of rvt's own device each endpoint has one.
std::string shortage_of(const EpDgram& ep, util::Status why) {
    return ep.domain->nic != nullptr ? core::pair_shortage(ep.domain->nic->device(), why)
                                     : std::string();
}

/// An endpoint is its device: what has an address is open. Precondition: the caller holds
/// name_lock.
util::Status open_at(EpDgram& ep, const util::SockAddr& address) {
    if (ep.endpoint.host() != nullptr) {
        return EBUSY;
    }
    auto host = hosts.open(
        {.bind = address, .user = &ep.user, .has_auto_progress = ep.domain->has_auto_progress},
        ep.domain->nic.get());
    const util::Status opened = host.is_ok() ? ep.endpoint.open(host.take()) : host.status();
    if (!opened.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot open datagram endpoint at %s: %s%s", address.to_string().c_str(),
                 strerrordesc_np(opened.error()), shortage_of(ep, opened).c_str());
    }
    return opened;
}

util::Status open_if_closed(EpDgram& ep) {
    const std::lock_guard guard(ep.name_lock);
    return ep.endpoint.host() != nullptr ? util::kOk : open_at(ep, ep.bind);
}

/// An endpoint that has its name already may be polled by the control thread.
void bind_completion(EpDgram& ep) noexcept {
    const util::Guard<DomainLock> guard(ep.domain->lock);
    ep.endpoint.bind({.tx_cq = ep.tx_cq != nullptr ? ep.tx_cq->queue : nullptr,
                      .rx_cq = ep.rx_cq != nullptr ? ep.rx_cq->queue : nullptr,
                      .send = counter_of(ep.send_cntr),
                      .recv = counter_of(ep.recv_cntr)},
                     &ep.av->addresses);
}

/// What happens to the port is told to the queues of the endpoint and of the domain. A NIC's domain
/// hears of the NIC by itself.
util::Status watch_port(EpDgram& ep) {
    Domain& domain = *ep.domain;
    if (domain.nic != nullptr || (ep.eq == nullptr && domain.eq == nullptr)) {
        return util::kOk;
    }
    ep.events = std::make_unique<util::Watched<DeviceEvents>>();
    return ep.events->start(
        DeviceNews{.context = &ep.endpoint.context(),
                   .told = {{{ep.eq, &ep.handle.fid}, {domain.eq, &domain.handle.fid}}}});
}

void choose_table(EpDgram& ep) noexcept {
    auto& tables = (ep.caps & FI_HMEM) != 0 ? device_msg_ops : msg_ops;
    ep.handle.msg = (ep.caps & FI_MSG) != 0
                        ? &tables[static_cast<std::size_t>(ep.domain->lock.policy())]
                        : &absent_tables.msg;
}

int enable(EpDgram& ep) {
    if (ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    const int missing = check_bound(ep);
    if (missing != 0) {
        return missing;
    }
    bind_completion(ep);
    util::Status enabled = open_if_closed(ep);
    enabled = enabled.is_ok() ? watch_port(ep) : enabled;
    enabled = enabled.is_ok() ? join_queues(ep.endpoint, queues_of(ep), counters_of(ep)) : enabled;
    if (!enabled.is_ok()) {
        return to_fi(enabled);
    }
    ep.prepare_flags();
    choose_table(ep);
    ep.is_enabled = true;
    RVT_INFO(kEpCtrl, "datagram endpoint enabled at %s",
             ep.endpoint.host()->address().to_string().c_str());
    return 0;
}

// ---- control ----

int change_op_flags(EpDgram& ep, std::uint64_t flags) noexcept {
    const int changed =
        set_op_flags(ep.tx_op_flags, ep.rx_op_flags, {kDgramTxOpFlags, kDgramRxOpFlags}, flags);
    ep.prepare_flags();
    return changed;
}

int ep_dgram_control(fid* self, int command, void* argument) noexcept {
    EpDgram& ep = EpDgram::from(self);
    switch (command) {
        case FI_ENABLE: return entry([&] { return enable(ep); });
        case FI_GETOPSFLAG:
            return get_op_flags({ep.tx_op_flags, ep.rx_op_flags},
                                *static_cast<std::uint64_t*>(argument));
        case FI_SETOPSFLAG: return change_op_flags(ep, *static_cast<std::uint64_t*>(argument));
        default: return -FI_ENOSYS;
    }
}

ssize_t ep_dgram_cancel(fid* self, void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    if (!ep.is_enabled) {
        return -FI_EOPBADSTATE;
    }
    const util::Guard<DomainLock> guard(ep.domain->lock);
    return to_fi(ep.endpoint.cancel_locked(context));
}

/// What else there is to ask for is a size.
int ep_dgram_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    const EpDgram& ep = EpDgram::from(self);
    if (level == FI_OPT_ENDPOINT && is_hmem_option(option)) {
        return hmem_getopt(ep.hmem_options, ep.caps, option, value, bytes);
    }
    std::size_t size = 0;
    switch (level == FI_OPT_ENDPOINT ? option : -1) {
        case FI_OPT_TX_SIZE: size = ep.tx_size; break;
        case FI_OPT_RX_SIZE: size = ep.rx_size; break;
        case kOptInjectMsgSize: size = core::kUdInjectBytes; break;
        default: return -FI_ENOPROTOOPT;
    }
    const bool has_room = *bytes >= sizeof size;
    *bytes = sizeof size;
    if (!has_room) {
        return -FI_ETOOSMALL;
    }
    std::memcpy(value, &size, sizeof size);
    return 0;
}

int ep_dgram_setopt(fid* self, int level, int option, const void* value,
                    std::size_t bytes) noexcept {
    EpDgram& ep = EpDgram::from(self);
    return level == FI_OPT_ENDPOINT && is_hmem_option(option)
               ? hmem_setopt(ep.hmem_options, ep.caps, option, value, bytes)
               : refuse_option(level, option);
}

// ---- names ----

/// An endpoint has a name once it is bound to a port; asking for it binds it.
int ep_dgram_getname(fid* self, void* address, std::size_t* bytes) noexcept {
    if (bytes == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        EpDgram& ep = EpDgram::from(self);
        if (const util::Status opened = open_if_closed(ep); !opened.is_ok()) {
            return to_fi(opened);
        }
        const bool has_room = write_formatted_address(
            ep.domain->addr_format, ep.endpoint.host()->address(), address, bytes);
        return has_room ? 0 : -FI_ETOOSMALL;
    });
}

int ep_dgram_setname(fid* self, void* address, std::size_t bytes) noexcept {
    return entry([&]() -> int {
        EpDgram& ep = EpDgram::from(self);
        const std::uint32_t format = ep.domain->addr_format;
        if (address == nullptr || (format != FI_ADDR_STR && bytes < formatted_stride(format))) {
            return -FI_EINVAL;
        }
        util::Result<util::SockAddr> wanted = read_formatted_address(format, address);
        if (wanted.is_ok()) {
            wanted = at_home(wanted.value(), ep.domain->home());
        }
        const std::lock_guard guard(ep.name_lock);
        return to_fi(wanted.is_ok() ? open_at(ep, wanted.value()) : wanted.status());
    });
}

constexpr Refuse<-FI_ENOSYS> kNone{};

fi_ops_cm ep_dgram_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = ep_dgram_setname,
    .getname = ep_dgram_getname,
    .getpeer = kNone,
    .connect = kNone,
    .listen = kNone,
    .accept = kNone,
    .reject = kNone,
    .shutdown = kNone,
    .join = mc_join,
};

fi_ops ep_dgram_fid_ops = fid_ops(ep_dgram_close, ep_dgram_bind, ep_dgram_control);

fi_ops_ep ep_dgram_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = ep_dgram_cancel,
    .getopt = ep_dgram_getopt,
    .setopt = ep_dgram_setopt,
    .tx_ctx = kNone,
    .rx_ctx = kNone,
    .rx_size_left = kNone,  // deprecated calls; a full queue answers -FI_EAGAIN
    .tx_size_left = kNone,
};

// ---- open ----

/// The capabilities of both sides together; a side that was narrowed loses its own.
std::uint64_t caps_of(const fi_info& info) noexcept {
    std::uint64_t caps = info.caps;
    if (info.tx_attr != nullptr && info.tx_attr->caps != 0) {
        caps &= ~FI_SEND | info.tx_attr->caps;
    }
    if (info.rx_attr != nullptr && info.rx_attr->caps != 0) {
        caps &= ~FI_RECV | info.rx_attr->caps;
    }
    return caps;
}

std::size_t size_of(std::size_t asked) noexcept {
    return asked != 0 ? asked : kDgramQueue;
}

int open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
    const auto source = source_of(info, domain.addr_format, domain.home());
    if (!source.is_ok()) {
        return to_fi(source.status());
    }
    const std::size_t tx_size = size_of(info.tx_attr != nullptr ? info.tx_attr->size : 0);
    const std::size_t rx_size = size_of(info.rx_attr != nullptr ? info.rx_attr->size : 0);
    if (tx_size > kMaxDgramQueue || rx_size > kMaxDgramQueue) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: queues of %zu and %zu asked, at most %zu", tx_size,
                 rx_size, kMaxDgramQueue);
        return -FI_EINVAL;
    }
    auto made = std::make_unique<EpDgram>(core::UdAttr{
        .tx_size = tx_size, .rx_size = rx_size, .reports_source = (info.caps & FI_SOURCE) != 0});
    made->domain = &domain;
    made->bind = source.value();
    made->tx_size = tx_size;
    made->rx_size = rx_size;
    made->caps = caps_of(info);
    made->tx_op_flags = info.tx_attr != nullptr ? info.tx_attr->op_flags : 0;
    made->rx_op_flags = info.rx_attr != nullptr ? info.rx_attr->op_flags : 0;
    made->handle.fid = {FI_CLASS_EP, context, &ep_dgram_fid_ops};
    made->handle.ops = &ep_dgram_ops;
    made->handle.cm = &ep_dgram_cm_ops;
    made->handle.msg = &not_enabled_tables.msg;
    made->handle.tagged = &absent_tables.tagged;
    made->handle.rma = &absent_tables.rma;
    made->handle.atomic = &absent_tables.atomic;
    made->handle.collective = &absent_collective_ops;
    domain.users.add();
    *ep = &made.release()->handle;
    return 0;
}

}  // namespace

// ---- what others call ----

void DgramUser::mark_hot() noexcept {
    ep_.endpoint.mark_hot();
}

bool DgramUser::is_hot() const noexcept {
    return ep_.endpoint.is_hot();
}

std::uint64_t DgramUser::poll_count() const noexcept {
    return ep_.endpoint.poll_count();
}

bool DgramUser::control_progress() noexcept {
    DomainLock& lock = ep_.domain->lock;
    if (!lock.try_lock_control()) {
        return false;
    }
    for (unsigned i = 0; i < kControlRounds && ep_.endpoint.poll_locked() != 0; ++i) {
    }
    lock.unlock_control();
    return true;
}

void DgramUser::address_removed(std::uint64_t index, const util::SockAddr& address) noexcept {
    const util::Guard<DomainLock> guard(ep_.domain->lock);
    ep_.endpoint.forget_locked(index, address);
}

void EpDgram::prepare_flags() noexcept {
    send_base = is_tx_selective ? RdFlags::kNone : RdFlags::kCompletion;
    recv_base = is_rx_selective ? RdFlags::kNone : RdFlags::kCompletion;
    send_flags = send_base | to_send_flags(tx_op_flags);
    recv_flags = recv_base | to_recv_flags(rx_op_flags);
}

int ep_dgram_open(fid_domain* domain, fi_info* info, fid_ep** ep, std::uint64_t flags,
                  void* context) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (info->ep_attr->tx_ctx_cnt > 1 || info->ep_attr->rx_ctx_cnt > 1) {
        RVT_WARN(kEpCtrl,
                 "cannot open endpoint: shared or several contexts asked, 1 of each kind offered");
        return -FI_EINVAL;
    }
    return entry([&] { return open(Domain::from(domain), *info, ep, context); });
}

void set_dgram_hosts(const DgramHosts& with) noexcept {
    hosts = with;
}

const DgramHosts& dgram_hosts() noexcept {
    return hosts;
}

}  // namespace rvt::ofi
