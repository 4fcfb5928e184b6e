// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Listening, and the first half of an accept. fi_passive_ep(3), fi_cm(3).
#include "ofi/pep.h"

#include <utility>

#include "ofi/address_format.h"
#include "ofi/conn_req.h"
#include "ofi/domain.h"
#include "ofi/eq.h"
#include "ofi/errors.h"
#include "ofi/msg_options.h"
#include "ofi/refuse.h"
#include "ofi/registry.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

static_assert(offsetof(fid_pep, fid) == 0);

/// Both ports are this endpoint's alone: nobody else can listen at their numbers.
void unlisten(Pep& pep) noexcept {
    for (const auto& port : {pep.port, pep.host_port}) {
        if (port != nullptr) {
            port->rc().unlisten(port->address().port);
        }
    }
}

/// Requests that nobody has answered are refused.
int pep_close(fid* self) noexcept {
    Pep& pep = Pep::from(self);
    registry::remove(self);
    unlisten(pep);
    while (const auto request = conn_req_take_of(pep)) {
        [[maybe_unused]] const util::Status told =
            request->port->rc().reject(request->event.handle, {});
    }
    if (pep.eq != nullptr) {
        pep.eq->forget(self);
        pep.eq->users.drop();
    }
    pep.fabric->users.drop();
    delete &pep;
    return 0;
}

int pep_bind(fid* self, fid* other, std::uint64_t flags) noexcept {
    Pep& pep = Pep::from(self);
    if (other == nullptr || other->fclass != FI_CLASS_EQ) {
        return -FI_EINVAL;
    }
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (pep.eq != nullptr) {
        return -FI_EINVAL;
    }
    pep.eq = &Eq::from(other);
    pep.eq->users.add();
    return 0;
}

/// FI_BACKLOG, fi_endpoint(3): so many requests may wait for an answer; further ones are refused.
int pep_control(fid* self, int command, void* arg) noexcept {
    if (command != FI_BACKLOG) {
        return -FI_ENOSYS;
    }
    const auto* const wanted = static_cast<const int*>(arg);
    if (wanted == nullptr || *wanted <= 0) {
        RVT_WARN(kEpCtrl, "cannot set FI_BACKLOG: %d asked, 1 is the least",
                 wanted == nullptr ? 0 : *wanted);
        return -FI_EINVAL;
    }
    // relaxed: the next request goes by it, or the one after that.
    Pep::from(self).backlog.store(static_cast<std::size_t>(*wanted), std::memory_order_relaxed);
    return 0;
}

fi_ops pep_fid_ops = fid_ops(pep_close, pep_bind, pep_control);

/// Binds the port. Precondition: the caller holds port_lock.
util::Status open_port(Pep& pep) {
    if (pep.is_taken_over) {
        RVT_WARN(kEpCtrl,
                 "cannot use passive endpoint: an endpoint has taken its address over; close it");
        return EBUSY;
    }
    if (pep.port != nullptr) {
        return util::kOk;
    }
    auto port = pep.nic != nullptr ? pep.nic->open_port(pep.bind, MsgPortRole::kListens)
                                   : open_msg_port(pep.bind);
    if (!port.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot listen at %s: %s", pep.bind.to_string().c_str(),
                 strerrordesc_np(port.error()));
        return port.status();
    }
    pep.port = port.take();
    return util::kOk;
}

int pep_getname(fid* self, void* address, std::size_t* bytes) noexcept {
    if (bytes == nullptr) {
        return -FI_EINVAL;
    }
    return entry([&]() -> int {
        Pep& pep = Pep::from(self);
        const std::lock_guard guard(pep.port_lock);
        const util::Status opened = open_port(pep);
        if (!opened.is_ok()) {
            return to_fi(opened);
        }
        const bool has_room =
            write_formatted_address(pep.info->addr_format, pep.port->address(), address, bytes);
        return has_room ? 0 : -FI_ETOOSMALL;
    });
}

Home home_of(const Pep& pep) noexcept {
    return {.interface = pep.interface, .is_nics = pep.nic != nullptr};
}

