// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The life of a MSG endpoint: open, bind, enable, connect or accept, shut down, close.
// fi_endpoint(3), fi_cm(3).
#include "ofi/ep_msg.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "core/shortage.h"
#include "ofi/address_format.h"
#include "ofi/cntr.h"
#include "ofi/conn_req.h"
#include "ofi/cq.h"
#include "ofi/ep_bind.h"
#include "ofi/ep_tables.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/msg_options.h"
#include "ofi/op_flags.h"
#include "ofi/pep.h"
#include "ofi/refuse.h"
#include "ofi/srx.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

using State = core::RcConnection::State;

constexpr std::uint64_t kCntrBindFlags = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
constexpr std::size_t kDefaultSize = 256;
constexpr std::chrono::milliseconds kLastReceiveTime{1000};
constexpr std::chrono::microseconds kLastReceivePause{50};

std::array<Cq*, 2> queues_of(const EpMsg& ep) noexcept {
    return {ep.tx_cq, ep.rx_cq};
}
std::array<Cntr*, 4> counters_of(const EpMsg& ep) noexcept {
    return {ep.counters.send, ep.counters.recv, ep.counters.read, ep.counters.write};
}

// ---- close ----

/// Takes the pair from the port, and what it had under way.
void destroy_pair(EpMsg& ep) noexcept {
    MsgDomain& msg = *ep.domain->msg;
    msg.remove(ep);
    ep.rc().destroy(std::move(ep.connection));
    [[maybe_unused]] const util::Status destroyed = core::destroy_cq(ep.queue);
    // From now on the NIC touches none of their buffers.
    msg.give_back_all(*ep.sends);
    if (ep.receives != nullptr) {
        msg.give_back_all(*ep.receives);
    }
}

/// A NIC gives back what a pair has taken from a shared queue some time after it has been told that
/// the pair ends, and says when that was the last. Not every driver does: the others, once they are
/// known, have a hundredth of the time.
void await_last_receive(EpMsg& ep) noexcept {
    using Clock = std::chrono::steady_clock;
    MsgDomain& msg = *ep.domain->msg;
    const Clock::time_point end =
        Clock::now() + (msg.tells_last_receive() ? kLastReceiveTime : kLastReceiveTime / 100);
    bool is_last = false;
    while (!is_last && Clock::now() < end && !ep.rc().device().is_going()) {
        is_last = ep.connection->qp().has_last_receive();
        {
            const util::Guard<DomainLock> guard(ep.domain->lock);
            ep.drain_locked();
        }
        if (!is_last) {
            std::this_thread::sleep_for(kLastReceivePause);
        }
    }
    msg.note_last_receive(is_last || ep.rc().device().is_going());
}

/// Ends the pair. What it had taken from a shared queue goes back to the application; everything
/// else that is under way ends silently, fi_endpoint(3).
void end_pair(EpMsg& ep) noexcept {
    MsgDomain& msg = *ep.domain->msg;
    {
        const util::Guard<DomainLock> guard(ep.domain->lock);
        ep.note_closing();
    }
    if (ep.srx != nullptr) {
        core::Qp& pair = ep.connection->qp();
        const bool has_received = pair.state() != QpState::kReset && pair.state() != QpState::kInit;
        const util::Status flushed = pair.modify({.state = QpState::kErr}, QpMask::kState);
        if (ep.srx->nic_queue != nullptr && has_received && flushed.is_ok()) {
            await_last_receive(ep);
        }
        const util::Guard<DomainLock> guard(ep.domain->lock);
        ep.drain_locked();
    }
    leave_queues(msg, queues_of(ep), counters_of(ep));
    destroy_pair(ep);
}

int ep_msg_close(fid* self) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (ep.connection != nullptr) {
        end_pair(ep);
    }
    if (ep.request != nullptr) {
        [[maybe_unused]] const util::Status told =
            ep.request->port->rc().reject(ep.request->event.handle, {});
    }
    if (ep.event_queue() != nullptr) {
        ep.event_queue()->forget(self);
    }
    std::ranges::for_each(queues_of(ep), drop<Cq>);
    std::ranges::for_each(counters_of(ep), drop<Cntr>);
    drop(ep.srx);
    drop(ep.eq);
    Domain& domain = *ep.domain;
    domain.msg->release(ep.use);
    if (ep.bound != nullptr) {
        domain.msg->release(ep.bound);
    }
    delete &ep;
    domain.users.drop();
    return 0;
}

