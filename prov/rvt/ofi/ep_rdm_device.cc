// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Each buffer is looked up by its descriptor before the engine sees it; what is not a device's goes
// the engine's own way.
#include "ofi/ep_rdm_device.h"

#include <algorithm>
#include <array>

#include "ofi/device_use.h"
#include "ofi/ep_by_msg.inl"
#include "ofi/ep_rdm.h"
#include "ofi/ep_rdm_atomic.inl"
#include "ofi/ep_rdm_engine.h"
#include "ofi/rd_flags.h"
#include "util/iov_cursor.h"

namespace rvt::ofi {
namespace {

using core::CpuAccess;

/// The buffers of a call that names one list of them.
struct OneList {
    explicit OneList(EpRdm& ep) noexcept : device(ep.device_uses, &ep.domain->lock) {}

    int take(const iovec* from, void* const* desc, std::size_t count, CpuAccess access,
             RdFlags flags) noexcept {
        std::copy_n(from, count, iov.begin());
        const bool is_staged =
            has(flags, RdFlags::kInject) || util::iov_length(from, count) <= core::kMaxStagedSize;
        return device.take(
            iov.data(), desc, count, access,
            is_staged ? DeviceBuffers::Refresh::kNow : DeviceBuffers::Refresh::kLater);
    }
    /// Posts what has been filled in with `post`.
    template <class Request, class Post>
    ssize_t hand_over(Request& request, Post post) noexcept {
        const int unread = device.refresh();
        if (unread != 0) {
            return unread;
        }
        device.put_into(request);
        const util::Status posted = post(request);
        if (posted.is_ok()) {
            device.keep();
        }
        return to_fi(posted);
    }

    std::array<iovec, core::kMaxIov> iov;
    DeviceBuffers device;
};

ssize_t send(EpRdm& ep, core::RdSend request, void* const* desc) noexcept {
    OneList list(ep);
    const int refused =
        list.take(request.iov, desc, request.iov_count, CpuAccess::kRead, request.flags);
    if (refused != 0) {
        return refused;
    }
    request.iov = list.iov.data();
    return list.hand_over(request, [&](const auto& each) { return ep.engine->send(each); });
}

ssize_t recv(EpRdm& ep, core::RdRecv request, void* const* desc) noexcept {
    // A question names no buffer, nor does who throws a message away.
    if (has(request.flags, RdFlags::kPeek | RdFlags::kDiscard)) {
        return to_fi(ep.engine->recv(request));
    }
    OneList list(ep);
    const int refused =
        list.take(request.iov, desc, request.iov_count, CpuAccess::kWrite, request.flags);
    if (refused != 0) {
        return refused;
    }
    request.iov = list.iov.data();
    return list.hand_over(request, [&](const auto& each) { return ep.engine->recv(each); });
}

ssize_t access(EpRdm& ep, const fi_msg_rma* msg, bool is_write, RdFlags flags) noexcept {
    if (is_bad_message(msg) || is_bad_list(msg->rma_iov, msg->rma_iov_count)) {
        return -FI_EINVAL;
    }
    OneList list(ep);
    const int refused = list.take(msg->msg_iov, msg->desc, msg->iov_count,
                                  is_write ? CpuAccess::kRead : CpuAccess::kWrite, flags);
    if (refused != 0) {
        return refused;
    }
    core::RdRma request{.is_write = is_write,
                        .iov = list.iov.data(),
                        .iov_count = msg->iov_count,
                        .remote = reinterpret_cast<const core::RdRemote*>(msg->rma_iov),
                        .remote_count = msg->rma_iov_count,
                        .dest = msg->addr,
                        .data = msg->data,
                        .context = msg->context,
                        .flags = flags};
    return list.hand_over(request, [&](const auto& each) { return ep.engine->rma(each); });
}

/// The descriptors of an atomic's three lists.
struct AtomicDescs {
    void* const* operand;
    void* const* compare;
    void* const* result;
};

ssize_t atomic(EpRdm& ep, const AtomicCall& call, const AtomicDescs& descs,
               RdFlags flags) noexcept {
    AtomicRequest lists;
    DeviceBuffers device(ep.device_uses, &ep.domain->lock);
    int refused = lists.fill(call);
    const auto take = [&](AtomicIov& list, void* const* desc, CpuAccess how) {
        refused = refused == 0 ? device.take(list.iov.data(), desc, list.count, how) : refused;
    };
    take(lists.operand, descs.operand, CpuAccess::kRead);
    take(lists.compare, descs.compare, CpuAccess::kRead);
    take(lists.result, descs.result, CpuAccess::kWrite);
    refused = refused == 0 ? device.refresh() : refused;
    if (refused != 0) {
        return refused;
    }
    core::RdAtomic request = lists.request(call, flags);
    device.put_into(request);
    const util::Status posted = ep.engine->atomic(request);
    if (posted.is_ok()) {
        device.keep();
    }
    return to_fi(posted);
}

AtomicCall to_call(core::RdAtomic::Kind kind, const fi_msg_atomic& msg) noexcept {
    return {.kind = kind,
            .operand = msg.msg_iov,
            .operand_count = msg.iov_count,
            .compare = nullptr,
            .compare_count = 0,
            .result = nullptr,
            .result_count = 0,
            .remote = msg.rma_iov,
            .remote_count = msg.rma_iov_count,
            .datatype = msg.datatype,
            .op = msg.op,
            .dest = msg.addr,
            .context = msg.context,
            .data = msg.data};
}

/// What the calls with flags do. They refuse what those of an engine refuse.
struct ToDevice {
    static std::uint64_t tx_op_flags(fid_ep* self) noexcept {
        return EpRdm::from(self).tx_op_flags;
    }
    static std::uint64_t rx_op_flags(fid_ep* self) noexcept {
        return EpRdm::from(self).rx_op_flags;
    }

