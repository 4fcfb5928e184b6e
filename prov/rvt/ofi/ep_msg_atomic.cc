// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_atomic(3) of connected endpoints. Every peer has what IBTA defines: a sum and a
// compare-and-swap of one aligned 64-bit integer; a read is a sum with nothing. A peer that is of
// rvt, which it has said when the connection was made, has all that RDM endpoints have, as many
// elements as fit in a packet, and asks of the region what it would there: FI_REMOTE_READ, too, of
// what brings something back, and of a read that alone. The processor of the peer's host carries
// them out.
#include <array>
#include <cstring>

#include "ofi/atomic_valid.h"
#include "ofi/device_use.h"
#include "ofi/ep_msg_post.h"
#include "ofi/ep_tables.h"

namespace rvt::ofi {
namespace {

using Kind = core::RdAtomic::Kind;

constexpr std::uint64_t kMsgAtomicFlags = FI_COMPLETION | FI_INJECT | FI_MORE | FI_FENCE |
                                          FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                          FI_DELIVERY_COMPLETE;

/// What the connection has; where there is none yet, what every peer has.
int valid(const EpMsg& ep, Kind kind, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    const std::size_t most = ep.most_atomic_bytes();
    const bool is_there =
        most != 0 ? is_valid_atomic(kind, datatype, op) : is_plain_atomic(kind, datatype, op);
    if (!is_there) {
        return -FI_EOPNOTSUPP;
    }
    if (count != nullptr) {
        *count = most != 0 ? msg_atomic_count(kind, datatype, most) : 1;
    }
    return 0;
}

/// One call, whatever its form.
struct Call {
    Kind kind;
    const fi_ioc* operand;
    std::size_t operand_count;
    const fi_ioc* compare;
    std::size_t compare_count;
    const fi_ioc* result;
    std::size_t result_count;
    const fi_rma_ioc* remote;
    std::size_t remote_count;
    fi_datatype datatype;
    fi_op op;
    void* context;
    std::uint64_t flags;
    // Of the lists above, where any of them is memory of a device.
    void* const* operand_desc = nullptr;
    void* const* compare_desc = nullptr;
    void* const* result_desc = nullptr;
};

bool is_one(const fi_ioc* list, std::size_t count) noexcept {
    return list != nullptr && count == 1 && list[0].count == 1;
}

/// The one element of a list; nullptr when it is not exactly one.
void* element(const fi_ioc* list, std::size_t count) noexcept {
    return is_one(list, count) ? list[0].addr : nullptr;
}

/// Reads a word that a call names.
int load(EpMsg& ep, void* from, void* const* desc, std::uint64_t& value) noexcept {
    DeviceUses uses;
    uses.set_may_copy(ep.device_uses.may_copy());
    DeviceBuffers device(uses, &ep.domain->lock);
    iovec word{from, sizeof value};
    const bool may_be_device = (ep.domain->caps & FI_HMEM) != 0;
    int refused = may_be_device ? device.take(&word, desc, 1, core::CpuAccess::kRead) : 0;
    refused = refused == 0 ? device.refresh() : refused;
    if (refused == 0) {
        std::memcpy(&value, word.iov_base, sizeof value);
    }
    return refused;
}

/// The operands, the compared values and the results of a call, one list behind the other.
class Lists {
  public:
    explicit Lists(std::size_t element_bytes) noexcept : element_bytes_(element_bytes) {}

    /// Returns: false unless the list has `elements`. What is empty is left out: lists without it
    /// end where their elements do.
    bool add(const fi_ioc* list, void* const* desc, std::size_t count,
             std::size_t elements) noexcept {
        if (list == nullptr || count > kMsgIov) {
            return false;
        }
        for (std::size_t i = 0; i < count; ++i) {
            if (list[i].count > elements) {
                return false;
            }
            if (list[i].count == 0) {
                continue;
            }
            elements -= list[i].count;
            desc_[count_] = desc != nullptr ? desc[i] : nullptr;
            iov_[count_++] = {list[i].addr, list[i].count * element_bytes_};
        }
        return elements == 0;
    }
    [[nodiscard]] const iovec* data() const noexcept { return iov_.data(); }
    [[nodiscard]] void* const* desc() const noexcept { return desc_.data(); }
    [[nodiscard]] std::size_t count() const noexcept { return count_; }

