// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing of NICs, and what happens to them.
#include "backend/verbs/nic.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>

#include "backend/verbs/extended.h"
#include "backend/verbs/translate.h"
#include "core/addresses.h"
#include "core/qp.h"
#include "core/recv_queue.h"
#include "core/verbs_cq.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt::verbs {
namespace {

// More than any endpoint asks for; the NIC's own limits are mostly beyond.
constexpr std::uint32_t kMostWr = 1u << 14;
constexpr std::uint32_t kMostReads = 16;
constexpr std::uint32_t kOwnKeys = 1;  // the NIC has the others
constexpr int kPkeyIndex = 0;          // of all pairs over RoCE, as rdma_cm has it
constexpr std::uint32_t kGids = 256;   // of a table, that are looked at
// IBTA vol. 1, 10.9.1.2: bit 15 of a P_Key says whether its holder is a full member. A partition of
// number 0 is none.
constexpr std::uint16_t kFullMember = 0x8000;
constexpr std::uint16_t kPartition = 0x7fff;
constexpr std::uint16_t kLastUnicastLid = 0xbfff;  // IBTA vol. 1, 4.1.3
// Tried one after the other: the limit is no attribute of a device.
constexpr std::uint32_t kInlineSizes[] = {256, 192, 128, 96, 64, 32};

std::uint32_t clamp(int limit, std::uint32_t most) noexcept {
    return std::clamp(static_cast<std::uint32_t>(std::max(limit, 1)), 1u, most);
}

/// Not every driver says how long its special lists may be.
std::uint32_t known_or(int limit, std::uint32_t most) noexcept {
    return limit > 0 ? clamp(limit, most) : most;
}

Status set_nonblocking(int fd) noexcept {
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? kOk : Status(errno);
}

/// The device has ended the pair.
void fail(core::Qp& pair, EventType type) noexcept {
    pair.note_state(QpState::kErr);
    pair.raise(type);
}

/// Whether requests of all kinds that connected pairs have, and receives of both kinds of queues,
/// may name memory that is not pinned.
bool takes_on_demand(ibv_context* context, bool has_atomics) noexcept {
    constexpr unsigned kRc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                             IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV;
    const unsigned needed = kRc | (has_atomics ? unsigned{IBV_ODP_SUPPORT_ATOMIC} : 0);
    ibv_device_attr_ex attr{};
    const auto* const extended = verbs_get_ctx_op(context, query_device_ex);
    return extended != nullptr &&
           extended->query_device_ex(context, nullptr, &attr, sizeof attr) == 0 &&
           (attr.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0 &&
           (attr.odp_caps.per_transport_caps.rc_odp_caps & needed) == needed;
}

std::uint16_t bytes_of(ibv_mtu mtu) noexcept {
    return static_cast<std::uint16_t>(128u << std::clamp<unsigned>(mtu, IBV_MTU_256, IBV_MTU_4096));
}

Status last_error() noexcept {
    return errno != 0 ? errno : EIO;
}

}  // namespace

Result<std::shared_ptr<Nic>> Nic::open(core::Registry& registry, const NicAddress& address) {
    if (library() == nullptr) {
        return ENODEV;
    }
    std::shared_ptr<Nic> nic(new Nic(address));
    Status opened = nic->open_context();
    opened = opened.is_ok() ? nic->read_limits() : opened;
    opened = opened.is_ok() ? nic->open_channel() : opened;
    opened = opened.is_ok() ? nic->probe_pairs() : opened;
    opened = opened.is_ok() ? nic->add_to(registry) : opened;
    if (!opened.is_ok()) {
        RVT_WARN(kFabric, "cannot open NIC %s, port %u: %s", address.device.c_str(), address.port,
                 strerrordesc_np(opened.error()));
        return opened;
    }
    return nic;
}

Nic::~Nic() {
    if (device_ != nullptr) {
        [[maybe_unused]] const Status removed = registry_->remove_device(device_);
    }
}

Status Nic::open_context() {
    int count = 0;
    const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> devices(
        lib().ibv_get_device_list(&count), lib().ibv_free_device_list);
    for (int i = 0; devices != nullptr && i < count; ++i) {
        ibv_device* const one = devices.get()[i];
        if (is_device_of(address_, *one)) {
            context_.reset(lib().ibv_open_device(one));
            if (context_ == nullptr) {
                return last_error();
            }
            fds_[0] = LibraryFd(context_->cmd_fd);
            fds_[1] = LibraryFd(context_->async_fd);
            return set_nonblocking(context_->async_fd);
        }
    }
    return ENODEV;
}

Status Nic::open_channel() {
    channel_.reset(lib().ibv_create_comp_channel(context_.get()));
    if (channel_ == nullptr) {
        return last_error();
    }
    fds_[2] = LibraryFd(channel_->fd);
    return set_nonblocking(channel_->fd);
}

Result<ibv_port_attr> Nic::read_port() const noexcept {
    ibv_port_attr port{};
    const auto* const extended = verbs_get_ctx_op(context_.get(), query_port);
    if (extended == nullptr) {
        return ENOSYS;
    }
    const int error = extended->query_port(context_.get(), address_.port, &port, sizeof port);
    return error == 0 ? Result<ibv_port_attr>(port) : Result<ibv_port_attr>(error);
}

Status Nic::read_limits() {
    ibv_device_attr attr{};
    if (const int error = lib().ibv_query_device(context_.get(), &attr); error != 0) {
        return error;
    }
    quirks_ = &quirks_of(*context_->device, attr);
    if (!quirks_->has_rc) {
        return ENODEV;
    }
    const auto read = read_port();
    if (!read.is_ok()) {
        return read.status();
    }
    const ibv_port_attr& port = read.value();
    limits_.mtu_bytes = bytes_of(port.active_mtu);
    limits_.max_reads_in = static_cast<std::uint8_t>(clamp(attr.max_qp_rd_atom, kMostReads));
    limits_.max_reads_out = static_cast<std::uint8_t>(clamp(attr.max_qp_init_rd_atom, kMostReads));
    limits_.has_atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
    limits_.has_srq = attr.max_srq > 0;
    limits_.has_on_demand = util::param_is_set(util::ParamId::kVerbsOnDemand) &&
                            !quirks_->misplaces_on_demand &&
                            takes_on_demand(context_.get(), limits_.has_atomics);
    limits_.relaxes_ordering = util::param_is_set(util::ParamId::kVerbsRelaxedOrdering);
    limits_.is_iwarp = context_->device->transport_type == IBV_TRANSPORT_IWARP;
    const std::uint32_t max_sge = clamp(attr.max_sge, core::Receive::kMaxSge);
    limits_.verbs = {.max_qp = std::bit_floor(clamp(attr.max_qp, 1u << 16)),
                     .max_cqe = clamp(attr.max_cqe, 1u << 20),
                     .max_mr = kOwnKeys,
                     .max_qp_wr = clamp(attr.max_qp_wr, kMostWr),
                     .max_srq_wr = clamp(attr.max_srq_wr, kMostWr),
                     .max_sge = max_sge,
                     .max_rd_atomic = std::min(limits_.max_reads_in, limits_.max_reads_out),
                     .max_mcast_qp = clamp(attr.max_mcast_qp_attach, 256),
                     .max_ud_bytes = limits_.mtu_bytes,
                     .max_message_bytes = port.max_msg_sz,
                     .own_max_qp = static_cast<std::uint32_t>(std::max(attr.max_qp, 0)),
                     .own_max_cq = static_cast<std::uint32_t>(std::max(attr.max_cq, 0)),
                     .own_max_mr = static_cast<std::uint32_t>(std::max(attr.max_mr, 0)),
                     .has_immediate = !limits_.is_iwarp,
                     .reads_need_remote_write = limits_.is_iwarp,
                     .max_read_sge = known_or(attr.max_sge_rd, max_sge),
                     .max_srq_sge = known_or(attr.max_srq_sge, max_sge)};
    is_ethernet_ = port.link_layer == IBV_LINK_LAYER_ETHERNET && !limits_.is_iwarp;
    is_infiniband_ = port.link_layer == IBV_LINK_LAYER_INFINIBAND && !limits_.is_iwarp;
    find_gid();
    limits_.has_ib_path = is_infiniband_ && has_gid_ && find_pkey(port.pkey_tbl_len).has_value();
    limits_.has_ud = limits_.has_rocev2 && !quirks_->cm_moves_pairs;
    return kOk;
}

/// Of which type the entry is, if the GID in it is the one that pairs are to use.
std::optional<ibv_gid_type> Nic::own_gid_at(std::uint32_t index) const noexcept {
    const Address own = core::to_address(address_.address);
    const auto& wanted = is_infiniband_ ? address_.gid : own.gid;
    ibv_gid_entry entry{};
    if (lib()._ibv_query_gid_ex(context_.get(), address_.port, index, &entry, 0, sizeof entry) !=
            0 ||
        std::memcmp(entry.gid.raw, wanted.data(), wanted.size()) != 0) {
        return {};
    }
    return static_cast<ibv_gid_type>(entry.gid_type);
}

/// RoCEv2's entry of the address, or that of the port of InfiniBand; without one (iWARP) the first.
void Nic::find_gid() noexcept {
    const ibv_gid_type wanted = is_infiniband_ ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
    for (std::uint32_t i = 0; i < kGids && !has_gid_; ++i) {
        const auto type = own_gid_at(i);
        has_gid_ = type == wanted;
        has_rocev1_ = has_rocev1_ || type == IBV_GID_TYPE_ROCE_V1;
        gid_index_ = has_gid_ ? static_cast<std::uint8_t>(i) : std::uint8_t{0};
    }
    limits_.has_rocev2 = has_gid_ && !is_infiniband_;
}

std::optional<Nic::Pkey> Nic::pkey_at(std::uint16_t index) const noexcept {
    std::uint16_t value = 0;
    if (lib().ibv_query_pkey(context_.get(), address_.port, index, &value) != 0) {
        return {};
    }
    return Pkey{.index = index, .value = ntohs(value)};
}

/// That of the interface's partition, of a full member if the port is one.
/// @param count  Of the port's table.
std::optional<Nic::Pkey> Nic::find_pkey(std::uint16_t count) const noexcept {
    std::optional<Pkey> found;
    for (std::uint16_t i = 0; i < count; ++i) {
        const auto one = pkey_at(i);
        const bool is_it = one && ((one->value ^ address_.pkey) & kPartition) == 0;
        if (!is_it || (one->value & kPartition) == 0) {
            continue;
        }
        if ((one->value & kFullMember) != 0) {
            return one;
        }
        found = found ? found : one;
    }
    return found;
}

Result<IbPort> Nic::ib_port() const noexcept {
    if (!is_infiniband_) {
        return IbPort{};
    }
    const auto read = read_port();
    if (!read.is_ok()) {
        return read.status();
    }
    const ibv_port_attr& port = read.value();
    const auto pkey = find_pkey(port.pkey_tbl_len);
    if (!has_gid_ || !pkey || own_gid_at(gid_index_) != IBV_GID_TYPE_IB) {
        return EADDRNOTAVAIL;
    }
    // The LID stays when the link goes, and the interface may be another port's meanwhile (bonds).
    if (port.state != IBV_PORT_ACTIVE || port.lid == 0 || port.lid > kLastUnicastLid) {
        return ENETDOWN;
    }
    return IbPort{.gid = address_.gid,
                  .lid = port.lid,
                  .pkey = pkey->value,
                  .pkey_index = pkey->index,
                  .mtu_bytes = bytes_of(port.active_mtu),
                  .needs_grh = (port.flags & IBV_QPF_GRH_REQUIRED) != 0};
}

/// What pairs use of it, and where RoCEv2 is to be expected and is not, why.
void Nic::log_port() const noexcept {
    if (is_infiniband_) {
        log_ib_port();
        return;
    }
    const auto pkey = pkey_at(kPkeyIndex);
    char pkey_text[32] = ", which is not there";
    if (pkey) {
        std::snprintf(pkey_text, sizeof pkey_text, " (0x%04x)", pkey->value);
    }
    RVT_INFO(kFabric, "NIC %s (%s%s), port %u, GID index %u%s, P_Key index %d%s, for %s",
             address_.device.c_str(), quirks_->family, quirks_->is_tried ? "" : ", not tried",
             address_.port, gid_index_, limits_.has_rocev2 ? "" : " (not of RoCEv2)", kPkeyIndex,
             pkey_text, address_.address.to_string().c_str());
    if (is_ethernet_ && !limits_.has_rocev2) {
        RVT_WARN(kFabric,
                 "NIC %s, port %u, cannot be used by RoCEv2, so not for RDM endpoints nor for "
                 "datagrams: its table has %s; packets by UDP will do",
                 address_.device.c_str(), address_.port, why_no_rocev2().c_str());
    }
}

/// The same of a port of InfiniBand, whose LID may come later.
void Nic::log_ib_port() const noexcept {
    const std::string address = address_.address.to_string();
    const auto port = ib_port();
    if (port.is_ok()) {
        RVT_INFO(kFabric,
                 "NIC %s (%s%s), port %u of InfiniBand, LID %u, GID index %u, P_Key index %u "
                 "(0x%04x), for %s",
                 address_.device.c_str(), quirks_->family, quirks_->is_tried ? "" : ", not tried",
                 address_.port, port.value().lid, gid_index_, port.value().pkey_index,
                 port.value().pkey, address.c_str());
        return;
    }
    const char* const why = !has_gid_              ? "its table lacks the GID of that interface"
                            : !limits_.has_ib_path ? "its table lacks the P_Key of that interface"
                            : port.status() == ENETDOWN
                                ? "it is not active, or has no LID of 16 bits"
                                : strerrordesc_np(port.status().error());
    RVT_WARN(
        kFabric,
        "NIC %s, port %u of InfiniBand, P_Key 0x%04x, for %s, cannot be used for RDM endpoints: "
        "%s; packets by UDP will do",
        address_.device.c_str(), address_.port, address_.pkey, address.c_str(), why);
}

std::string Nic::why_no_rocev2() const {
    const std::string address = address_.address.to_string();
    return has_rocev1_
               ? "the GID of " + address + " for RoCE v1 only; have the port or its driver do v2"
               : "no GID of " + address + "; the network interface that has it is not this port's";
}

/// Finds out what no attribute of the device tells.
Status Nic::probe_pairs() {
    const OwnedRaw<ibv_pd> pd(lib().ibv_alloc_pd(context_.get()));
    const bool may_extend = util::param_is_set(util::ParamId::kVerbsExtended);
    limits_.extends_queues = may_extend && !quirks_->breaks_next_poll;
    OwnedRaw<ibv_cq> queue(create_queue(1, nullptr, nullptr));
    if (limits_.extends_queues && queue == nullptr) {
        limits_.extends_queues = false;
        queue.reset(create_queue(1, nullptr, nullptr));
    }
    if (pd == nullptr || queue == nullptr) {
        return last_error();
    }
    if (may_extend) {
        probe_builds(QpType::kRc, *pd, *queue);
    }
    probe_inline(*pd, *queue);
    if (limits_.builds_of(QpType::kRc).is_any() && limits_.verbs.max_inline_bytes == 0) {
        limits_.builds = {};
        probe_inline(*pd, *queue);
    }
    if (may_extend && limits_.has_ud && quirks_->misbuilt != Misbuilt::kDatagrams) {
        probe_builds(QpType::kUd, *pd, *queue);
    }
    const Builds& connected = limits_.builds_of(QpType::kRc);
    const Builds& datagrams = limits_.builds_of(QpType::kUd);
    RVT_INFO(kFabric,
             "NIC %s: the driver's calls build %d kinds of requests of RC pairs (%d from lists), "
             "and %d of UD pairs (%d)",
             address_.device.c_str(), std::popcount(connected.opcodes),
             std::popcount(connected.lists), std::popcount(datagrams.opcodes),
             std::popcount(datagrams.lists));
    return kOk;
}

void Nic::probe_builds(QpType type, ibv_pd& pd, ibv_cq& queue) noexcept {
    Builds& builds = limits_.builds[static_cast<std::size_t>(type)];
    builds = find_builds(*context_, pd, queue, type);
    builds.lists = quirks_->misbuilt == Misbuilt::kLists ? 0 : builds.lists;
}

void Nic::probe_inline(ibv_pd& pd, ibv_cq& queue) noexcept {
    limits_.verbs.max_inline_bytes = 0;
    for (const std::uint32_t bytes : kInlineSizes) {
        ibv_qp_init_attr init{};
        init.send_cq = &queue;
        init.recv_cq = &queue;
        init.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = bytes};
        if (const OwnedRaw<ibv_qp> pair(create_pair(QpType::kRc, pd, init)); pair != nullptr) {
            limits_.verbs.max_inline_bytes = bytes;
            break;
        }
    }
}

