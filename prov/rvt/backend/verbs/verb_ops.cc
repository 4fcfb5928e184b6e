// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The entries of the contract that a NIC carries out. What the core's object keeps as priv():
//   Pd ibv_pd, Mr ibv_mr, VerbsCq ibv_cq, Srq ibv_srq, Qp ibv_qp, Ah ibv_ah
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <arpa/inet.h>

#include "backend/verbs/extended.h"
#include "backend/verbs/nic.h"
#include "backend/verbs/translate.h"
#include "core/ah.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "core/wr_table.h"
#include "util/log.h"

namespace rvt::verbs {
namespace {

constexpr std::size_t kMostAtOnce = 16;

ibv_pd* pd_of(const core::Pd& pd) noexcept {
    return static_cast<ibv_pd*>(pd.priv());
}
ibv_cq* cq_of(const core::VerbsCq& cq) noexcept {
    return static_cast<ibv_cq*>(cq.priv());
}
ibv_srq* srq_of(const core::Srq& srq) noexcept {
    return static_cast<ibv_srq*>(srq.priv());
}
ibv_qp* qp_of(const core::Qp& qp) noexcept {
    return static_cast<ibv_qp*>(qp.priv());
}

/// Keeps what libibverbs has made, or says why there is nothing.
/// Returns: EDQUOT where the kernel answers EAGAIN, as it does for a control group that has all
/// that
///          it may have (rdma.max): to try again, as that means elsewhere, would be for ever.
template <class Raw>
Status keep(core::Object& object, Raw* made) noexcept {
    if (made == nullptr) {
        return errno == EAGAIN ? EDQUOT : errno != 0 ? errno : ENOMEM;
    }
    object.set_priv(made);
    return kOk;
}

/// Counts what has been made, or tells the device's limit from those of the process.
/// Returns: ENOSPC when there are as many as the device has.
Status count(Status made, std::atomic<std::uint32_t>& there, std::uint32_t most) noexcept {
    if (made.is_ok()) {
        there.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count on its own
        return made;
    }
    const bool is_want = made.error() == ENOMEM || made.error() == EDQUOT;
    // relaxed: as above.
    return is_want && most != 0 && there.load(std::memory_order_relaxed) >= most ? Status(ENOSPC)
                                                                                 : made;
}

// ---- domains and memory ----

Status alloc_pd(core::Pd& pd) {
    return keep(pd, lib().ibv_alloc_pd(Nic::of(pd.device()).context()));
}

void dealloc_pd(core::Pd& pd) {
    Nic::of(pd.device()).has_ended("a protection domain", lib().ibv_dealloc_pd(pd_of(pd)));
}

constexpr Access kPeersWrite = Access::kRemoteWrite | Access::kRemoteAtomic;

std::uint64_t iova_of(const core::Mr& mr) noexcept {
    return has_any(mr.access(), Access::kZeroBased) ? 0 : mr.iova();
}

/// Memory that peers write may be looked at before there is a completion: relaxed only when asked.
Access access_of(const core::Mr& mr) noexcept {
    const bool is_relaxed = Nic::of(mr.pd().device()).limits().relaxes_ordering &&
                            mr.memory().device == nullptr && !has_any(mr.access(), kPeersWrite);
    return is_relaxed ? mr.access() | Access::kRelaxedOrdering : mr.access();
}

ibv_mr* register_as(const core::Mr& mr, Access with) noexcept {
    const core::RegionMemory& memory = mr.memory();
    const int access = to_ibv_access(with);
    errno = 0;
    if (memory.device != nullptr) {
        const core::DeviceMemory::File file = memory.device->nic_file();
        if (file.fd < 0) {
            errno = EOPNOTSUPP;
            return nullptr;
        }
        return lib().ibv_reg_dmabuf_mr(pd_of(mr.pd()), file.offset, mr.length(), iova_of(mr),
                                       file.fd, access);
    }
    return lib().ibv_reg_mr_iova2(pd_of(mr.pd()), memory.segments[0].iov_base, mr.length(),
                                  iova_of(mr), static_cast<unsigned>(access));
}

/// What may not be pinned is registered on demand, where the NIC can, unless it has to be pinned.
/// What it writes is written in order where it knows nothing else, ibv_reg_mr(3).
ibv_mr* register_anyhow(const core::Mr& mr) noexcept {
    Access access = access_of(mr);
    ibv_mr* made = register_as(mr, access);
    if (made == nullptr && (errno == EOPNOTSUPP || errno == EINVAL) &&
        has_any(access, Access::kRelaxedOrdering)) {
        access = without(access, Access::kRelaxedOrdering);
        made = register_as(mr, access);
    }
    const bool may_be_on_demand = !has_any(access, Access::kPinned) &&
                                  mr.memory().device == nullptr &&
                                  Nic::of(mr.pd().device()).limits().has_on_demand;
    if (made == nullptr && errno == ENOMEM && may_be_on_demand) {
        made = register_as(mr, access | Access::kOnDemand);
        errno = made == nullptr ? ENOMEM : 0;
    }
    return made;
}

Status reg_mr(core::Mr& mr) {
    if (mr.pd().device().is_going()) {
        return ENODEV;
    }
    const bool is_on_demand = has_any(mr.access(), Access::kOnDemand);
    if (mr.memory().segments.size() != 1 ||
        (is_on_demand && !Nic::of(mr.pd().device()).limits().has_on_demand)) {
        return EOPNOTSUPP;
    }
    ibv_mr* const made = register_anyhow(mr);
    Nic& nic = Nic::of(mr.pd().device());
    const Status kept = count(keep(mr, made), nic.counts().regions, nic.limits().verbs.own_max_mr);
    if (kept.is_ok()) {
        mr.set_keys(made->lkey, made->rkey);
    }
    return kept;
}

Status rereg_mr(core::Mr& mr, MrChange changes) {
    auto* const raw = static_cast<ibv_mr*>(mr.priv());
    const core::RegionMemory& memory = mr.memory();
    const bool is_on_demand = has_any(mr.access(), Access::kOnDemand);
    // It takes ordinary memory, named by its address; and says of nothing whether it was pinned.
    const auto address = reinterpret_cast<std::uint64_t>(memory.segments[0].iov_base);
    if (memory.segments.size() != 1 || memory.device != nullptr || iova_of(mr) != address ||
        is_on_demand) {
        return EOPNOTSUPP;
    }
    int flags = 0;
    flags |= has_any(changes, MrChange::kTranslation) ? IBV_REREG_MR_CHANGE_TRANSLATION : 0;
    flags |= has_any(changes, MrChange::kPd) ? IBV_REREG_MR_CHANGE_PD : 0;
    flags |= has_any(changes, MrChange::kAccess) ? IBV_REREG_MR_CHANGE_ACCESS : 0;
    // Rights that it is not to change it does not want to hear of.
    const int access = has_any(changes, MrChange::kAccess) ? to_ibv_access(access_of(mr)) : 0;
    errno = 0;
    switch (lib().ibv_rereg_mr(raw, flags, pd_of(mr.pd()), memory.segments[0].iov_base, mr.length(),
                               access)) {
        case 0:
        case IBV_REREG_MR_ERR_DO_FORK_OLD: mr.set_keys(raw->lkey, raw->rkey); return kOk;
        case IBV_REREG_MR_ERR_INPUT:
        case IBV_REREG_MR_ERR_DONT_FORK_NEW: return EOPNOTSUPP;
        default:
            // A driver, or a kernel, that changes no region in its place has left this one alone.
            return errno == EOPNOTSUPP ? EOPNOTSUPP : ENOTRECOVERABLE;
    }
}

Status advise_mr(core::Mr& mr, MrAdvice advice, std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::array kAdvice = {IBV_ADVISE_MR_ADVICE_PREFETCH,
                                    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT};
    const Nic& nic = Nic::of(mr.pd().device());
    const auto* const extended = verbs_get_ctx_op(nic.context(), advise_mr);
    if (!nic.limits().has_on_demand || extended == nullptr) {
        return EOPNOTSUPP;
    }
    while (bytes != 0) {
        const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 1u << 30));
        ibv_sge element{.addr = iova_of(mr) + offset, .length = part, .lkey = mr.lkey()};
        const Status advised = from_ibv(extended->advise_mr(
            pd_of(mr.pd()), kAdvice[static_cast<std::size_t>(advice)], 0, &element, 1));
        if (!advised.is_ok()) {
            return advised;
        }
        offset += part;
        bytes -= part;
    }
    return kOk;
}