    static ssize_t sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        if ((flags & ~kSendFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (is_bad_message(msg)) {
            return -FI_EINVAL;
        }
        return send(ep,
                    {.iov = msg->msg_iov,
                     .iov_count = msg->iov_count,
                     .dest = msg->addr,
                     .data = msg->data,
                     .context = msg->context,
                     .flags = ep.send_flags_of(flags)},
                    msg->desc);
    }
    static ssize_t recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        if ((flags & ~kRecvFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (is_bad_message(msg)) {
            return -FI_EINVAL;
        }
        return recv(ep,
                    {.iov = msg->msg_iov,
                     .iov_count = msg->iov_count,
                     .source = msg->addr | ep.source_mask,
                     .context = msg->context,
                     .flags = ep.recv_flags_of(flags)},
                    msg->desc);
    }
    static ssize_t tsendmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        if ((flags & ~kSendFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (is_bad_message(msg)) {
            return -FI_EINVAL;
        }
        return send(ep,
                    {.iov = msg->msg_iov,
                     .iov_count = msg->iov_count,
                     .dest = msg->addr,
                     .tag = msg->tag,
                     .data = msg->data,
                     .context = msg->context,
                     .flags = ep.send_flags_of(flags) | RdFlags::kTagged},
                    msg->desc);
    }
    static ssize_t trecvmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        if ((flags & ~kTaggedRecvFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (is_bad_message(msg)) {
            return -FI_EINVAL;
        }
        if (ep.lacks_answer(flags)) {
            return -FI_ENOCQ;
        }
        return recv(ep,
                    {.iov = msg->msg_iov,
                     .iov_count = msg->iov_count,
                     .source = msg->addr | ep.tagged_source_mask,
                     .tag = msg->tag,
                     .ignore = msg->ignore,
                     .context = msg->context,
                     .flags = ep.recv_flags_of(flags) | RdFlags::kTagged},
                    msg->desc);
    }
    static ssize_t readmsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        return (flags & ~kReadFlags) != 0 ? -FI_EBADFLAGS
                                          : access(ep, msg, false, ep.access_flags_of(flags));
    }
    static ssize_t writemsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        return (flags & ~kSendFlags) != 0 ? -FI_EBADFLAGS
                                          : access(ep, msg, true, ep.access_flags_of(flags));
    }
    static ssize_t atomicmsg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags) noexcept {
        return atomic_msg(self, core::RdAtomic::Kind::kBase, msg, {}, nullptr, {}, nullptr, flags);
    }
    static ssize_t fetch_atomicmsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* result,
                                   void** result_desc, std::size_t result_count,
                                   std::uint64_t flags) noexcept {
        return atomic_msg(self, core::RdAtomic::Kind::kFetch, msg, {}, nullptr,
                          {result, result_count}, result_desc, flags);
    }
    static ssize_t compare_atomicmsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compare,
                                     void** compare_desc, std::size_t compare_count, fi_ioc* result,
                                     void** result_desc, std::size_t result_count,
                                     std::uint64_t flags) noexcept {
        return atomic_msg(self, core::RdAtomic::Kind::kCompare, msg, {compare, compare_count},
                          compare_desc, {result, result_count}, result_desc, flags);
    }

