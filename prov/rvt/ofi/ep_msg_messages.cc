// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) of connected endpoints.
#include "ofi/ep_msg_post.h"

#include "util/iov_cursor.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kMsgRecvFlags = FI_COMPLETION | FI_MORE | FI_TRANSMIT_COMPLETE;

// ---- sends ----

MsgPost send_of(std::uint64_t flags, std::uint64_t data, void* context,
                void* const* desc) noexcept {
    return {.opcode = (flags & FI_REMOTE_CQ_DATA) != 0 ? WrOpcode::kSendImm : WrOpcode::kSend,
            .completion = FI_MSG | FI_SEND,
            .flags = flags,
            .data = data,
            .context = context,
            .desc = desc};
}

ssize_t msg_sendv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                  fi_addr_t /*dest*/, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (is_bad_msg_list(iov, count)) {
        return -FI_EINVAL;
    }
    return msg_post(ep, send_of(default_flags(ep), 0, context, desc), iov, count);
}

ssize_t msg_send(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                 fi_addr_t /*dest*/, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(ep, send_of(default_flags(ep), 0, context, &desc), &iov, 1);
}

ssize_t msg_sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if ((flags & ~kPostFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (is_bad(msg)) {
        return -FI_EINVAL;
    }
    return msg_post(ep, send_of(flags_of_call(ep, flags), msg->data, msg->context, msg->desc),
                    msg->msg_iov, msg->iov_count);
}

ssize_t msg_inject(fid_ep* self, const void* buffer, std::size_t length,
                   fi_addr_t /*dest*/) noexcept {
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(EpMsg::from(self), send_of(FI_INJECT, 0, nullptr, nullptr), &iov, 1);
}

ssize_t msg_senddata(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                     std::uint64_t data, fi_addr_t /*dest*/, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(ep, send_of(default_flags(ep) | FI_REMOTE_CQ_DATA, data, context, &desc), &iov,
                    1);
}

ssize_t msg_injectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                       fi_addr_t /*dest*/) noexcept {
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(EpMsg::from(self),
                    send_of(FI_INJECT | FI_REMOTE_CQ_DATA, data, nullptr, nullptr), &iov, 1);
}

// ---- receives ----

/// What a receive holds of devices.
struct HeldReceive {
    DeviceBuffers* buffers = nullptr;
    DeviceUse* staged = nullptr;  // is told of each part
};

template <bool kHolds>
ssize_t post_receive_locked(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                            void* context, std::uint64_t flags, const HeldReceive& held) noexcept;

/// Into memory of devices that the CPU has a copy of: into that.
[[gnu::noinline]] ssize_t receive_held(EpMsg& ep, const iovec* iov, void* const* desc,
                                       std::size_t count, void* context,
                                       std::uint64_t flags) noexcept {
    if (desc == nullptr || !copy_is_needed(desc, count)) {
        return -FI_EINVAL;
    }
    DeviceBuffers device(ep.device_uses, nullptr, DeviceBuffers::Imported::kStays);
    std::array<iovec, kMsgIov> own;
    std::copy_n(iov, count, own.begin());
    cut_to_message({own.data(), count}, ep.max_bytes);
    const int refused = device.take(own.data(), desc, count, core::CpuAccess::kWrite);
    if (refused != 0) {
        return refused;
    }
    DeviceUse* const staged =
        is_in_stages(ep, util::iov_length(own.data(), count)) ? device.use() : nullptr;
    if (staged != nullptr) {
        staged->work_in_stages();
    }
    return post_receive_locked<true>(ep, own.data(), ep.domain->nic != nullptr ? desc : nullptr,
                                     count, context, flags, {&device, staged});
}

bool has_ended(const EpMsg& ep) noexcept {
    using State = core::RcConnection::State;
    const State state = ep.connection->state();
    return state == State::kClosing || state == State::kEnded;
}

/// Where nobody reads completions, since none are asked for, who posts makes room himself.
MsgOp* take_receive(EpMsg& ep) noexcept {
    if (must_wait(ep.rx_cq)) {
        return nullptr;
    }
    MsgOp* const op = ep.receives->take();
    if (op != nullptr || ep.domain->msg->make_room_locked() == 0 || has_ended(ep)) [[likely]] {
        return op;
    }
    return must_wait(ep.rx_cq) ? nullptr : ep.receives->take();
}

template <bool kHolds>
ssize_t post_receive_locked(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                            void* context, std::uint64_t flags, const HeldReceive& held) noexcept {
    if (has_ended(ep)) {
        return -FI_ENOTCONN;
    }
    Elements<kMsgIov> elements;
    if (elements.fill<true>(iov, desc, count, naming_of(ep, false, kHolds), ep.max_bytes) != 0)
        [[unlikely]] {
        return kHolds ? -FI_EINVAL : receive_held(ep, iov, desc, count, context, flags);
    }
    MsgOp* const op = take_receive(ep);
    if (op == nullptr) {
        return has_ended(ep) ? -FI_ENOTCONN : -FI_EAGAIN;
    }
    op->context = context;
    op->flags = FI_MSG | FI_RECV;
    op->counter = nullptr;
    op->wants_completion = !ep.is_rx_selective || (flags & FI_COMPLETION) != 0;
    if (elements.lacks_key) {
        const util::Status lent =
            ep.domain->msg->nic_memory()->lend_to_receive(*op, elements.elements());
        if (!lent.is_ok()) [[unlikely]] {
            ep.receives->put(*op);
            return to_fi(lent);
        }
    }
    const util::Status posted =
        ep.connection->qp().post_recv({.wr_id = number_of(op) | (kHolds ? kMarkedNumber : 0),
                                       .sg_list = {elements.list.data(), elements.count},
                                       .use = kHolds ? held.staged : nullptr});
    if (!posted.is_ok()) {
        ep.domain->msg->give_back(*op);
        ep.receives->put(*op);
    } else if constexpr (kHolds) {
        op->use = held.buffers->release();
    }
    return post_result(posted);
}

ssize_t post_receive(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                     void* context, std::uint64_t flags) noexcept {
    if (ep.receives == nullptr) {
        return -FI_ENOSYS;  // they are posted to the shared context
    }
    const util::Guard<DomainLock> guard(ep.domain->lock);
    return post_receive_locked<false>(ep, iov, desc_of(ep, desc), count, context, flags, {});
}

ssize_t msg_recvv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                  fi_addr_t /*source*/, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (is_bad_msg_list(iov, count)) {
        return -FI_EINVAL;
    }
    return post_receive(ep, iov, desc, count, context, ep.rx_op_flags);
}

ssize_t msg_recv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t /*source*/,
                 void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{buffer, length};
    return post_receive(ep, &iov, &desc, 1, context, ep.rx_op_flags);
}

ssize_t msg_recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    if ((flags & ~kMsgRecvFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (is_bad(msg)) {
        return -FI_EINVAL;
    }
    return post_receive(EpMsg::from(self), msg->msg_iov, msg->desc, msg->iov_count, msg->context,
                        flags);
}

}  // namespace

constinit fi_ops_msg msg_msg_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = msg_recv,
    .recvv = msg_recvv,
    .recvmsg = msg_recvmsg,
    .send = msg_send,
    .sendv = msg_sendv,
    .sendmsg = msg_sendmsg,
    .inject = msg_inject,
    .senddata = msg_senddata,
    .injectdata = msg_injectdata,
};

}  // namespace rvt::ofi
