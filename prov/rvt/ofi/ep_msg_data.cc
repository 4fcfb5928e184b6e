// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) and fi_rma(3) of connected endpoints: each call becomes a work request. Each request
// completes towards this layer, which counts it and tells the application if that is wanted.
//
// A completion means that the peer has acknowledged: its memory holds the data, or its receive.
// That is as much as FI_DELIVERY_COMPLETE asks for.
#include <algorithm>
#include <array>

#include "core/qp.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/device_use.h"
#include "ofi/ep_msg.h"
#include "ofi/errors.h"
#include "ofi/mr.h"
#include "ofi/srx.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kPostFlags = FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA | FI_MORE |
                                     FI_FENCE | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                     FI_DELIVERY_COMPLETE;
constexpr std::uint64_t kReadFlags = kPostFlags & ~(FI_INJECT | FI_REMOTE_CQ_DATA);
constexpr std::uint64_t kRecvFlags = FI_COMPLETION | FI_MORE;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;
constexpr std::uint64_t kNoFlags = 0;

std::uint64_t number_of(const MsgOp* op) noexcept {
    return reinterpret_cast<std::uintptr_t>(op);
}

bool is_bad_list(const void* list, std::size_t count) noexcept {
    return count > kMsgIov || (list == nullptr && count != 0);
}
template <class Message>
bool is_bad(const Message* message) noexcept {
    return message == nullptr || is_bad_list(message->msg_iov, message->iov_count);
}

/// How local buffers are named in work requests.
struct Naming {
    std::uint32_t key;  // of what has no descriptor
    bool is_nic;        // where that is nothing but the scratch word, or copied by the post
    bool has_memory;    // of a NIC, for what has none
    bool is_copied = false;
    const void* scratch = nullptr;

    bool name(Sge& element, const void* desc) const noexcept {
        if (desc == nullptr) {
            if (!is_nic || is_copied || element.length == 0 ||
                element.addr == reinterpret_cast<std::uintptr_t>(scratch)) {
                return true;
            }
            element.lkey = NicMemory::kNone;
            return has_memory;
        }
        if (is_nic) {
            to_nic(element, desc);
            return true;
        }
        return to_device(element, desc);
    }
};

Naming naming_of(const EpMsg& ep, bool is_copied) noexcept {
    MsgDomain& msg = *ep.domain->msg;
    return {.key = msg.local_key(),
            .is_nic = ep.domain->nic != nullptr,
            .has_memory = msg.nic_memory() != nullptr,
            .is_copied = is_copied,
            .scratch = msg.scratch()};
}

/// The elements of a work request.
template <std::size_t kMost>
struct Elements {
    std::array<Sge, kMost> list;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    bool lacks_key = false;

    [[nodiscard]] std::span<Sge> elements() noexcept { return {list.data(), count}; }
    /// Returns: -FI_EMSGSIZE for more than a message may hold, -FI_EINVAL for a buffer that is not
    /// within the region of its descriptor, or lacks one that it needs.
    int fill(const iovec* iov, void* const* desc, std::size_t n, const Naming& naming) noexcept {
        for (std::size_t i = 0; i < n; ++i) {
            if (iov[i].iov_len > kMostBytes) {
                return -FI_EMSGSIZE;
            }
            list[i] = {.addr = reinterpret_cast<std::uintptr_t>(iov[i].iov_base),
                       .length = static_cast<std::uint32_t>(iov[i].iov_len),
                       .lkey = naming.key};
            if (!naming.name(list[i], desc != nullptr ? desc[i] : nullptr)) [[unlikely]] {
                return -FI_EINVAL;
            }
            lacks_key |= list[i].lkey == NicMemory::kNone;
            bytes += iov[i].iov_len;
        }
        count = n;
        return bytes <= kMostBytes ? 0 : -FI_EMSGSIZE;
    }
};

/// Where neither a NIC nor memory of devices is, descriptors say nothing.
void* const* desc_of(const EpMsg& ep, void* const* desc) noexcept {
    return ep.domain->nic != nullptr || (ep.domain->caps & FI_HMEM) != 0 ? desc : nullptr;
}

core::Counter* counter_of(const Cntr* cntr) noexcept {
    return cntr != nullptr ? &const_cast<Cntr*>(cntr)->counter : nullptr;
}

