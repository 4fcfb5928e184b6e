// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A receive that is posted here completes in the queue of the endpoint that takes it.
#include "ofi/srx.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "ofi/ep_msg.h"
#include "ofi/ep_tables.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/mr.h"
#include "ofi/msg_nic.h"
#include "ofi/msg_options.h"
#include "ofi/refuse.h"
#include "util/iov_cursor.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::size_t kDefaultSize = 256;
constexpr std::uint64_t kSrxFlags = FI_COMPLETION | FI_MORE | FI_TRANSMIT_COMPLETE;

int srx_close(fid* self) noexcept {
    Srx& srx = Srx::from(self);
    if (srx.users.is_any()) {
        return -FI_EBUSY;
    }
    srx.nic_queue.reset();
    srx.domain->msg->give_back_all(srx.ops);
    srx.domain->users.drop();
    delete &srx;
    return 0;
}

/// Completion queues and counters are bound to the endpoints.
fi_ops srx_fid_ops = fid_ops(srx_close);

/// A queue that is full has room again when receives complete.
ssize_t post_result(util::Status status) noexcept {
    return status.error() == ENOMEM ? -FI_EAGAIN : to_fi(status);
}

/// Returns: false for a buffer without the descriptor that it needs.
bool name_for_nic(const Srx& srx, Sge& element, const void* desc) noexcept {
    if (desc != nullptr) {
        return to_nic(element, desc);
    }
    element.lkey = element.length != 0 ? NicMemory::kNone : element.lkey;
    return element.length == 0 || srx.domain->msg->nic_memory() != nullptr;
}

std::uint64_t number_of(const MsgOp& op) noexcept {
    return reinterpret_cast<std::uintptr_t>(&op) | (op.use != nullptr ? kMarkedNumber : 0);
}

ssize_t post_to_nic(Srx& srx, MsgOp& op, std::span<Sge> list) noexcept {
    NicMemory* const memory = srx.domain->msg->nic_memory();
    const util::Status lent =
        memory != nullptr ? memory->lend_to_receive(op, list) : util::Status(util::kOk);
    if (!lent.is_ok()) {
        return to_fi(lent);
    }
    return post_result(srx.nic_queue->post_recv({.wr_id = number_of(op), .sg_list = list}));
}

ssize_t post_list(Srx& srx, std::span<Sge> list, void* context, std::uint64_t flags, DeviceUse* use,
                  bool is_staged) noexcept;
ssize_t post_held(Srx& srx, const iovec* iov, void* const* desc, std::size_t count, void* context,
                  std::uint64_t flags) noexcept;

ssize_t post(Srx& srx, const iovec* iov, void* const* desc, std::size_t count, void* context,
             std::uint64_t flags) noexcept {
    if (count > kMsgIov || (iov == nullptr && count != 0)) {
        return -FI_EINVAL;
    }
    const bool is_nic = srx.nic_queue != nullptr;
    const bool has_devices = (srx.domain->caps & FI_HMEM) != 0;
    std::array<Sge, kMsgIov> list;
    std::size_t left = srx.max_bytes;  // of a message; the buffers may be longer
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t length = std::min(iov[i].iov_len, left);
        left -= length;
        list[i] = {.addr = reinterpret_cast<std::uintptr_t>(iov[i].iov_base),
                   .length = static_cast<std::uint32_t>(length),
                   .lkey = srx.domain->msg->local_key()};
        const void* const region = desc != nullptr ? desc[i] : nullptr;
        if (is_nic ? !name_for_nic(srx, list[i], region)
                   : has_devices && region != nullptr && !to_device(list[i], region)) {
            return desc != nullptr && copy_is_needed(desc, count)
                       ? post_held(srx, iov, desc, count, context, flags)
                       : -FI_EINVAL;
        }
    }
    return post_list(srx, {list.data(), count}, context, flags, nullptr, false);
}

/// Into memory of devices that the CPU has a copy of: into that.
ssize_t post_held(Srx& srx, const iovec* iov, void* const* desc, std::size_t count, void* context,
                  std::uint64_t flags) noexcept {
    DeviceBuffers device(srx.device_uses, nullptr, DeviceBuffers::Imported::kStays);
    std::array<iovec, kMsgIov> own;
    std::copy_n(iov, count, own.begin());
    cut_to_message({own.data(), count}, srx.max_bytes);
    const int refused = device.take(own.data(), desc, count, core::CpuAccess::kWrite);
    if (refused != 0) {
        return refused;
    }
    std::array<Sge, kMsgIov> list;
    for (std::size_t i = 0; i < count; ++i) {
        list[i] = {.addr = reinterpret_cast<std::uintptr_t>(own[i].iov_base),
                   .length = static_cast<std::uint32_t>(own[i].iov_len),
                   .lkey = srx.domain->msg->local_key()};
        if (srx.nic_queue != nullptr) {
            static_cast<void>(name_for_nic(srx, list[i], desc[i]));
        }
    }
    DeviceUse* const use = device.release();
    const bool is_staged =
        srx.nic_queue == nullptr && util::iov_length(own.data(), count) > core::kMaxStagedSize;
    if (is_staged) {
        use->work_in_stages();
    }
    const ssize_t posted = post_list(srx, {list.data(), count}, context, flags, use, is_staged);
    if (posted != 0) {
        use->release();
    }
    return posted;
}