  private:
    const std::size_t element_bytes_;
    std::array<iovec, kMsgAtomicIov> iov_;
    std::array<void*, kMsgAtomicIov> desc_;
    std::size_t count_ = 0;
};

AtomicForm form_of(Kind kind) noexcept {
    switch (kind) {
        case Kind::kBase: return AtomicForm::kWrite;
        case Kind::kFetch: return AtomicForm::kFetch;
        case Kind::kCompare: return AtomicForm::kCompare;
    }
    return AtomicForm::kWrite;
}

MsgPost post_of(const Call& call, WrOpcode opcode) noexcept {
    return {.opcode = opcode,
            .completion = FI_ATOMIC | (call.kind == Kind::kBase ? FI_WRITE : FI_READ),
            .flags = call.flags,
            .remote_addr = call.remote[0].addr,
            .rkey = call.remote[0].key,
            .context = call.context};
}

/// As a request that only rvt has.
ssize_t run_extended(EpMsg& ep, const Call& call) noexcept {
    const std::size_t most = ep.most_atomic_bytes();
    if (most == 0) {
        return ep.is_connected() ? -FI_EOPNOTSUPP : -FI_ENOTCONN;
    }
    if (call.remote == nullptr || call.remote_count != 1 || call.remote[0].count == 0) {
        return -FI_EINVAL;
    }
    const std::size_t elements = call.remote[0].count;
    if (elements > msg_atomic_count(call.kind, call.datatype, most)) {
        return -FI_EMSGSIZE;
    }
    Lists lists(kDatatypeBytes[call.datatype]);
    const bool has_operand = call.op != FI_ATOMIC_READ;
    const bool is_sound =
        (!has_operand ||
         lists.add(call.operand, call.operand_desc, call.operand_count, elements)) &&
        (call.kind != Kind::kCompare ||
         lists.add(call.compare, call.compare_desc, call.compare_count, elements)) &&
        (call.kind == Kind::kBase ||
         lists.add(call.result, call.result_desc, call.result_count, elements));
    if (!is_sound) {
        return -FI_EINVAL;
    }
    MsgPost post = post_of(call, WrOpcode::kExtendedAtomic);
    post.atomic = {.form = form_of(call.kind),
                   .datatype = static_cast<std::uint8_t>(call.datatype),
                   .op = static_cast<std::uint8_t>(call.op)};
    const std::size_t operands = (has_operand ? 1 : 0) + (call.kind == Kind::kCompare ? 1 : 0);
    post.operand_bytes = operands * elements * kDatatypeBytes[call.datatype];
    post.desc = lists.desc();
    return msg_post(ep, post, lists.data(), lists.count());
}

/// Whether it goes as one of IBTA's two, of which a peer does not see whether anybody wants to know
/// what was there. One of rvt gets those for which nobody does: a sum to one aligned word.
bool goes_plain(const EpMsg& ep, const Call& call) noexcept {
    if (!is_plain_atomic(call.kind, call.datatype, call.op)) {
        return false;
    }
    return ep.most_atomic_bytes() == 0 ||
           (call.kind == Kind::kBase && is_one(call.operand, call.operand_count) &&
            call.remote != nullptr && call.remote_count == 1 && call.remote[0].count == 1 &&
            call.remote[0].addr % sizeof(std::uint64_t) == 0);
}

/// A NIC writes only where it has been told of.
std::uint64_t* scratch_of(EpMsg& ep) noexcept {
    return ep.domain->nic != nullptr ? ep.domain->msg->scratch() : &ep.scratch;
}

ssize_t run(EpMsg& ep, const Call& call) noexcept {
    if (!is_valid_atomic(call.kind, call.datatype, call.op)) {
        return -FI_EOPNOTSUPP;
    }
    if (!goes_plain(ep, call)) {
        return run_extended(ep, call);
    }
    void* const operand = element(call.operand, call.operand_count);
    void* const compare = element(call.compare, call.compare_count);
    void* const result =
        call.kind == Kind::kBase ? scratch_of(ep) : element(call.result, call.result_count);
    if ((operand == nullptr && call.op != FI_ATOMIC_READ) || result == nullptr ||
        (compare == nullptr && call.kind == Kind::kCompare) || call.remote == nullptr ||
        call.remote_count != 1 || call.remote[0].count != 1) {
        return -FI_EINVAL;
    }
    MsgPost post =
        post_of(call, call.kind == Kind::kCompare ? WrOpcode::kCas : WrOpcode::kFetchAdd);
    // The operand travels in the request's header, there is nothing else to copy.
    post.flags &= ~std::uint64_t{FI_INJECT};
    int refused = 0;
    if (call.kind == Kind::kCompare) {
        refused = load(ep, compare, call.compare_desc, post.compare_add);
        refused = refused == 0 ? load(ep, operand, call.operand_desc, post.swap) : refused;
    } else if (call.op == FI_SUM) {
        refused = load(ep, operand, call.operand_desc, post.compare_add);
    }
    if (refused != 0) {
        return refused;
    }
    post.desc = call.kind == Kind::kBase ? nullptr : call.result_desc;
    const iovec to{result, sizeof(std::uint64_t)};
    return msg_post(ep, post, &to, 1);
}

std::size_t total(const fi_ioc* list, std::size_t count) noexcept {
    std::size_t elements = 0;
    for (std::size_t i = 0; i < count && list != nullptr; ++i) {
        elements += list[i].count;
    }
    return elements;
}

/// A call of the form that takes a structure.
/// @param call  What the structure does not say.
ssize_t run_msg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags, Call call) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if ((flags & ~kMsgAtomicFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr) {
        return -FI_EINVAL;
    }
    call.operand = msg->msg_iov;
    call.operand_desc = msg->desc;
    call.operand_count = msg->iov_count;
    call.remote = msg->rma_iov;
    call.remote_count = msg->rma_iov_count;
    call.datatype = msg->datatype;
    call.op = msg->op;
    call.context = msg->context;
    call.flags = flags_of_call(ep, flags);
    return run(ep, call);
}

ssize_t atomic_writev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                      fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                      fi_datatype datatype, fi_op op, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, total(iov, count), key};
    return run(ep, {.kind = Kind::kBase,
                    .operand = iov,
                    .operand_count = count,
                    .remote = &remote,
                    .remote_count = 1,
                    .datatype = datatype,
                    .op = op,
                    .context = context,
                    .flags = default_flags(ep),
                    .operand_desc = desc});
}