core::Counter* counter_for(const EpMsg& ep, std::uint64_t completion) noexcept {
    return counter_of((completion & FI_SEND) != 0   ? ep.counters.send
                      : (completion & FI_READ) != 0 ? ep.counters.read
                                                    : ep.counters.write);
}

/// What a queue that is full, or a pair that has failed, means to the application.
ssize_t post_result(util::Status status) noexcept {
    return status.error() == ENOMEM ? -FI_EAGAIN : to_fi(status);
}

/// Whether the application has to read first: the queue holds more than it was made for.
bool must_wait(const Cq* cq) noexcept {
    return cq != nullptr && cq->queue->has_overflow();
}

// ---- sends ----

/// With its own flags a call completes as they say, without as the endpoint's defaults do.
std::uint64_t flags_of_call(const EpMsg& ep, std::uint64_t flags) noexcept {
    return flags | (ep.is_tx_selective ? kNoFlags : FI_COMPLETION);
}
std::uint64_t default_flags(const EpMsg& ep) noexcept {
    return flags_of_call(ep, ep.tx_op_flags);
}

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
    if (is_bad_list(iov, count)) {
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

template <bool kHolds>
ssize_t post_receive_locked(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                            void* context, std::uint64_t flags, DeviceBuffers* device) noexcept;

/// Into memory of devices that the CPU has a copy of: into that.
[[gnu::noinline]] ssize_t receive_held(EpMsg& ep, const iovec* iov, void* const* desc,
                                       std::size_t count, void* context,
                                       std::uint64_t flags) noexcept {
    if (desc == nullptr || ep.domain->nic != nullptr || !copy_is_needed(desc, count)) {
        return -FI_EINVAL;
    }
    DeviceBuffers device(ep.device_uses);
    std::array<iovec, kMsgIov> own;
    std::copy_n(iov, count, own.begin());
    const int refused = device.take(own.data(), desc, count, core::CpuAccess::kWrite);
    return refused == 0
               ? post_receive_locked<true>(ep, own.data(), nullptr, count, context, flags, &device)
               : refused;
}

template <bool kHolds>
ssize_t post_receive_locked(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                            void* context, std::uint64_t flags, DeviceBuffers* device) noexcept {
    using State = core::RcConnection::State;
    const State state = ep.connection->state();
    if (state == State::kClosing || state == State::kEnded) {
        return -FI_ENOTCONN;
    }
    Elements<kMsgIov> elements;
    if (elements.fill(iov, desc, count, naming_of(ep, false)) != 0) [[unlikely]] {
        return kHolds ? -FI_EINVAL : receive_held(ep, iov, desc, count, context, flags);
    }
    MsgOp* const op = must_wait(ep.rx_cq) ? nullptr : ep.receives->take();
    if (op == nullptr) {
        return -FI_EAGAIN;
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
                                       .sg_list = {elements.list.data(), elements.count}});
    if (!posted.is_ok()) {
        ep.domain->msg->give_back(*op);
        ep.receives->put(*op);
    } else if constexpr (kHolds) {
        op->use = device->release();
    }
    return post_result(posted);
}

ssize_t post_receive(EpMsg& ep, const iovec* iov, void* const* desc, std::size_t count,
                     void* context, std::uint64_t flags) noexcept {
    if (ep.receives == nullptr) {
        return -FI_ENOSYS;  // they are posted to the shared context
    }
    const util::Guard<DomainLock> guard(ep.domain->lock);
    return post_receive_locked<false>(ep, iov, desc_of(ep, desc), count, context, flags, nullptr);
}