ibv_qp* Nic::create_pair(QpType type, ibv_pd& pd, ibv_qp_init_attr& init) const noexcept {
    init.qp_type = to_ibv(type);
    const Builds& builds = limits_.builds_of(type);
    return builds.is_any() ? create_extended_pair(*context_, pd, init, builds)
                           : lib().ibv_create_qp(&pd, &init);
}

ibv_cq* Nic::create_queue(int depth, void* user, ibv_comp_channel* channel) const noexcept {
    return limits_.extends_queues ? create_extended_queue(*context_, depth, user, channel)
                                  : lib().ibv_create_cq(context_.get(), depth, user, channel, 0);
}

/// One that is gone keeps its name until nobody uses it any more, and another may come before.
std::string Nic::free_name(const core::Registry& registry) const {
    const std::string first = address_.device + "-" + address_.address.to_string();
    const auto devices = registry.devices();
    std::string name = first;
    for (unsigned number = 2;
         std::ranges::find(devices, name, &core::Device::name) != devices.end(); ++number) {
        name = first + "-" + std::to_string(number);
    }
    return name;
}

Status Nic::add_to(core::Registry& registry) {
    const std::string name = free_name(registry);
    const auto added = registry.add_device({.name = name.c_str(),
                                            .grade = Grade::kVerb,
                                            .address = core::to_address(address_.address),
                                            .limits = limits_.verbs,
                                            .payload_bytes = limits_.mtu_bytes},
                                           verb_ops(), this);
    if (!added.is_ok()) {
        return added.status();
    }
    registry_ = &registry;
    device_ = added.value();
    limits_.verbs = device_->limits();
    log_port();
    const std::string stable = stable_name(address_);
    RVT_INFO(kFabric, "NIC %s, port %u: %s%s", address_.device.c_str(), address_.port,
             stable.empty() ? "no name that stays, as its node GUID is 0 or another device's, too"
                            : "always found as domain ",
             stable.c_str());
    return kOk;
}