ssize_t atomic_write(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                     fi_addr_t dest, std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                     fi_op op, void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    return atomic_writev(self, &iov, &desc, 1, dest, addr, key, datatype, op, context);
}

ssize_t atomic_writemsg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags, {.kind = Kind::kBase});
}

ssize_t atomic_inject(fid_ep* self, const void* buffer, std::size_t count, fi_addr_t /*dest*/,
                      std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                      fi_op op) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    const fi_rma_ioc remote{addr, count, key};
    return run(EpMsg::from(self), {.kind = Kind::kBase,
                                   .operand = &iov,
                                   .operand_count = 1,
                                   .remote = &remote,
                                   .remote_count = 1,
                                   .datatype = datatype,
                                   .op = op,
                                   .flags = FI_INJECT});
}

ssize_t atomic_readwritev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                          fi_ioc* results, void** result_desc, std::size_t result_count,
                          fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                          fi_datatype datatype, fi_op op, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, total(results, result_count), key};
    return run(ep, {.kind = Kind::kFetch,
                    .operand = iov,
                    .operand_count = count,
                    .result = results,
                    .result_count = result_count,
                    .remote = &remote,
                    .remote_count = 1,
                    .datatype = datatype,
                    .op = op,
                    .context = context,
                    .flags = default_flags(ep),
                    .operand_desc = desc,
                    .result_desc = result_desc});
}