/// ibv_dereg_mr(3): of a failure there is the errno, and the region.
Status dereg_mr(core::Mr& mr) {
    Nic& nic = Nic::of(mr.pd().device());
    const Status ended = nic.ended(lib().ibv_dereg_mr(static_cast<ibv_mr*>(mr.priv())));
    if (ended.is_ok()) {
        // relaxed: a count on its own.
        nic.counts().regions.fetch_sub(1, std::memory_order_relaxed);
    }
    return ended;
}

// ---- completions ----

Status create_cq(core::VerbsCq& cq) {
    const Nic& nic = Nic::of(cq.context().device());
    ibv_comp_channel* const channel = cq.channel() != nullptr ? nic.channel() : nullptr;
    return keep(cq, nic.create_queue(static_cast<int>(cq.depth()), &cq, channel));
}

void destroy_cq(core::VerbsCq& cq) {
    Nic& nic = Nic::of(cq.context().device());
    const int answer = lib().ibv_destroy_cq(cq_of(cq));
    if (answer != 0) {
        nic.disown(*cq_of(cq));
    }
    nic.has_ended("a completion queue", answer);
}

/// By the list of completions that every driver has. Not inline: the other way would pay for it.
[[gnu::noinline]] Polled poll_listed(ibv_cq& queue, std::span<core::Wc> to) noexcept {
    std::array<ibv_wc, 32> completions;
    const std::size_t most = std::min(to.size(), completions.size());
    const int taken = ibv_poll_cq(&queue, static_cast<int>(most), completions.data());
    if (taken <= 0) {
        return {.error = taken < 0 ? EIO : 0};
    }
    core::Wc* next = to.data();
    for (const ibv_wc* wc = completions.data(); wc != completions.data() + taken; ++wc) {
        from_ibv(*wc, *next++);
    }
    return {.taken = static_cast<unsigned>(taken)};
}