// ---- bind ----

/// Accesses of the peer are not reported to this side's processor, so they cannot be counted.
int bind_events(EpMsg& ep, Cntr& cntr, std::uint64_t flags) noexcept {
    const CntrPlace places[] = {
        {FI_SEND, ep.counters.send},
        {FI_RECV, ep.counters.recv},
        {FI_READ, ep.counters.read},
        {FI_WRITE, ep.counters.write},
    };
    return bind_cntr(ep, cntr, flags, kCntrBindFlags, places);
}

int bind_srx(EpMsg& ep, Srx& srx, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (srx.domain != ep.domain) {
        return -FI_EDOMAIN;
    }
    if (ep.srx != nullptr) {
        return -FI_EINVAL;
    }
    ep.srx = &srx;
    srx.users.add();
    return 0;
}

int ep_msg_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (ep.connection != nullptr) {
        return -FI_EOPBADSTATE;
    }
    if (other == nullptr) {
        return -FI_EINVAL;
    }
    switch (other->fclass) {
        case FI_CLASS_CQ: return bind_cq(ep, Cq::from(other), flags);
        case FI_CLASS_CNTR: return bind_events(ep, Cntr::from(other), flags);
        case FI_CLASS_EQ: return bind_eq(ep, Eq::from(other), flags);
        case FI_CLASS_SRX_CTX: return bind_srx(ep, Srx::from(other), flags);
        default: return -FI_EINVAL;
    }
}

// ---- enable ----

/// What is missing before the endpoint can work, or 0.
int check_bound(const EpMsg& ep) noexcept {
    if (ep.event_queue() == nullptr) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint: no event queue bound to it or its domain");
        return -FI_ENOEQ;
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

/// Of what this layer can use, as much as the device has.
std::uint32_t most(std::size_t usable, std::uint32_t limit) noexcept {
    return std::min(static_cast<std::uint32_t>(usable), limit);
}

/// Makes the pair and its queue, which holds whatever the pair can complete.
util::Status make_pair(EpMsg& ep) {
    const std::size_t receives = ep.srx != nullptr ? ep.srx->size : ep.rx_size;
    const DeviceLimits& limits = ep.rc().device().limits();
    const bool has_nic_srx = ep.srx != nullptr && ep.srx->nic_queue != nullptr;
    const auto queue =
        core::create_cq(*ep.use->context, static_cast<std::uint32_t>(ep.tx_size + receives + 1),
                        ep.use->channel.get());
    if (!queue.is_ok()) {
        return queue.status();
    }
    ep.queue = queue.value();
    ep.sends = std::make_unique<MsgOps>(ep.tx_size);
    if (ep.srx == nullptr) {
        ep.receives = std::make_unique<MsgOps>(ep.rx_size);
    }
    auto made = ep.rc().make(
        *ep.use->pd,
        {.type = QpType::kRc,
         .send_cq = ep.queue,
         .recv_cq = ep.queue,
         .srq = has_nic_srx ? ep.srx->nic_queue.get() : nullptr,
         .shared_receives = ep.srx != nullptr && !has_nic_srx ? &ep.srx->queue : nullptr,
         // A probe of the port may have one of them for a while: -FI_EAGAIN for the last send then.
         // With one more, rounded to a power of two, the queue of a usual size would be double.
         .cap = {.max_send_wr = static_cast<std::uint32_t>(ep.tx_size),
                 .max_recv_wr = static_cast<std::uint32_t>(ep.srx != nullptr ? 0 : ep.rx_size),
                 .max_send_sge = most(kMsgAtomicIov, limits.max_sge),
                 .max_recv_sge = most(kMsgIov, limits.max_sge),
                 .max_inline_bytes = most(kMsgInject, limits.max_inline_bytes)}},
        ep.events);
    if (!made.is_ok()) {
        [[maybe_unused]] const util::Status destroyed = core::destroy_cq(ep.queue);
        return made.status();
    }
    ep.connection = made.take();
    return util::kOk;
}

void use_bound_port(EpMsg& ep) noexcept {
    if (ep.bound != nullptr) {
        ep.domain->msg->release(std::exchange(ep.use, std::exchange(ep.bound, nullptr)));
    }
}

/// Peers of this host are reached through shared memory. Before there is a pair.
void choose_port(EpMsg& ep) {
    MsgDomain& msg = *ep.domain->msg;
    MsgPortUse* const wire = ep.bound != nullptr ? ep.bound : ep.use;
    const bool wants_host = ep.dest && wire->port->is_on_host(*ep.dest);
    if (wants_host == (ep.bound != nullptr)) {
        return;
    }
    if (!wants_host) {
        use_bound_port(ep);
        return;
    }
    auto side = wire->port->host_side();
    const auto use = side.is_ok() ? msg.use(side.take()) : util::Result<MsgPortUse*>(side.status());
    if (!use.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot reach %s through shared memory: %s; packets will do",
                 ep.dest->to_string().c_str(), strerrordesc_np(use.error()));
        return;
    }
    ep.bound = std::exchange(ep.use, use.value());
}