/// The pair is there until the event has been acknowledged; the core's only where it is not
/// disowned.
void Nic::take_pair_event(const ibv_async_event& event) noexcept {
    const util::Guard guard(owners_lock_);
    auto* const pair = static_cast<core::Qp*>(event.element.qp->qp_context);
    if (pair == nullptr) {
        return;
    }
    switch (event.event_type) {
        case IBV_EVENT_QP_FATAL: fail(*pair, EventType::kQpFatal); break;
        case IBV_EVENT_QP_REQ_ERR: fail(*pair, EventType::kQpReqErr); break;
        case IBV_EVENT_QP_ACCESS_ERR: fail(*pair, EventType::kQpAccessErr); break;
        default:
            pair->note_last_receive();
            pair->raise(EventType::kQpLastWqeReached);
            break;
    }
}

void Nic::take_queue_event(const ibv_async_event& event) noexcept {
    const util::Guard guard(owners_lock_);
    if (auto* const queue = static_cast<core::VerbsCq*>(event.element.cq->cq_context)) {
        queue->fail();
    }
}

bool Nic::take_notice() noexcept {
    ibv_cq* raw = nullptr;
    void* as_it_was = nullptr;
    const util::Guard guard(owners_lock_);
    if (lib().ibv_get_cq_event(channel_.get(), &raw, &as_it_was) != 0) {
        return false;
    }
    if (auto* const queue = static_cast<core::VerbsCq*>(raw->cq_context)) {
        queue->channel()->notify(*queue);
    }
    lib().ibv_ack_cq_events(raw, 1);  // from now on the queue can be destroyed
    return true;
}