/// As after IBV_EVENT_CQ_ERR, whoever waits for completions is not to wait for ever.
[[gnu::cold, gnu::noinline]] void note_failure(core::VerbsCq& cq, int error) noexcept {
    if (cq.fail()) {
        RVT_WARN(kEpData, "NIC %s gives no completions: %s; its queue ends",
                 Nic::of(cq.context().device()).address().device.c_str(),
                 strerrordesc_np(from_ibv(error).error()));
    }
}

unsigned poll_cq(core::VerbsCq& cq, std::span<core::Wc> to) {
    const Polled polled = Nic::of(cq.context().device()).limits().extends_queues
                              ? poll_extended(*cq_of(cq), to)
                              : poll_listed(*cq_of(cq), to);
    if (polled.error != 0) [[unlikely]] {
        note_failure(cq, polled.error);
    }
    return polled.taken;
}

Status req_notify_cq(core::VerbsCq& cq, bool solicited_only) {
    return from_ibv(ibv_req_notify_cq(cq_of(cq), solicited_only ? 1 : 0));
}

/// Tells the core's channels which queues have something.
unsigned poll(core::Device& device) {
    Nic& nic = Nic::of(device);
    unsigned told = 0;
    while (nic.take_notice()) {
        ++told;
    }
    return told;
}

int wake_fd(core::Device& device) {
    return Nic::of(device).channel()->fd;
}

Status arm(core::Device&) {
    return kOk;  // the queues that somebody waits for are armed one by one
}

// ---- pairs ----

Status create_qp(core::Qp& qp) {
    if (qp.device().is_going()) {
        return ENODEV;
    }
    const core::QpInit& wanted = qp.init();
    if (wanted.type == QpType::kRd || wanted.shared_receives != nullptr || wanted.sink != nullptr) {
        return EOPNOTSUPP;
    }
    ibv_qp_init_attr init{};
    init.qp_context = &qp;
    init.send_cq = cq_of(*wanted.send_cq);
    init.recv_cq = cq_of(*wanted.recv_cq);
    init.srq = wanted.srq != nullptr ? srq_of(*wanted.srq) : nullptr;
    init.cap = {.max_send_wr = wanted.cap.max_send_wr,
                .max_recv_wr = wanted.cap.max_recv_wr,
                .max_send_sge = wanted.cap.max_send_sge,
                .max_recv_sge = wanted.cap.max_recv_sge,
                .max_inline_data = wanted.cap.max_inline_bytes};
    init.sq_sig_all = wanted.signal_all ? 1 : 0;
    Nic& nic = Nic::of(qp.device());
    ibv_qp* const made = nic.create_pair(wanted.type, *pd_of(qp.pd()), init);
    const Status kept = count(keep(qp, made), nic.counts().pairs, nic.limits().verbs.own_max_qp);
    if (kept.is_ok()) {
        qp.set_qpn(made->qp_num);
    }
    return kept;
}

Status modify_qp(core::Qp& qp, const QpAttr& attr, QpMask mask) {
    const Nic& nic = Nic::of(qp.device());
    ibv_qp_attr to = to_ibv(attr, nic.address().port, nic.gid_index());
    return from_ibv(lib().ibv_modify_qp(qp_of(qp), &to, to_ibv_mask(mask)));
}