void choose_tables(EpMsg& ep) noexcept {
    ep.handle.msg = (ep.caps & FI_MSG) != 0 ? &msg_msg_ops : &absent_tables.msg;
    ep.handle.rma = (ep.caps & FI_RMA) != 0 ? &msg_rma_ops : &absent_tables.rma;
    ep.handle.atomic = (ep.caps & FI_ATOMIC) != 0 ? &msg_atomic_ops : &absent_tables.atomic;
}

int enable(EpMsg& ep) {
    if (ep.connection != nullptr) {
        return -FI_EOPBADSTATE;
    }
    const int missing = check_bound(ep);
    if (missing != 0) {
        return missing;
    }
    if (ep.request == nullptr) {
        choose_port(ep);
    }
    util::Status enabled = make_pair(ep);
    if (enabled.is_ok()) {
        MsgDomain& msg = *ep.domain->msg;
        msg.add(ep);
        enabled = join_queues(msg, queues_of(ep), counters_of(ep));
        if (!enabled.is_ok()) {
            destroy_pair(ep);
        }
    }
    if (!enabled.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot enable endpoint at %s: %s%s",
                 ep.use->port->address().to_string().c_str(), strerrordesc_np(enabled.error()),
                 core::pair_shortage(ep.rc().device(), enabled).c_str());
        return to_fi(enabled);
    }
    choose_tables(ep);
    return 0;
}

/// fi_cm(3): connecting enables.
int enable_if_needed(EpMsg& ep) {
    return ep.connection != nullptr ? 0 : enable(ep);
}

int ep_msg_control(fid* self, int command, void* argument) noexcept {
    EpMsg& ep = EpMsg::from(self);
    switch (command) {
        case FI_ENABLE: return entry([&] { return enable(ep); });
        case FI_GETOPSFLAG:
            return get_op_flags({ep.tx_op_flags, ep.rx_op_flags},
                                *static_cast<std::uint64_t*>(argument));
        case FI_SETOPSFLAG:
            return set_op_flags(ep.tx_op_flags, ep.rx_op_flags, msg_op_flags(),
                                *static_cast<const std::uint64_t*>(argument));
        default: return -FI_ENOSYS;
    }
}

// ---- names ----

int ep_msg_getname(fid* self, void* address, std::size_t* bytes) noexcept {
    if (bytes == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        const EpMsg& ep = EpMsg::from(self);
        const bool has_room =
            write_formatted_address(ep.addr_format, ep.use->port->address(), address, bytes);
        return has_room ? 0 : -FI_ETOOSMALL;
    });
}

int ep_msg_setname(fid* self, void* address, std::size_t bytes) noexcept {
    return entry([&]() -> int {
        EpMsg& ep = EpMsg::from(self);
        if (ep.connection != nullptr || ep.request != nullptr) {
            return -FI_EOPBADSTATE;
        }
        util::Result<util::SockAddr> wanted = read_sized_address(ep.addr_format, address, bytes);
        if (wanted.is_ok()) {
            wanted = at_home(wanted.value(), ep.domain->home());
        }
        if (!wanted.is_ok()) {
            return to_fi(wanted.status());
        }
        const auto use = ep.domain->msg->use(wanted.value());
        if (!use.is_ok()) {
            return to_fi(use.status());
        }
        use_bound_port(ep);
        ep.domain->msg->release(std::exchange(ep.use, use.value()));
        return 0;
    });
}

