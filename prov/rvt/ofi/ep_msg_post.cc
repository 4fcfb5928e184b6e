// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Each call becomes a work request. Each request completes towards this layer, which counts it and
// tells the application if that is wanted: ep_msg_completions.cc.
#include "ofi/ep_msg_post.h"

#include "util/iov_cursor.h"

namespace rvt::ofi {
namespace {

core::Counter* counter_for(const EpMsg& ep, std::uint64_t completion) noexcept {
    return counter_of((completion & FI_SEND) != 0   ? ep.counters.send
                      : (completion & FI_READ) != 0 ? ep.counters.read
                                                    : ep.counters.write);
}

bool reads_its_buffers(WrOpcode opcode) noexcept {
    return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm ||
           opcode == WrOpcode::kWrite || opcode == WrOpcode::kWriteImm;
}

/// Whether it is for data beside the request that cannot be had.
bool lacks_data(const EpMsg& ep, WrOpcode opcode) noexcept {
    return (opcode == WrOpcode::kWriteImm && !ep.has_rx_cq_data) ||
           (opcode == WrOpcode::kSendImm && !ep.has_cq_data);
}

/// Keys for elements that came without. Returns: as NicMemory::lend_to_send().
template <std::size_t kMost>
[[gnu::noinline]] util::Status lend(EpMsg& ep, MsgOp& op, WrOpcode opcode,
                                    Elements<kMost>& elements) noexcept {
    NicMemory& memory = *ep.domain->msg->nic_memory();
    if (!reads_its_buffers(opcode)) {
        return memory.lend_to_receive(op, elements.elements());
    }
    return elements.is_beyond_cpu ? memory.lend_in_place(op, elements.elements())
                                  : memory.lend_to_send(op, elements.elements(), elements.count);
}

/// Whether nobody asks how the request ends, unless it fails: neither the application nor memory
/// that is lent for it. One that takes the last place is signaled all the same, for only what
/// completes makes room. A NIC of iWARP completes a READ after what was posted behind it, so no
/// READ is among those of which others tell.
RVT_ALWAYS_INLINE bool is_unsignaled(const EpMsg& ep, const MsgOp& op, WrOpcode opcode) noexcept {
    return ep.domain->nic != nullptr && reads_its_buffers(opcode) && !op.wants_completion &&
           op.counter == nullptr && !op.lent.is_any() && ep.unsignaled.has_room() &&
           ep.sends->is_any_free();
}

RVT_ALWAYS_INLINE SendFlags own_flags(bool is_signaled, bool is_inline) noexcept {
    return (is_signaled ? SendFlags::kSignaled : SendFlags::kNone) |
           (is_inline ? SendFlags::kInline : SendFlags::kNone);
}

/// @param flags  Beside those that the call gives.
util::Status post_request(EpMsg& ep, const MsgOp& op, const MsgPost& post,
                          std::span<const Sge> elements, SendFlags flags, std::uint64_t mark,
                          core::BufferUse* use) noexcept {
    return ep.connection->qp().post_send(
        {.wr_id = number_of(&op) | mark,
         .opcode = post.opcode,
         .flags = flags | ((post.flags & FI_FENCE) != 0 ? SendFlags::kFence : SendFlags::kNone),
         .imm = static_cast<std::uint32_t>(post.data),
         .sg_list = elements,
         .remote_addr = post.remote_addr,
         .rkey = static_cast<std::uint32_t>(post.rkey),
         .compare_add = post.compare_add,
         .swap = post.swap,
         .atomic = post.atomic,
         .use = use});
}

/// What a request holds of devices.
struct Held {
    DeviceBuffers* buffers = nullptr;
    std::uint64_t filled_bytes = 0;
    DeviceUse* staged = nullptr;  // is told of each part
};

template <std::size_t kMost, bool kHolds>
ssize_t post_locked(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                    std::size_t count, const Held& held) noexcept;

/// Bytes that a request leaves in its buffers, which are those behind the operands.
bool is_filling(const MsgPost& post) noexcept {
    return (post.completion & FI_READ) != 0;
}

/// Buffers that it reads, which come first.
std::size_t operand_count(const MsgPost& post, const iovec* iov, std::size_t count) noexcept {
    if (post.opcode != WrOpcode::kExtendedAtomic) {
        return is_filling(post) ? 0 : count;
    }
    std::size_t operands = 0;
    for (std::uint64_t bytes = 0; operands < count && bytes < post.operand_bytes; ++operands) {
        bytes += iov[operands].iov_len;
    }
    return operands;
}

/// With buffers in memory of devices that the CPU has a copy of: with that.
template <std::size_t kMost>
[[gnu::noinline]] ssize_t post_held(EpMsg& ep, const MsgPost& post, const iovec* iov,
                                    void* const* desc, std::size_t count, int unfit) noexcept {
    if (unfit != -FI_EINVAL || desc == nullptr || !copy_is_needed(desc, count)) {
        return unfit;
    }
    std::array<iovec, kMost> own;
    std::copy_n(iov, count, own.begin());
    const std::uint64_t bytes = util::iov_length(iov, count);
    const std::size_t operands = operand_count(post, iov, count);
    const bool is_extended = post.opcode == WrOpcode::kExtendedAtomic;
    DeviceBuffers device(ep.device_uses, nullptr, DeviceBuffers::Imported::kStays);
    const bool is_staged = (post.opcode == WrOpcode::kRead || reads_its_buffers(post.opcode)) &&
                           (post.flags & FI_INJECT) == 0 && is_in_stages(ep, bytes);
    int refused =
        device.take(own.data(), desc, operands, core::CpuAccess::kRead,
                    is_staged ? DeviceBuffers::Refresh::kLater : DeviceBuffers::Refresh::kNow);
    refused = refused == 0 ? device.take(own.data() + operands, desc + operands, count - operands,
                                         core::CpuAccess::kWrite)
                           : refused;
    if (refused != 0) {
        return refused;
    }
    if (is_staged) {
        device.use()->work_in_stages();
    }
    return post_locked<kMost, true>(
        ep, post, own.data(), ep.domain->nic != nullptr ? desc : nullptr, count,
        {.buffers = &device,
         .filled_bytes = is_filling(post) ? bytes - (is_extended ? post.operand_bytes : 0) : 0,
         .staged = is_staged ? device.use() : nullptr});
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

/// Where nobody reads completions, since none are asked for, who posts makes room himself.
[[gnu::cold, gnu::noinline]] MsgOp* take_send_behind_others(EpMsg& ep,
                                                            const MsgPost& post) noexcept {
    const bool has_moved = !must_wait(ep.tx_cq) && ep.domain->msg->make_room_locked() != 0;
    return has_moved && ep.is_connected() ? take_send(ep, post) : nullptr;
}

/// Returns: 0 with `op`; -FI_EAGAIN; -FI_ENOTCONN, where the connection has ended meanwhile.
RVT_ALWAYS_INLINE ssize_t take_op(EpMsg& ep, const MsgPost& post, MsgOp*& op) noexcept {
    op = take_send(ep, post);
    if (op == nullptr) [[unlikely]] {
        op = take_send_behind_others(ep, post);
    }
    if (op == nullptr) [[unlikely]] {
        return ep.is_connected() ? -FI_EAGAIN : -FI_ENOTCONN;
    }
    return 0;
}

/// For buffers that came without descriptors: what is small goes inline, what is not is registered.
/// Returns: as lend(); the request is given back then.
template <class ElementList>
util::Status provide_keys(EpMsg& ep, MsgOp& op, WrOpcode opcode, ElementList& elements,
                          bool& is_inline) noexcept {
    is_inline =
        reads_its_buffers(opcode) && elements.bytes <= ep.inject_bytes && !elements.is_beyond_cpu;
    const util::Status lent = is_inline ? util::kOk : lend(ep, op, opcode, elements);
    if (!lent.is_ok()) [[unlikely]] {
        ep.sends->put(op);
    }
    return lent;
}

/// What devices have, and keys, behind the other checks: it takes as long as the message is.
/// Returns: an error, with which the request is given back.
template <bool kHolds, class ElementList>
RVT_ALWAYS_INLINE ssize_t provide(EpMsg& ep, MsgOp& op, WrOpcode opcode, ElementList& elements,
                                  const Held& held, bool& is_inline) noexcept {
    if constexpr (kHolds) {
        if (const int unread = held.buffers->refresh(); unread != 0) {
            ep.sends->put(op);
            return unread;
        }
    }
    return elements.lacks_key ? to_fi(provide_keys(ep, op, opcode, elements, is_inline)) : 0;
}

template <bool kHolds>
RVT_ALWAYS_INLINE ssize_t finish_post(EpMsg& ep, MsgOp& op, util::Status posted, bool is_signaled,
                                      const Held& held) noexcept {
    if (!posted.is_ok()) [[unlikely]] {
        ep.domain->msg->give_back(op);
        ep.sends->put(op);
        return post_result(posted);
    }
    if constexpr (kHolds) {
        op.use = held.buffers->release();
        op.filled_bytes = held.filled_bytes;
    }
    if (ep.domain->nic != nullptr) {
        ep.unsignaled.note_posted(op, is_signaled);
    }
    ep.rc().expect_traffic();
    ep.domain->msg->note_posted_locked();
    return 0;
}

template <std::size_t kMost, bool kHolds>
ssize_t post_locked(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                    std::size_t count, const Held& held) noexcept {
    bool is_inline = (post.flags & FI_INJECT) != 0;
    if (!ep.is_connected()) [[unlikely]] {
        return -FI_ENOTCONN;
    }
    Elements<kMost> elements;
    const int unfit =
        elements.fill(iov, desc, count, naming_of(ep, is_inline, kHolds), ep.max_bytes);
    const std::uint64_t copied =
        post.opcode == WrOpcode::kExtendedAtomic ? post.operand_bytes : elements.bytes;
    if (unfit != 0 || (is_inline && copied > ep.inject_bytes)) [[unlikely]] {
        if constexpr (!kHolds) {
            return unfit != 0 ? post_held<kMost>(ep, post, iov, desc, count, unfit) : -FI_EMSGSIZE;
        }
        return unfit != 0 ? unfit : -FI_EMSGSIZE;
    }
    if (post.rkey >> 32 != 0) [[unlikely]] {
        return -FI_EINVAL;  // mr_key_size is 4
    }
    if (lacks_data(ep, post.opcode)) [[unlikely]] {
        return -FI_EOPNOTSUPP;
    }
    MsgOp* op = nullptr;
    if (const ssize_t taken = take_op(ep, post, op); taken != 0) [[unlikely]] {
        return taken;
    }
    if (const ssize_t lacking = provide<kHolds>(ep, *op, post.opcode, elements, held, is_inline);
        lacking != 0) [[unlikely]] {
        return lacking;
    }
    const bool is_signaled = kHolds || !is_unsignaled(ep, *op, post.opcode);
    const util::Status posted =
        post_request(ep, *op, post, elements.elements(), own_flags(is_signaled, is_inline),
                     kHolds ? kMarkedNumber : 0, kHolds ? held.staged : nullptr);
    return finish_post<kHolds>(ep, *op, posted, is_signaled, held);
}

template <std::size_t kMost>
ssize_t post_list(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                  std::size_t count) noexcept {
    const util::Guard<DomainLock> guard(ep.domain->lock);
    return post_locked<kMost, false>(ep, post, iov, desc, count, {});
}

}  // namespace

ssize_t msg_post_any(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                     std::size_t count) noexcept {
    return count <= kMsgIov ? post_list<kMsgIov>(ep, post, iov, desc, count)
                            : post_list<kMsgAtomicIov>(ep, post, iov, desc, count);
}

ssize_t msg_inject_from_device(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                               std::size_t count) noexcept {
    DeviceUses uses;
    uses.set_may_copy(ep.device_uses.may_copy());
    DeviceBuffers device(uses, &ep.domain->lock);
    std::array<iovec, kMsgAtomicIov> own;
    std::copy_n(iov, count, own.begin());
    const std::size_t operands = operand_count(post, iov, count);
    int refused = device.take(own.data(), desc, operands, core::CpuAccess::kRead);
    if (refused == 0 && util::iov_length(iov, operands) > ep.inject_bytes) {
        return -FI_EMSGSIZE;
    }
    refused = refused == 0 ? device.refresh() : refused;
    // Operands need no descriptors: they are named where the CPU has them.
    std::array<void*, kMsgAtomicIov> results{};
    std::copy(desc + operands, desc + count, results.data() + operands);
    return refused == 0 ? msg_post_any(ep, post, own.data(), results.data(), count) : refused;
}

}  // namespace rvt::ofi