void destroy_qp(core::Qp& qp) {
    Nic& nic = Nic::of(qp.device());
    const int answer = lib().ibv_destroy_qp(qp_of(qp));
    if (answer != 0) {
        nic.disown(*qp_of(qp));
    }
    if (nic.has_ended("a queue pair", answer)) {
        // relaxed: a count on its own.
        nic.counts().pairs.fetch_sub(1, std::memory_order_relaxed);
    }
}

Status post_list(core::Qp& qp, const SendWr& wr, const core::WrInfo& row) noexcept {
    if (!has_ibv(wr.opcode)) {
        return EOPNOTSUPP;
    }
    ibv_send_wr to{};
    to.wr_id = wr.wr_id;
    to.sg_list = list_of(wr.sg_list);
    to.num_sge = static_cast<int>(wr.sg_list.size());
    to.opcode = to_ibv(wr.opcode);
    to.send_flags = to_ibv(wr.flags);
    to.imm_data = htonl(wr.imm);
    if (qp.type() == QpType::kUd) {
        to.wr.ud = {.ah = static_cast<ibv_ah*>(wr.ah->priv()),
                    .remote_qpn = wr.remote_qpn,
                    .remote_qkey = wr.remote_qkey};
    } else if (has_any(row.traits, core::OpTraits::kAtomic)) {
        to.wr.atomic = {.remote_addr = wr.remote_addr,
                        .compare_add = wr.compare_add,
                        .swap = wr.swap,
                        .rkey = wr.rkey};
    } else {
        to.wr.rdma = {.remote_addr = wr.remote_addr, .rkey = wr.rkey};
    }
    if (has_any(row.traits, core::OpTraits::kInvalidates)) {
        to.invalidate_rkey = wr.imm;
    } else if (has_any(row.traits, core::OpTraits::kLocal)) {
        to.invalidate_rkey = wr.rkey;
    }
    ibv_send_wr* refused = nullptr;
    return from_ibv(ibv_post_send(qp_of(qp), &to, &refused));
}

/// Drivers refuse it, or end the connection.
bool is_too_long_a_list(const core::Qp& qp, const SendWr& wr) noexcept {
    const bool is_read = wr.opcode == WrOpcode::kRead;
    return wr.sg_list.size() > qp.init().cap.max_send_sge ||
           (is_read && wr.sg_list.size() > qp.device().limits().max_read_sge);
}

/// Drivers have different names for it, some that of a full queue.
bool is_too_much_inline(const core::Qp& qp, const SendWr& wr) noexcept {
    if (!has_any(wr.flags, SendFlags::kInline)) {
        return false;
    }
    std::uint64_t bytes = 0;
    for (const Sge& part : wr.sg_list) {
        bytes += part.length;
    }
    return bytes > qp.init().cap.max_inline_bytes;
}

const Builds& builds_of(const core::Qp& qp) noexcept {
    return Nic::of(qp.device()).limits().builds_of(qp.type());
}

/// @tparam kHasAddress  The pair is a UD pair.
template <bool kHasAddress>
[[gnu::noinline]] Status post_any(core::Qp& qp, const SendWr& wr) {
    const core::WrInfo* const row = core::wr_info(wr.opcode);
    if (row == nullptr || !takes(*row, qp.type()) ||
        without(wr.flags, row->flags) != SendFlags::kNone || is_too_long_a_list(qp, wr) ||
        is_too_much_inline(qp, wr) || (kHasAddress && wr.ah == nullptr)) {
        return EINVAL;
    }
    return builds_of(qp).has(wr) ? build<kHasAddress>(*qp_of(qp), wr, wr.opcode)
                                 : post_list(qp, wr, *row);
}

/// Mostly it is a SEND of one piece, whose row allows everything.
Status post_send(core::Qp& qp, const SendWr& wr) {
    const bool is_small =
        wr.sg_list.size() == 1 && wr.sg_list[0].length <= qp.init().cap.max_inline_bytes;
    if (wr.opcode == WrOpcode::kSend && is_small && qp.type() == QpType::kRc &&
        builds_of(qp).has(WrOpcode::kSend)) [[likely]] {
        return build<false>(*qp_of(qp), wr, WrOpcode::kSend);
    }
    return qp.type() == QpType::kUd ? post_any<true>(qp, wr) : post_any<false>(qp, wr);
}