int ep_msg_getpeer(fid_ep* self, void* address, std::size_t* bytes) noexcept {
    if (bytes == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        const EpMsg& ep = EpMsg::from(self);
        if (!ep.is_connected()) {
            return -FI_ENOTCONN;
        }
        const util::SockAddr peer =
            ep.use->port->name_of(ep.connection->peer(), ep.connection->peer_service());
        return write_formatted_address(ep.addr_format, peer, address, bytes) ? 0 : -FI_ETOOSMALL;
    });
}

// ---- connections ----

int connect_result(util::Status status) noexcept {
    switch (status.error()) {
        case EINVAL: return -FI_EOPBADSTATE;
        case EMSGSIZE: return -FI_EINVAL;
        default: return to_fi(status);
    }
}

/// As enable_if_needed(), by the way that leads to `dest`.
int enable_towards(EpMsg& ep, const util::SockAddr& dest) {
    if (ep.connection == nullptr) {
        ep.dest = dest;
        return enable(ep);
    }
    if (ep.bound == nullptr || ep.bound->port->is_on_host(dest)) {
        return 0;
    }
    RVT_WARN(kEpCtrl, "cannot connect to %s: the endpoint was enabled for %s, on this host",
             dest.to_string().c_str(), ep.dest->to_string().c_str());
    return -FI_EHOSTUNREACH;
}

int ep_msg_connect(fid_ep* self, const void* address, const void* param,
                   std::size_t param_bytes) noexcept {
    return entry([&]() -> int {
        EpMsg& ep = EpMsg::from(self);
        if (param == nullptr && param_bytes != 0) {
            return -FI_EINVAL;
        }
        if (ep.request != nullptr) {
            return -FI_EOPBADSTATE;  // it is to be accepted
        }
        const util::Result<util::SockAddr> dest =
            address != nullptr ? read_formatted_address(ep.addr_format, address)
            : ep.dest          ? util::Result<util::SockAddr>(*ep.dest)
                               : util::Result<util::SockAddr>(EDESTADDRREQ);
        if (!dest.is_ok()) {
            return to_fi(dest.status());
        }
        if (dest.value().family != ep.use->port->address().family || dest.value().port == 0) {
            return -FI_EADDRNOTAVAIL;
        }
        const int enabled = enable_towards(ep, dest.value());
        if (enabled != 0) {
            return enabled;
        }
        return connect_result(ep.rc().connect(*ep.connection, ep.use->port->call_to(dest.value()),
                                              {static_cast<const std::byte*>(param), param_bytes}));
    });
}

int ep_msg_accept(fid_ep* self, const void* param, std::size_t param_bytes) noexcept {
    return entry([&]() -> int {
        EpMsg& ep = EpMsg::from(self);
        if (param == nullptr && param_bytes != 0) {
            return -FI_EINVAL;
        }
        if (ep.request == nullptr) {
            return -FI_EOPBADSTATE;
        }
        const int enabled = enable_if_needed(ep);
        if (enabled != 0) {
            return enabled;
        }
        const util::Status accepted = ep.rc().accept(
            *ep.connection, ep.request->event, {static_cast<const std::byte*>(param), param_bytes});
        if (accepted.is_ok()) {
            ep.request.reset();
        }
        return connect_result(accepted);
    });
}

int ep_msg_shutdown(fid_ep* self, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    return entry([&]() -> int {
        EpMsg& ep = EpMsg::from(self);
        return ep.connection != nullptr ? to_fi(ep.rc().disconnect(*ep.connection)) : -FI_ENOTCONN;
    });
}

constexpr Refuse<-FI_ENOSYS> kNot{};

fi_ops ep_msg_fid_ops = fid_ops(ep_msg_close, ep_msg_bind, ep_msg_control);

MsgSizes sizes_of(const EpMsg& ep) noexcept {
    return {.cm_data = ep.rc().private_bytes(),
            .tx = ep.tx_size,
            .rx = ep.rx_size,
            .message = ep.max_bytes,
            .inject = ep.inject_bytes};
}

int ep_msg_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    const EpMsg& ep = EpMsg::from(self);
    if (level == FI_OPT_ENDPOINT && is_hmem_option(option)) {
        return hmem_getopt(ep.hmem_options, ep.caps, option, value, bytes);
    }
    return msg_getopt(level, option, value, bytes, sizes_of(ep));
}