int pep_setname(fid* self, void* address, std::size_t bytes) noexcept {
    return entry([&]() -> int {
        Pep& pep = Pep::from(self);
        const std::lock_guard guard(pep.port_lock);
        if (pep.port != nullptr) {
            return -FI_EOPBADSTATE;
        }
        util::Result<util::SockAddr> wanted =
            read_sized_address(pep.info->addr_format, address, bytes);
        if (wanted.is_ok()) {
            wanted = at_home(wanted.value(), home_of(pep));
        }
        if (!wanted.is_ok()) {
            return to_fi(wanted.status());
        }
        const util::SockAddr before = std::exchange(pep.bind, wanted.value());
        const util::Status opened = open_port(pep);
        if (!opened.is_ok()) {
            pep.bind = before;
        }
        return to_fi(opened);
    });
}

/// Peers of this host come to a port of their own, where there is one. That one may not open: it is
/// asked for before anybody listens.
util::Status listen(Pep& pep) {
    auto host_side = pep.port->host_side();
    if (!host_side.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot listen at %s for peers of this host: %s",
                 pep.port->address().to_string().c_str(), strerrordesc_np(host_side.error()));
        return host_side.status();
    }
    pep.host_port = host_side.take();
    util::Status status = pep.port->rc().listen(pep.port->address().port, pep.requests);
    if (status.is_ok() && pep.host_port != nullptr) {
        status = pep.host_port->rc().listen(pep.host_port->address().port, pep.host_requests);
    }
    if (!status.is_ok()) {
        unlisten(pep);
    }
    return status;
}

int pep_listen(fid_pep* self) noexcept {
    return entry([&]() -> int {
        Pep& pep = Pep::from(self);
        const std::lock_guard guard(pep.port_lock);
        if (pep.eq == nullptr) {
            RVT_WARN(kEpCtrl, "cannot listen: no event queue bound");
            return -FI_ENOEQ;
        }
        if (pep.is_listening) {
            return -FI_EOPBADSTATE;
        }
        util::Status status = open_port(pep);
        if (status.is_ok()) {
            status = listen(pep);
        }
        pep.is_listening = status.is_ok();
        return to_fi(status);
    });
}

int pep_reject(fid_pep* self, fid* handle, const void* param, std::size_t param_bytes) noexcept {
    return entry([&]() -> int {
        if (param == nullptr && param_bytes != 0) {
            return -FI_EINVAL;
        }
        std::unique_ptr<ConnReq> request = conn_req_take(handle);
        if (request == nullptr || request->pep != &Pep::from(self)) {
            if (request != nullptr) {
                conn_req_add(std::move(request));
            }
            return -FI_EINVAL;
        }
        const util::Status told = request->port->rc().reject(
            request->event.handle, {static_cast<const std::byte*>(param), param_bytes});
        if (told.error() != EMSGSIZE) {
            return to_fi(told);
        }
        conn_req_add(std::move(request));
        return -FI_EINVAL;
    });
}

constexpr Refuse<-FI_ENOSYS> kNot{};

fi_ops_cm pep_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = pep_setname,
    .getname = pep_getname,
    .getpeer = kNot,
    .connect = kNot,
    .listen = pep_listen,
    .accept = kNot,
    .reject = pep_reject,
    .shutdown = kNot,
    .join = kNot,
};

/// How much a request can bring is a matter of the port.
util::Result<MsgSizes> sizes_of(Pep& pep) {
    const std::lock_guard guard(pep.port_lock);
    const util::Status opened = open_port(pep);
    return opened.is_ok() ? util::Result<MsgSizes>({.cm_data = pep.port->rc().private_bytes()})
                          : util::Result<MsgSizes>(opened);
}

int pep_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    if (option != FI_OPT_CM_DATA_SIZE) {
        return -FI_ENOPROTOOPT;
    }
    return entry([&]() -> int {
        const auto sizes = sizes_of(Pep::from(self));
        return sizes.is_ok() ? msg_getopt(level, option, value, bytes, sizes.value())
                             : to_fi(sizes.status());
    });
}