Status Nic::ended(int answer) const noexcept {
    const Status status = from_ibv(answer);
    const bool is_moot = (status == Status(EIO) && device_->is_going()) || is_inherited();
    return is_moot ? kOk : status;
}

bool Nic::has_ended(const char* what, int answer) const noexcept {
    const Status status = ended(answer);
    if (!status.is_ok()) {
        log_kept(address_.device.c_str(), what, status);
    }
    return status.is_ok();
}

void Nic::disown(ibv_qp& pair) noexcept {
    if (is_inherited()) {
        return;
    }
    {
        const util::Guard guard(owners_lock_);
        pair.qp_context = nullptr;
    }
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    if (!device_->is_going()) {
        lib().ibv_modify_qp(&pair, &attr, IBV_QP_STATE);  // whoever keeps the pair may keep this
    }
}

void Nic::disown(ibv_cq& queue) noexcept {
    if (is_inherited()) {
        return;
    }
    const util::Guard guard(owners_lock_);
    queue.cq_context = nullptr;
}

bool Nic::take_events() noexcept {
    ibv_async_event event{};
    while (lib().ibv_get_async_event(context_.get(), &event) == 0) {
        RVT_INFO(kFabric, "NIC %s: %s", address_.device.c_str(),
                 lib().ibv_event_type_str(event.event_type));
        switch (event.event_type) {
            case IBV_EVENT_PORT_ERR:
                if (event.element.port_num == address_.port) {
                    port_changed(*device_, 0);
                }
                break;
            case IBV_EVENT_PORT_ACTIVE:
                if (event.element.port_num == address_.port) {
                    port_changed(*device_, limits_.mtu_bytes);
                }
                break;
            case IBV_EVENT_DEVICE_FATAL: device_->begin_removal(); break;
            case IBV_EVENT_CQ_ERR: take_queue_event(event); break;
            case IBV_EVENT_QP_FATAL:
            case IBV_EVENT_QP_REQ_ERR:
            case IBV_EVENT_QP_ACCESS_ERR:
            case IBV_EVENT_QP_LAST_WQE_REACHED: take_pair_event(event); break;
            default: break;  // nothing that an endpoint would not learn by its completions
        }
        lib().ibv_ack_async_event(&event);
    }
    if (errno != EIO) {
        return true;
    }
    device_->begin_removal();
    return false;
}

}  // namespace rvt::verbs