Status post_recv(core::Qp& qp, const RecvWr& wr) {
    if (wr.sg_list.size() > qp.init().cap.max_recv_sge) {
        return EINVAL;
    }
    ibv_recv_wr to{.wr_id = wr.wr_id,
                   .next = nullptr,
                   .sg_list = list_of(wr.sg_list),
                   .num_sge = static_cast<int>(wr.sg_list.size())};
    ibv_recv_wr* refused = nullptr;
    return from_ibv(ibv_post_recv(qp_of(qp), &to, &refused));
}

// ---- shared receives ----

Status create_srq(core::Srq& srq) {
    const core::SrqAttr attr = srq.query();
    if (attr.max_tags != 0) {
        return EOPNOTSUPP;
    }
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = attr.max_wr, .max_sge = attr.max_sge, .srq_limit = attr.limit};
    return keep(srq, lib().ibv_create_srq(pd_of(srq.pd()), &init));
}

void destroy_srq(core::Srq& srq) {
    Nic::of(srq.pd().device())
        .has_ended("a shared receive queue", lib().ibv_destroy_srq(srq_of(srq)));
}

/// Posts up to kMostAtOnce receives by one call.
Status post_some(core::Srq& srq, std::span<const RecvWr> wrs) noexcept {
    std::array<ibv_recv_wr, kMostAtOnce> list;
    ibv_recv_wr* next = nullptr;
    for (std::size_t i = wrs.size(); i-- != 0; next = &list[i]) {
        const std::span<const Sge> sg_list = wrs[i].sg_list;
        if (sg_list.size() > srq.queue().max_sge()) {
            return EINVAL;
        }
        list[i].wr_id = wrs[i].wr_id;
        list[i].next = next;
        list[i].sg_list = list_of(sg_list);
        list[i].num_sge = static_cast<int>(sg_list.size());
    }
    ibv_recv_wr* refused = nullptr;
    return from_ibv(ibv_post_srq_recv(srq_of(srq), next, &refused));
}

Status post_srq_recv(core::Srq& srq, std::span<const RecvWr> wrs) {
    Status posted = kOk;
    while (!wrs.empty() && posted.is_ok()) {
        const std::size_t count = std::min(wrs.size(), kMostAtOnce);
        posted = post_some(srq, wrs.first(count));
        wrs = wrs.subspan(count);
    }
    return posted;
}

Status post_srq_op(core::Srq&, TmOp&) {
    return EOPNOTSUPP;  // no queue that create_srq() has made has tags
}

// ---- datagrams ----

Status create_ah(core::Ah& ah) {
    const Nic& nic = Nic::of(ah.pd().device());
    ibv_ah_attr to = to_ibv(ah.attr(), nic.address().port, nic.gid_index());
    return keep(ah, lib().ibv_create_ah(pd_of(ah.pd()), &to));
}

void destroy_ah(core::Ah& ah) {
    Nic::of(ah.pd().device())
        .has_ended("an address handle", lib().ibv_destroy_ah(static_cast<ibv_ah*>(ah.priv())));
}

ibv_gid gid_of(const Address& group) noexcept {
    ibv_gid gid{};
    std::memcpy(gid.raw, group.gid.data(), group.gid.size());
    return gid;
}

Status attach_mcast(core::Qp& qp, const Address& group) {
    const ibv_gid gid = gid_of(group);
    return from_ibv(lib().ibv_attach_mcast(qp_of(qp), &gid, 0));
}

void detach_mcast(core::Qp& qp, const Address& group) {
    const ibv_gid gid = gid_of(group);
    Nic::of(qp.device())
        .has_ended("a pair's part in a group", lib().ibv_detach_mcast(qp_of(qp), &gid, 0));
}

constexpr BackendOps kOps{
    .poll = poll,
    .wake_fd = wake_fd,
    .arm = arm,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .rereg_mr = rereg_mr,
    .advise_mr = advise_mr,
    .ib_port = [](core::Device& device) { return Nic::of(device).ib_port(); },
    .create_ah = create_ah,
    .destroy_ah = destroy_ah,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .destroy_qp = destroy_qp,
    .post_send = post_send,
    .post_recv = post_recv,
    .create_srq = create_srq,
    .destroy_srq = destroy_srq,
    .post_srq_recv = post_srq_recv,
    .post_srq_op = post_srq_op,
    .attach_mcast = attach_mcast,
    .detach_mcast = detach_mcast,
};

}  // namespace

const BackendOps& verb_ops() noexcept {
    return kOps;
}

}  // namespace rvt::verbs