int pep_setopt(fid* self, int level, int option, const void* value, std::size_t bytes) noexcept {
    return entry([&]() -> int {
        const auto sizes = sizes_of(Pep::from(self));
        return sizes.is_ok() ? msg_setopt(level, option, value, bytes, sizes.value())
                             : to_fi(sizes.status());
    });
}

fi_ops_ep pep_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = kNot,
    .getopt = pep_getopt,
    .setopt = pep_setopt,
    .tx_ctx = kNot,
    .rx_ctx = kNot,
    .rx_size_left = kNot,
    .tx_size_left = kNot,
};

/// What libfabric adds to the infos of fi_getinfo() and does not see in this one. False without
/// memory.
bool name_provider(fi_fabric_attr& fabric, const Offer& offer) noexcept {
    fabric.prov_name = strdup(offer.fabric.prov_name);
    fabric.prov_version = offer.fabric.prov_version;
    return fabric.prov_name != nullptr;
}

/// What its infos are made from.
void fill(Offer& offer, const Pep& pep) noexcept {
    if (pep.nic != nullptr) {
        fill_nic_offer(offer, pep.nic_offer);
        return;
    }
    fill_msg_offer(offer, {});
    if (!pep.interface.empty()) {
        offer.domain.name = const_cast<char*>(pep.interface.c_str());
    }
}

/// The info that a request is announced with: the passive endpoint's, with both addresses.
fi_info* info_of(const Pep& pep, const ConnReq& request) {
    Offer offer;
    fill(offer, pep);
    fi_info* const info = build_info(
        offer, pep.fabric->handle.api_version, pep.info.get(),
        {.format = pep.info->addr_format,
         .source = request.port->address(),
         .dest = request.port->name_of(request.event.peer, core::rc_caller(request.event))});
    if (info == nullptr || !name_provider(*info->fabric_attr, offer)) {
        free_info(info);
        return nullptr;
    }
    info->handle = const_cast<fid*>(&request.handle);
    return info;
}

/// The NIC that the info names, if it names one, or the interface.
int find_nic(Pep& pep, const fi_info& info) {
    const char* const name = info.domain_attr != nullptr ? info.domain_attr->name : nullptr;
    auto nic = open_msg_nic(info);
    if (!nic.is_ok() && is_interface(name)) {
        pep.interface = name;
        return 0;
    }
    if (!nic.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot open passive endpoint of %s: %s", name,
                 strerrordesc_np(nic.error()));
        return nic.error() == ENODEV ? -FI_EINVAL : to_fi(nic.status());
    }
    pep.nic = nic.take();
    if (pep.nic != nullptr) {
        for (MsgNicOffer& offer : msg_nics()) {
            const std::string& identity = offer.identity.empty() ? offer.name : offer.identity;
            if (identity == pep.nic->identity()) {
                pep.nic_offer = std::move(offer);
                pep.nic_offer.name = name;  // that of its infos
                return 0;
            }
        }
        return -FI_ENODEV;  // it has gone this moment
    }
    return 0;
}

int open(Fabric& fabric, const fi_info& info, fid_pep** pep, void* context) {
    auto made = std::make_unique<Pep>();
    made->fabric = &fabric;
    const std::uint32_t format =
        info.addr_format != FI_FORMAT_UNSPEC && info.addr_format != FI_SOCKADDR
            ? info.addr_format
            : std::uint32_t{FI_SOCKADDR_IN};
    if (const int refused = find_nic(*made, info); refused != 0) {
        return refused;
    }
    const auto source = source_of(info, format, home_of(*made));
    if (!source.is_ok()) {
        return to_fi(source.status());
    }
    made->bind = source.value();
    Offer offer;
    fill(offer, *made);
    made->info.reset(build_info(offer, fabric.handle.api_version, &info,
                                {.format = format, .source = made->bind}));
    if (made->info == nullptr) {
        return -FI_ENOMEM;
    }
    made->info->fabric_attr->fabric = &fabric.handle;  // which this endpoint keeps open
    made->info->domain_attr->domain = nullptr;         // which may be closed before requests come
    made->handle.fid = {FI_CLASS_PEP, context, &pep_fid_ops};
    made->handle.ops = &pep_ops;
    made->handle.cm = &pep_cm_ops;
    if (made->nic == nullptr) {
        registry::add(&made->handle.fid, made->info->domain_attr->name);
    }
    fabric.users.add();
    *pep = &made.release()->handle;
    return 0;
}

}  // namespace