int ep_msg_setopt(fid* self, int level, int option, const void* value, std::size_t bytes) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (level == FI_OPT_ENDPOINT && is_hmem_option(option)) {
        const int set = hmem_setopt(ep.hmem_options, ep.caps, option, value, bytes);
        ep.device_uses.set_may_copy(ep.hmem_options.p2p != FI_HMEM_P2P_REQUIRED);
        return set;
    }
    return msg_setopt(level, option, value, bytes, sizes_of(ep));
}

fi_ops_ep ep_msg_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = kNot,  // a pair does not give back what has been posted
    .getopt = ep_msg_getopt,
    .setopt = ep_msg_setopt,
    .tx_ctx = kNot,
    .rx_ctx = kNot,
    .rx_size_left = kNot,
    .tx_size_left = kNot,
};

fi_ops_cm ep_msg_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = ep_msg_setname,
    .getname = ep_msg_getname,
    .getpeer = ep_msg_getpeer,
    .connect = ep_msg_connect,
    .listen = kNot,
    .accept = ep_msg_accept,
    .reject = kNot,
    .shutdown = ep_msg_shutdown,
    .join = kNot,
};

// ---- open ----

std::size_t size_of(std::size_t asked) noexcept {
    return asked != 0 ? asked : kDefaultSize;
}

int fill(EpMsg& ep, const fi_info& info) {
    ep.caps = info.caps;
    if (info.tx_attr != nullptr) {
        ep.caps &= info.tx_attr->caps != 0 ? ~(FI_SEND | FI_READ | FI_WRITE) | info.tx_attr->caps
                                           : ~std::uint64_t{0};
        ep.tx_op_flags = info.tx_attr->op_flags;
    }
    if (info.rx_attr != nullptr) {
        ep.caps &= info.rx_attr->caps != 0
                       ? ~(FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE) | info.rx_attr->caps
                       : ~std::uint64_t{0};
        ep.rx_op_flags = info.rx_attr->op_flags;
    }
    ep.tx_size = size_of(info.tx_attr != nullptr ? info.tx_attr->size : 0);
    ep.rx_size = size_of(info.rx_attr != nullptr ? info.rx_attr->size : 0);
    const std::uint64_t mode = info.mode | (info.rx_attr != nullptr ? info.rx_attr->mode : 0);
    if (ep.domain->nic != nullptr) {
        const DeviceLimits& limits = ep.domain->nic->device().limits();
        ep.has_cq_data = limits.has_immediate;
        ep.inject_bytes = most(kMsgInject, limits.max_inline_bytes);
        ep.max_bytes = std::min<std::uint64_t>(kMsgMaxBytes, limits.max_message_bytes);
    }
    ep.has_rx_cq_data = ep.has_cq_data && (mode & FI_RX_CQ_DATA) != 0;
    if (ep.tx_size > kMsgMaxQueue || ep.rx_size > kMsgMaxQueue) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: %zu sends and %zu receives asked, at most %zu",
                 ep.tx_size, ep.rx_size, kMsgMaxQueue);
        return -FI_EINVAL;
    }
    if (info.addr_format != FI_FORMAT_UNSPEC && info.addr_format != FI_SOCKADDR) {
        ep.addr_format = info.addr_format;
    }
    if (info.dest_addr != nullptr) {
        const auto dest = read_formatted_address(ep.addr_format, info.dest_addr);
        if (!dest.is_ok()) {
            return to_fi(dest.status());
        }
        ep.dest = dest.value();
    }
    return 0;
}

int check(const EpMsg& ep) {
    if ((ep.caps & kMemoryCaps) != 0 && !ep.domain->mr_mode.has_provider_keys) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: remote memory needs a domain with FI_MR_PROV_KEY");
        return -FI_EINVAL;
    }
    const OpFlags offered = msg_op_flags();
    return are_offered("endpoint", ep.tx_op_flags, offered.tx) &&
                   are_offered("endpoint", ep.rx_op_flags, offered.rx)
               ? 0
               : -FI_EBADFLAGS;
}