/// @param use        What the receive holds of devices; nullptr: nothing.
/// @param is_staged  It is told of each part.
ssize_t post_list(Srx& srx, std::span<Sge> list, void* context, std::uint64_t flags, DeviceUse* use,
                  bool is_staged) noexcept {
    const bool is_nic = srx.nic_queue != nullptr;
    if (is_nic && srx.domain->nic->device().is_going()) [[unlikely]] {
        return -FI_ENODEV;
    }
    const util::Guard<DomainLock> guard(srx.domain->lock);
    MsgOp* op = srx.ops.take();
    if (op == nullptr && srx.domain->msg->make_room_locked() != 0) [[unlikely]] {
        op = srx.ops.take();  // as of an endpoint: nobody else may read a queue
    }
    if (op == nullptr) {
        return -FI_EAGAIN;
    }
    op->context = context;
    op->flags = FI_MSG | FI_RECV;
    op->counter = nullptr;
    op->wants_completion = (flags & FI_COMPLETION) != 0;
    op->use = use;
    const ssize_t posted =
        is_nic ? post_to_nic(srx, *op, list)
               : post_result(srx.queue.post(
                     {.wr_id = number_of(*op), .sg_list = list, .use = is_staged ? use : nullptr}));
    if (posted != 0) {
        op->use = nullptr;
        srx.domain->msg->give_back(*op);
        srx.ops.put(*op);
        return posted;
    }
    if (!is_nic) {
        srx.domain->msg->wake_waiting_locked(srx.queue);
    }
    return 0;
}

ssize_t srx_recvv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                  fi_addr_t /*source*/, void* context) noexcept {
    Srx& srx = Srx::from(self);
    return post(srx, iov, desc, count, context, srx.op_flags);
}

ssize_t srx_recv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t /*source*/,
                 void* context) noexcept {
    const iovec iov{buffer, length};
    return srx_recvv(self, &iov, &desc, 1, FI_ADDR_UNSPEC, context);
}

ssize_t srx_recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    if ((flags & ~kSrxFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    return msg != nullptr
               ? post(Srx::from(self), msg->msg_iov, msg->desc, msg->iov_count, msg->context, flags)
               : -FI_EINVAL;
}

constexpr Refuse<-FI_ENOSYS> kNot{};

fi_ops_msg srx_msg_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = srx_recv,
    .recvv = srx_recvv,
    .recvmsg = srx_recvmsg,
    .send = kNot,
    .sendv = kNot,
    .sendmsg = kNot,
    .inject = kNot,
    .senddata = kNot,
    .injectdata = kNot,
};

int srx_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    return option == FI_OPT_RX_SIZE
               ? msg_getopt(level, option, value, bytes, {.rx = Srx::from(self).size})
               : -FI_ENOPROTOOPT;
}
int srx_setopt(fid* /*self*/, int level, int option, const void* /*value*/,
               std::size_t /*bytes*/) noexcept {
    return refuse_option(level, option);
}

fi_ops_ep srx_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = kNot,
    .getopt = srx_getopt,
    .setopt = srx_setopt,
    .tx_ctx = kNot,
    .rx_ctx = kNot,
    .rx_size_left = kNot,
    .tx_size_left = kNot,
};

util::Status open_nic_queue(Srx& srx) {
    const DeviceLimits& limits = srx.domain->nic->device().limits();
    return core::keep(
        srx.nic_queue,
        core::create_srq(*srx.domain->nic_pd,
                         {.max_wr = static_cast<std::uint32_t>(srx.size),
                          .max_sge = std::min({static_cast<std::uint32_t>(kMsgIov), limits.max_sge,
                                               limits.max_srq_sge})}));
}

int open(Domain& domain, const fi_rx_attr* attr, fid_ep** srx, void* context) {
    const std::size_t size = attr != nullptr && attr->size != 0 ? attr->size : kDefaultSize;
    if (size > kMsgMaxQueue) {
        RVT_WARN(kEpCtrl, "cannot open shared context: %zu receives asked, at most %zu", size,
                 kMsgMaxQueue);
        return -FI_EINVAL;
    }
    const std::uint64_t flags = attr != nullptr ? attr->op_flags : 0;
    if (!are_offered("shared context", flags, kSrxFlags)) {
        return -FI_EBADFLAGS;
    }
    const util::Status shared = domain.open_msg();
    if (!shared.is_ok()) {
        return to_fi(shared);
    }
    auto made = std::make_unique<Srx>(domain, size, kMsgIov);
    made->op_flags = flags;
    if (domain.nic != nullptr) {
        made->max_bytes =
            std::min<std::uint64_t>(kMsgMaxBytes, domain.nic->device().limits().max_message_bytes);
        const util::Status opened = open_nic_queue(*made);
        if (!opened.is_ok()) {
            RVT_WARN(kEpCtrl, "cannot open shared context of %zu receives with NIC %s: %s", size,
                     domain.name(), strerrordesc_np(opened.error()));
            return to_fi(opened);
        }
    }
    made->handle.fid = {FI_CLASS_SRX_CTX, context, &srx_fid_ops};
    made->handle.ops = &srx_ops;
    made->handle.msg = &srx_msg_ops;
    made->handle.tagged = &absent_tables.tagged;
    made->handle.rma = &absent_tables.rma;
    made->handle.atomic = &absent_tables.atomic;
    made->handle.collective = &absent_collective_ops;
    domain.users.add();
    *srx = &made.release()->handle;
    return 0;
}

}  // namespace

int srx_open(fid_domain* domain, fi_rx_attr* attr, fid_ep** srx, void* context) noexcept {
    return entry([&] { return open(Domain::from(domain), attr, srx, context); });
}

}  // namespace rvt::ofi