  private:
    struct List {
        const fi_ioc* ioc = nullptr;
        std::size_t count = 0;
    };
    static ssize_t atomic_msg(fid_ep* self, core::RdAtomic::Kind kind, const fi_msg_atomic* msg,
                              List compare, void* const* compare_desc, List result,
                              void* const* result_desc, std::uint64_t flags) noexcept {
        EpRdm& ep = EpRdm::from(self);
        if ((flags & ~kAtomicFlags) != 0) {
            return -FI_EBADFLAGS;
        }
        if (msg == nullptr) {
            return -FI_EINVAL;
        }
        AtomicCall call = to_call(kind, *msg);
        call.compare = compare.ioc;
        call.compare_count = compare.count;
        call.result = result.ioc;
        call.result_count = result.count;
        return atomic(ep, call, {msg->desc, compare_desc, result_desc}, ep.access_flags_of(flags));
    }
};

// ---- the commonest calls, straight to the engine where there is no descriptor ----

ssize_t device_send(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                    fi_addr_t dest, void* context) noexcept {
    return desc == nullptr
               ? EpRdm::from(self).ops->tables.msg.send(self, buffer, length, desc, dest, context)
               : MsgByMsg<ToDevice>::send(self, buffer, length, desc, dest, context);
}
ssize_t device_recv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                    void* context) noexcept {
    return desc == nullptr
               ? EpRdm::from(self).ops->tables.msg.recv(self, buffer, length, desc, source, context)
               : MsgByMsg<ToDevice>::recv(self, buffer, length, desc, source, context);
}
ssize_t device_tsend(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                     fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
    return desc == nullptr
               ? EpRdm::from(self).ops->tables.tagged.send(self, buffer, length, desc, dest, tag,
                                                           context)
               : TaggedByMsg<ToDevice>::send(self, buffer, length, desc, dest, tag, context);
}
ssize_t device_trecv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                     std::uint64_t tag, std::uint64_t ignore, void* context) noexcept {
    return desc == nullptr ? EpRdm::from(self).ops->tables.tagged.recv(self, buffer, length, desc,
                                                                       source, tag, ignore, context)
                           : TaggedByMsg<ToDevice>::recv(self, buffer, length, desc, source, tag,
                                                         ignore, context);
}

}  // namespace

EpTables device_tables(const EpTables& engine) noexcept {
    EpTables tables = tables_by_msg<ToDevice>();
    tables.msg.send = device_send;
    tables.msg.recv = device_recv;
    tables.msg.inject = engine.msg.inject;
    tables.msg.injectdata = engine.msg.injectdata;
    tables.tagged.send = device_tsend;
    tables.tagged.recv = device_trecv;
    tables.tagged.inject = engine.tagged.inject;
    tables.tagged.injectdata = engine.tagged.injectdata;
    tables.rma.inject = engine.rma.inject;
    tables.rma.injectdata = engine.rma.injectdata;
    tables.atomic.inject = engine.atomic.inject;
    return tables;
}

}  // namespace rvt::ofi