/// The domain's port of that address, or the one that the request came to, or that of the passive
/// endpoint whose address it acquires.
util::Result<MsgPortUse*> find_port(EpMsg& ep, const util::SockAddr& source, Pep* pep) {
    MsgDomain& msg = *ep.domain->msg;
    if (pep != nullptr) {
        auto port = pep_take_over(*pep);
        if (!port.is_ok()) {
            return port.status();
        }
        const util::Result<MsgPortUse*> use = msg.use(port.value());
        if (!use.is_ok()) {
            pep_give_back(*pep, port.take());
        }
        return use;
    }
    return ep.request != nullptr ? msg.use(ep.request->port) : msg.use(source);
}

int open_with(EpMsg& ep, const fi_info& info, Pep* pep) {
    int refused = fill(ep, info);
    if (refused == 0) {
        refused = check(ep);
    }
    if (refused != 0) {
        return refused;
    }
    const util::Status shared = ep.domain->open_msg();
    if (!shared.is_ok()) {
        return to_fi(shared);
    }
    util::SockAddr source;
    if (pep == nullptr && ep.request == nullptr) {
        const auto found = source_of(info, ep.addr_format, ep.domain->home());
        if (!found.is_ok()) {
            return to_fi(found.status());  // it has said why
        }
        source = found.value();
    }
    const auto use = find_port(ep, source, pep);
    if (!use.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot open endpoint: %s", strerrordesc_np(use.error()));
        return to_fi(use.status());
    }
    ep.use = use.value();
    return 0;
}

}  // namespace

EpMsg::EpMsg() : events(*this) {}
EpMsg::~EpMsg() = default;

void EpMsg::Events::connected(const core::RcConnection& made,
                              std::span<const std::byte> private_data) noexcept {
    static_cast<void>(entry([&] {
        const MsgPort& port = *ep_.use->port;
        RVT_INFO(kEpCtrl, "connected to %s %s",
                 port.name_of(made.peer(), made.peer_service()).to_string().c_str(), port.way());
        ep_.event_queue()->push_cm(FI_CONNECTED, &ep_.handle.fid, nullptr, private_data);
        return 0;
    }));
}

void EpMsg::Events::connect_failed(int error, std::span<const std::byte> private_data) noexcept {
    static_cast<void>(entry([&] {
        fi_eq_err_entry event{};
        event.fid = &ep_.handle.fid;
        event.context = ep_.handle.fid.context;
        event.err = error;
        event.prov_errno = error;
        ep_.event_queue()->push_error(event, private_data);
        return 0;
    }));
}

void EpMsg::Events::disconnected() noexcept {
    static_cast<void>(entry([&] {
        if (!ep_.is_closing()) {
            ep_.event_queue()->push_cm(FI_SHUTDOWN, &ep_.handle.fid, nullptr, {});
        }
        return 0;
    }));
}

/// As libfabric's own provider for NICs reports it.
void EpMsg::Events::device_failed(int error) noexcept {
    connect_failed(error, {});
}

int ep_msg_open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
    auto made = std::make_unique<EpMsg>();
    made->domain = &domain;
    made->addr_format = domain.addr_format;
    made->hmem_options.reach = domain.nic != nullptr ? HmemReach::kNicOfDomain : HmemReach::kNobody;
    Pep* const pep = pep_to_take_over(info.handle, domain);
    if (info.handle != nullptr && pep == nullptr) {
        made->request = conn_req_take(info.handle);
        if (made->request == nullptr) {
            RVT_WARN(kEpCtrl,
                     "cannot open endpoint: info->handle is no request of a peer that "
                     "waits for an answer, nor a passive endpoint of this domain's device");
            return -FI_EINVAL;
        }
    }
    const int refused = open_with(*made, info, pep);
    if (refused != 0) {
        if (made->request != nullptr) {
            conn_req_add(std::move(made->request));
        }
        return refused;
    }
    made->handle.fid = {FI_CLASS_EP, context, &ep_msg_fid_ops};
    made->handle.ops = &ep_msg_ops;
    made->handle.cm = &ep_msg_cm_ops;
    made->handle.msg = &not_enabled_tables.msg;
    made->handle.tagged = &absent_tables.tagged;
    made->handle.rma = &not_enabled_tables.rma;
    made->handle.atomic = &msg_not_enabled_atomic_ops;
    made->handle.collective = &absent_collective_ops;
    domain.users.add();
    *ep = &made.release()->handle;
    return 0;
}

}  // namespace rvt::ofi