ssize_t atomic_readwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                         void* result, void* result_desc, fi_addr_t dest, std::uint64_t addr,
                         std::uint64_t key, fi_datatype datatype, fi_op op,
                         void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    fi_ioc to{result, count};
    return atomic_readwritev(self, &iov, &desc, 1, &to, &result_desc, 1, dest, addr, key, datatype,
                             op, context);
}

ssize_t atomic_readwritemsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* results,
                            void** result_desc, std::size_t result_count,
                            std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags,
                   {.kind = Kind::kFetch,
                    .result = results,
                    .result_count = result_count,
                    .result_desc = result_desc});
}

ssize_t atomic_compwritev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                          const fi_ioc* compares, void** compare_desc, std::size_t compare_count,
                          fi_ioc* results, void** result_desc, std::size_t result_count,
                          fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                          fi_datatype datatype, fi_op op, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, total(results, result_count), key};
    return run(ep, {.kind = Kind::kCompare,
                    .operand = iov,
                    .operand_count = count,
                    .compare = compares,
                    .compare_count = compare_count,
                    .result = results,
                    .result_count = result_count,
                    .remote = &remote,
                    .remote_count = 1,
                    .datatype = datatype,
                    .op = op,
                    .context = context,
                    .flags = default_flags(ep),
                    .operand_desc = desc,
                    .compare_desc = compare_desc,
                    .result_desc = result_desc});
}

ssize_t atomic_compwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                         const void* compare, void* compare_desc, void* result, void* result_desc,
                         fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         fi_datatype datatype, fi_op op, void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    const fi_ioc expected{const_cast<void*>(compare), count};
    fi_ioc to{result, count};
    return atomic_compwritev(self, &iov, &desc, 1, &expected, &compare_desc, 1, &to, &result_desc,
                             1, dest, addr, key, datatype, op, context);
}

ssize_t atomic_compwritemsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compares,
                            void** compare_desc, std::size_t compare_count, fi_ioc* results,
                            void** result_desc, std::size_t result_count,
                            std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags,
                   {.kind = Kind::kCompare,
                    .compare = compares,
                    .compare_count = compare_count,
                    .result = results,
                    .result_count = result_count,
                    .compare_desc = compare_desc,
                    .result_desc = result_desc});
}

int msg_writevalid(fid_ep* self, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    return valid(EpMsg::from(self), Kind::kBase, datatype, op, count);
}
int msg_readwritevalid(fid_ep* self, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    return valid(EpMsg::from(self), Kind::kFetch, datatype, op, count);
}
int msg_compwritevalid(fid_ep* self, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    return valid(EpMsg::from(self), Kind::kCompare, datatype, op, count);
}

}  // namespace

constinit fi_ops_atomic msg_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = atomic_write,
    .writev = atomic_writev,
    .writemsg = atomic_writemsg,
    .inject = atomic_inject,
    .readwrite = atomic_readwrite,
    .readwritev = atomic_readwritev,
    .readwritemsg = atomic_readwritemsg,
    .compwrite = atomic_compwrite,
    .compwritev = atomic_compwritev,
    .compwritemsg = atomic_compwritemsg,
    .writevalid = msg_writevalid,
    .readwritevalid = msg_readwritevalid,
    .compwritevalid = msg_compwritevalid,
};

fi_ops_atomic msg_not_enabled_atomic_ops = [] {
    fi_ops_atomic ops = not_enabled_tables.atomic;
    ops.writevalid = msg_writevalid;
    ops.readwritevalid = msg_readwritevalid;
    ops.compwritevalid = msg_compwritevalid;
    return ops;
}();

}  // namespace rvt::ofi