ssize_t msg_recvv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                  fi_addr_t /*source*/, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (is_bad_list(iov, count)) {
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
    if ((flags & ~kRecvFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (is_bad(msg)) {
        return -FI_EINVAL;
    }
    return post_receive(EpMsg::from(self), msg->msg_iov, msg->desc, msg->iov_count, msg->context,
                        flags);
}

// ---- memory of the peer ----

MsgPost write_of(std::uint64_t flags, std::uint64_t addr, std::uint64_t key, std::uint64_t data,
                 void* context, void* const* desc) noexcept {
    return {.opcode = (flags & FI_REMOTE_CQ_DATA) != 0 ? WrOpcode::kWriteImm : WrOpcode::kWrite,
            .completion = FI_RMA | FI_WRITE,
            .flags = flags,
            .data = data,
            .remote_addr = addr,
            .rkey = key,
            .context = context,
            .desc = desc};
}

MsgPost read_of(std::uint64_t flags, std::uint64_t addr, std::uint64_t key, void* context,
                void* const* desc) noexcept {
    return {.opcode = WrOpcode::kRead,
            .completion = FI_RMA | FI_READ,
            .flags = flags & ~std::uint64_t{FI_INJECT},
            .remote_addr = addr,
            .rkey = key,
            .context = context,
            .desc = desc};
}

/// A work request names one range of the peer's memory.
bool is_bad_remote(const fi_msg_rma* msg) noexcept {
    if (is_bad(msg) || msg->rma_iov_count != 1 || msg->rma_iov == nullptr) {
        return true;
    }
    std::uint64_t local = 0;
    for (std::size_t i = 0; i < msg->iov_count; ++i) {
        local += msg->msg_iov[i].iov_len;
    }
    return local != msg->rma_iov[0].len;
}

ssize_t msg_readv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                  fi_addr_t /*source*/, std::uint64_t addr, std::uint64_t key,
                  void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (is_bad_list(iov, count)) {
        return -FI_EINVAL;
    }
    return msg_post(ep, read_of(default_flags(ep), addr, key, context, desc), iov, count);
}

ssize_t msg_read(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t /*source*/,
                 std::uint64_t addr, std::uint64_t key, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{buffer, length};
    return msg_post(ep, read_of(default_flags(ep), addr, key, context, &desc), &iov, 1);
}

ssize_t msg_readmsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if ((flags & ~kReadFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (is_bad_remote(msg)) {
        return -FI_EINVAL;
    }
    return msg_post(ep,
                    read_of(flags_of_call(ep, flags), msg->rma_iov[0].addr, msg->rma_iov[0].key,
                            msg->context, msg->desc),
                    msg->msg_iov, msg->iov_count);
}

ssize_t msg_writev(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                   fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                   void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if (is_bad_list(iov, count)) {
        return -FI_EINVAL;
    }
    return msg_post(ep, write_of(default_flags(ep), addr, key, 0, context, desc), iov, count);
}

ssize_t msg_write(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                  fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                  void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(ep, write_of(default_flags(ep), addr, key, 0, context, &desc), &iov, 1);
}

ssize_t msg_writemsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if ((flags & ~kPostFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (is_bad_remote(msg)) {
        return -FI_EINVAL;
    }
    return msg_post(ep,
                    write_of(flags_of_call(ep, flags), msg->rma_iov[0].addr, msg->rma_iov[0].key,
                             msg->data, msg->context, msg->desc),
                    msg->msg_iov, msg->iov_count);
}

ssize_t msg_inject_write(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t /*dest*/,
                         std::uint64_t addr, std::uint64_t key) noexcept {
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(EpMsg::from(self), write_of(FI_INJECT, addr, key, 0, nullptr, nullptr), &iov,
                    1);
}

ssize_t msg_writedata(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                      std::uint64_t data, fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                      void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(
        ep, write_of(default_flags(ep) | FI_REMOTE_CQ_DATA, addr, key, data, context, &desc), &iov,
        1);
}

ssize_t msg_inject_writedata(fid_ep* self, const void* buffer, std::size_t length,
                             std::uint64_t data, fi_addr_t /*dest*/, std::uint64_t addr,
                             std::uint64_t key) noexcept {
    const iovec iov{const_cast<void*>(buffer), length};
    return msg_post(EpMsg::from(self),
                    write_of(FI_INJECT | FI_REMOTE_CQ_DATA, addr, key, data, nullptr, nullptr),
                    &iov, 1);
}

// ---- completions ----

struct Outcome {
    Cq* cq;
    core::Counter* counter;
    core::Cqe entry;
};

Outcome outcome_of_receive(const EpMsg& ep, const MsgOp& op, const core::Wc& wc) noexcept {
    const bool is_write = wc.opcode == core::WcOpcode::kRecvWriteImm;
    const bool has_data = is_write || has_any(wc.flags, core::WcFlags::kWithImm);
    Outcome outcome{.cq = ep.rx_cq, .counter = is_write ? nullptr : counter_of(ep.counters.recv)};
    outcome.entry = {.op_context = op.context,
                     .flags = (is_write ? FI_RMA | FI_REMOTE_WRITE : op.flags) |
                              (has_data ? FI_REMOTE_CQ_DATA : kNoFlags),
                     .len = wc.byte_len,
                     .data = has_data ? wc.imm : 0,
                     .status = wc.status};
    // fi_cq(3): a message longer than its receive is called truncated.
    if (wc.status == core::WcStatus::kLocLenErr) {
        outcome.entry.status = core::WcStatus::kTruncated;
    }
    return outcome;
}

void tell(const MsgOp& op, const Outcome& outcome) noexcept {
    const bool is_good = outcome.entry.status == core::WcStatus::kSuccess;
    if (outcome.counter != nullptr) {
        is_good ? outcome.counter->add(1) : outcome.counter->add_error(1);
    }
    if (outcome.cq != nullptr && (op.wants_completion || !is_good)) {
        outcome.cq->queue->push(outcome.entry);
    }
}

bool reads_its_buffers(WrOpcode opcode) noexcept {
    return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm ||
           opcode == WrOpcode::kWrite || opcode == WrOpcode::kWriteImm;
}

/// Keys for elements that came without. Returns: as NicMemory::lend_to_send().
template <std::size_t kMost>
[[gnu::noinline]] util::Status lend(EpMsg& ep, MsgOp& op, WrOpcode opcode,
                                    Elements<kMost>& elements) noexcept {
    NicMemory& memory = *ep.domain->msg->nic_memory();
    return reads_its_buffers(opcode) ? memory.lend_to_send(op, elements.elements(), elements.count)
                                     : memory.lend_to_receive(op, elements.elements());
}

util::Status post_request(EpMsg& ep, const MsgOp& op, const MsgPost& post,
                          std::span<const Sge> elements, bool is_inline,
                          std::uint64_t mark) noexcept {
    return ep.connection->qp().post_send(
        {.wr_id = number_of(&op) | mark,
         .opcode = post.opcode,
         .flags = SendFlags::kSignaled | (is_inline ? SendFlags::kInline : SendFlags::kNone) |
                  ((post.flags & FI_FENCE) != 0 ? SendFlags::kFence : SendFlags::kNone),
         .imm = static_cast<std::uint32_t>(post.data),
         .sg_list = elements,
         .remote_addr = post.remote_addr,
         .rkey = static_cast<std::uint32_t>(post.rkey),
         .compare_add = post.compare_add,
         .swap = post.swap,
         .atomic = post.atomic});
}

/// What a request holds of devices.
struct Held {
    DeviceUse* use = nullptr;
    std::uint64_t filled_bytes = 0;
};

template <std::size_t kMost, bool kHolds>
ssize_t post_locked(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                    std::size_t count, const Held& held) noexcept;

/// Bytes that a request leaves in its buffers, which are those behind the operands.
bool is_filling(const MsgPost& post) noexcept {
    return (post.completion & FI_READ) != 0;
}

/// With buffers in memory of devices that the CPU has a copy of: with that.
template <std::size_t kMost>
[[gnu::noinline]] ssize_t post_held(EpMsg& ep, const MsgPost& post, const iovec* iov,
                                    void* const* desc, std::size_t count, int unfit) noexcept {
    if (unfit != -FI_EINVAL || desc == nullptr || ep.domain->nic != nullptr ||
        !copy_is_needed(desc, count)) {
        return unfit;
    }
    std::array<iovec, kMost> own;
    std::copy_n(iov, count, own.begin());
    std::uint64_t bytes = 0;
    std::size_t operands = is_filling(post) ? 0 : count;
    const bool is_extended = post.opcode == WrOpcode::kExtendedAtomic;
    for (std::size_t i = 0; i < count; ++i) {
        operands = is_extended && bytes < post.operand_bytes ? i + 1 : operands;
        bytes += iov[i].iov_len;
    }
    DeviceBuffers device(ep.device_uses);
    int refused = device.take(own.data(), desc, operands, core::CpuAccess::kRead);
    refused = refused == 0 ? device.take(own.data() + operands, desc + operands, count - operands,
                                         core::CpuAccess::kWrite)
                           : refused;
    if (refused != 0) {
        return refused;
    }
    DeviceUse* const use = device.release();
    const ssize_t posted = post_locked<kMost, true>(
        ep, post, own.data(), nullptr, count,
        {.use = use,
         .filled_bytes = is_filling(post) ? bytes - (is_extended ? post.operand_bytes : 0) : 0});
    if (posted != 0) {
        use->release();
    }
    return posted;
}

/// Returns: nullptr when no more can be under way now.
RVT_ALWAYS_INLINE MsgOp* take_send(EpMsg& ep, const MsgPost& post) noexcept {
    MsgOp* const op = must_wait(ep.tx_cq) ? nullptr : ep.sends->take();
    if (op != nullptr) [[likely]] {
        op->context = post.context;
        op->flags = post.completion;
        op->counter = counter_for(ep, post.completion);
        op->wants_completion = (post.flags & FI_COMPLETION) != 0;
    }
    return op;
}

/// For buffers that came without descriptors: what is small goes inline, what is not is registered.
/// Returns: as lend(); the request is given back then.
template <class ElementList>
util::Status provide_keys(EpMsg& ep, MsgOp& op, WrOpcode opcode, ElementList& elements,
                          bool& is_inline) noexcept {
    is_inline = reads_its_buffers(opcode) && elements.bytes <= ep.inject_bytes;
    const util::Status lent = is_inline ? util::kOk : lend(ep, op, opcode, elements);
    if (!lent.is_ok()) [[unlikely]] {
        ep.sends->put(op);
    }
    return lent;
}

RVT_ALWAYS_INLINE ssize_t finish_post(EpMsg& ep, MsgOp& op, util::Status posted) noexcept {
    if (!posted.is_ok()) [[unlikely]] {
        ep.domain->msg->give_back(op);
        ep.sends->put(op);
    } else {
        ep.rc().expect_traffic();
    }
    return post_result(posted);
}

template <std::size_t kMost, bool kHolds>
ssize_t post_locked(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                    std::size_t count, const Held& held) noexcept {
    bool is_inline = (post.flags & FI_INJECT) != 0;
    if (!ep.is_connected()) [[unlikely]] {
        return -FI_ENOTCONN;
    }
    Elements<kMost> elements;
    const int unfit = elements.fill(iov, desc, count, naming_of(ep, is_inline));
    const std::uint64_t copied =
        post.opcode == WrOpcode::kExtendedAtomic ? post.operand_bytes : elements.bytes;
    if (unfit != 0 || (is_inline && copied > ep.inject_bytes)) [[unlikely]] {
        if constexpr (!kHolds) {
            return unfit != 0 ? post_held<kMost>(ep, post, iov, desc, count, unfit) : -FI_EMSGSIZE;
        }
        return unfit != 0 ? unfit : -FI_EMSGSIZE;
    }
    if (post.opcode == WrOpcode::kWriteImm && !ep.has_rx_cq_data) [[unlikely]] {
        return -FI_EOPNOTSUPP;
    }
    MsgOp* const op = take_send(ep, post);
    if (op == nullptr) [[unlikely]] {
        return -FI_EAGAIN;
    }
    if constexpr (kHolds) {
        op->use = held.use;
        op->filled_bytes = held.filled_bytes;
    }
    if (elements.lacks_key) {
        const util::Status provided = provide_keys(ep, *op, post.opcode, elements, is_inline);
        if (!provided.is_ok()) [[unlikely]] {
            return to_fi(provided);
        }
    }
    const util::Status posted =
        post_request(ep, *op, post, elements.elements(), is_inline, kHolds ? kMarkedNumber : 0);
    return finish_post(ep, *op, posted);
}

template <std::size_t kMost>
ssize_t post_list(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                  std::size_t count) noexcept {
    const util::Guard<DomainLock> guard(ep.domain->lock);
    return post_locked<kMost, false>(ep, post, iov, desc, count, {});
}

ssize_t post_any(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                 std::size_t count) noexcept {
    return count <= kMsgIov ? post_list<kMsgIov>(ep, post, iov, desc, count)
                            : post_list<kMsgAtomicIov>(ep, post, iov, desc, count);
}

/// What is injected is copied from where the CPU has it, before the call returns.
[[gnu::noinline]] ssize_t inject_from_device(EpMsg& ep, const MsgPost& post, const iovec* iov,
                                             void* const* desc, std::size_t count) noexcept {
    DeviceUses uses;
    DeviceBuffers device(uses);
    std::array<iovec, kMsgAtomicIov> own;
    std::copy_n(iov, count, own.begin());
    const int refused = device.take(own.data(), desc, count, core::CpuAccess::kRead);
    return refused == 0 ? post_any(ep, post, own.data(), nullptr, count) : refused;
}

/// Takes what has arrived to the devices, and lets go of them. Returns: the number without its
/// mark, and the outcome.
core::Wc end_use(const core::Wc& wc) noexcept {
    core::Wc ended = wc;
    ended.wr_id = wc.wr_id & ~kMarkedNumber;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the number that msg_post() gave it
    MsgOp& op = *reinterpret_cast<MsgOp*>(ended.wr_id);
    const bool is_message = (op.flags & FI_RECV) != 0 && wc.opcode != core::WcOpcode::kRecvWriteImm;
    const std::uint64_t filled = (op.flags & FI_RECV) == 0 ? op.filled_bytes
                                 : is_message              ? wc.byte_len
                                                           : 0;
    if (wc.status == core::WcStatus::kSuccess && !op.use->filled(0, filled).is_ok()) {
        ended.status = core::WcStatus::kGeneralErr;
    }
    op.use->release();
    return ended;
}

/// Tells the application. Returns: whether it is a receive.
RVT_ALWAYS_INLINE bool finish(EpMsg& ep, const core::Wc& wc) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the number that msg_post() gave it
    MsgOp& op = *reinterpret_cast<MsgOp*>(wc.wr_id);
    const bool is_receive = (op.flags & FI_RECV) != 0;
    ep.domain->msg->give_back(op);
    if (ep.is_closing && op.owner != ep.shared_receives()) {
        op.owner->put(op);
        return is_receive;
    }
    if (is_receive) {
        tell(op, outcome_of_receive(ep, op, wc));
    } else {
        tell(op, {.cq = ep.tx_cq,
                  .counter = op.counter,
                  .entry = {.op_context = op.context, .flags = op.flags, .status = wc.status}});
    }
    op.owner->put(op);
    return is_receive;
}

/// The same of one that holds memory of devices; of a probe there is nothing to tell.
[[gnu::noinline]] bool finish_marked(EpMsg& ep, const core::Wc& wc) noexcept {
    return wc.wr_id != core::kRcProbe && finish(ep, end_use(wc));
}

/// What completions say of the connection.
void note_drained(EpMsg& ep, bool has_failed, bool has_received) noexcept {
    if (has_failed) [[unlikely]] {
        ep.rc().note_failure(*ep.connection);
    } else if (has_received && ep.connection->state() == core::RcConnection::State::kAccepted)
        [[unlikely]] {
        ep.rc().note_traffic(*ep.connection);
    }
}

}  // namespace

ssize_t msg_post(EpMsg& ep, const MsgPost& post, const iovec* iov, std::size_t count) noexcept {
    void* const* const desc = desc_of(ep, post.desc);
    if (desc != nullptr && (post.flags & FI_INJECT) != 0 && ep.domain->nic == nullptr)
        [[unlikely]] {
        return inject_from_device(ep, post, iov, desc, count);
    }
    return post_any(ep, post, iov, desc, count);
}

unsigned EpMsg::drain_locked() noexcept {
    std::array<core::Wc, 16> completions;
    unsigned total = 0;
    bool has_failed = false;
    bool has_received = false;
    for (unsigned n = 1; n != 0; total += n) {
        n = queue->take(completions);
        for (const core::Wc& wc : std::span(completions).first(n)) {
            has_failed |= wc.status != core::WcStatus::kSuccess;
            has_received |=
                (wc.wr_id & kMarkedNumber) == 0 ? finish(*this, wc) : finish_marked(*this, wc);
        }
    }
    if (!is_closing) [[likely]] {
        note_drained(*this, has_failed, has_received);
    }
    return total;
}

const MsgOps* EpMsg::shared_receives() const noexcept {
    return srx != nullptr ? &srx->ops : nullptr;
}

void EpMsg::arm_queue_locked() noexcept {
    [[maybe_unused]] const util::Status armed = queue->req_notify(false);
}

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

constinit fi_ops_rma msg_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = msg_read,
    .readv = msg_readv,
    .readmsg = msg_readmsg,
    .write = msg_write,
    .writev = msg_writev,
    .writemsg = msg_writemsg,
    .inject = msg_inject_write,
    .writedata = msg_writedata,
    .injectdata = msg_inject_writedata,
};

}  // namespace rvt::ofi