/// Nor is there room for one without memory.
bool Pep::Requests::requested(const core::CmEvent& event,
                              std::span<const std::byte> private_data) noexcept {
    return entry([&] {
               // relaxed: as where it is set.
               const std::size_t most = pep_.backlog.load(std::memory_order_relaxed);
               if (conn_req_count_of(pep_) >= most) {
                   RVT_INFO(kEpCtrl,
                            "refuse connection: %zu requests wait for an answer (FI_BACKLOG)",
                            most);
                   return -FI_ENOSPC;
               }
               auto request = std::make_unique<ConnReq>();
               request->handle = {FI_CLASS_CONNREQ, nullptr, nullptr};
               request->pep = &pep_;
               request->port = pep_.*port_;
               request->event = event;
               std::unique_ptr<fi_info, InfoDeleter> offered(info_of(pep_, *request));
               if (offered == nullptr) {
                   return -FI_ENOMEM;
               }
               conn_req_add(std::move(request));
               pep_.eq->push_cm(FI_CONNREQ, &pep_.handle.fid, offered.release(), private_data);
               return 0;
           }) == 0;
}

void Pep::Requests::device_failed(int error) noexcept {
    static_cast<void>(entry([&] {
        fi_eq_err_entry event{};
        event.fid = &pep_.handle.fid;
        event.context = pep_.handle.fid.context;
        event.err = error;
        event.prov_errno = error;
        pep_.eq->push_error(event);
        return 0;
    }));
}

int pep_open(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context) noexcept {
    if (info == nullptr || info->ep_attr == nullptr) {
        return -FI_EINVAL;
    }
    if (info->ep_attr->type != FI_EP_MSG) {
        RVT_WARN(kEpCtrl, "cannot open passive endpoint: type %d asked, FI_EP_MSG offered",
                 static_cast<int>(info->ep_attr->type));
        return -FI_ENOSYS;
    }
    return entry([&] { return open(Fabric::from(fabric), *info, pep, context); });
}

std::optional<util::SockAddr> pep_address(const fid* handle, std::string_view domain) {
    fid* const found = registry::find(handle, FI_CLASS_PEP, domain);
    if (found == nullptr) {
        return std::nullopt;
    }
    Pep& pep = Pep::from(found);
    const std::lock_guard guard(pep.port_lock);
    return open_port(pep).is_ok() ? std::optional(pep.port->address()) : std::nullopt;
}

Pep* pep_to_take_over(const fid* handle, const Domain& domain) noexcept {
    fid* const found = registry::find(handle, FI_CLASS_PEP, domain.name());
    return found != nullptr ? &Pep::from(found) : nullptr;
}

util::Result<std::shared_ptr<MsgPort>> pep_take_over(Pep& pep) {
    const std::lock_guard guard(pep.port_lock);
    if (pep.is_listening) {
        RVT_WARN(kEpCtrl,
                 "cannot take over passive endpoint: it listens; open the endpoint before "
                 "fi_listen");
        return EBUSY;
    }
    if (const util::Status opened = open_port(pep); !opened.is_ok()) {
        return opened;
    }
    pep.is_taken_over = true;
    return std::move(pep.port);
}

void pep_give_back(Pep& pep, std::shared_ptr<MsgPort> port) noexcept {
    const std::lock_guard guard(pep.port_lock);
    pep.port = std::move(port);
    pep.is_taken_over = false;
}

}  // namespace rvt::ofi
