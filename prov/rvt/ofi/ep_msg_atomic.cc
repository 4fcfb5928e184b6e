// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_atomic(3) of connected endpoints: what a reliable connection has on the wire, which is a sum
// and a compare-and-swap of one aligned 64-bit integer. A read is a sum with nothing. The processor
// of the peer's host carries them out.
#include <cstring>

#include "ofi/atomic_valid.h"
#include "ofi/ep_msg.h"

namespace rvt::ofi {
namespace {

enum class Kind : std::uint8_t { kWrite, kFetch, kCompare };

constexpr std::uint64_t kAtomicFlags = FI_COMPLETION | FI_INJECT | FI_MORE | FI_FENCE |
                                       FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                       FI_DELIVERY_COMPLETE;

bool is_valid(Kind kind, fi_datatype datatype, fi_op op) noexcept {
    if (datatype != FI_INT64 && datatype != FI_UINT64) {
        return false;
    }
    switch (kind) {
        case Kind::kWrite: return op == FI_SUM;
        case Kind::kFetch: return op == FI_SUM || op == FI_ATOMIC_READ;
        case Kind::kCompare: return op == FI_CSWAP;
    }
    return false;
}

int valid(Kind kind, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    if (!is_valid(kind, datatype, op)) {
        return -FI_EOPNOTSUPP;
    }
    if (count != nullptr) {
        *count = 1;
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
};

/// The one element of a list; nullptr when it is not exactly one.
void* element(const fi_ioc* list, std::size_t count) noexcept {
    return list != nullptr && count == 1 && list[0].count == 1 ? list[0].addr : nullptr;
}

std::uint64_t load(const void* from) noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
}

ssize_t run(EpMsg& ep, const Call& call) noexcept {
    if (!is_valid(call.kind, call.datatype, call.op)) {
        return -FI_EOPNOTSUPP;
    }
    const void* const operand = element(call.operand, call.operand_count);
    const void* const compare = element(call.compare, call.compare_count);
    void* const result =
        call.kind == Kind::kWrite ? &ep.scratch : element(call.result, call.result_count);
    if ((operand == nullptr && call.op != FI_ATOMIC_READ) || result == nullptr ||
        (compare == nullptr && call.kind == Kind::kCompare) || call.remote == nullptr ||
        call.remote_count != 1 || call.remote[0].count != 1) {
        return -FI_EINVAL;
    }
    MsgPost post{.opcode = call.kind == Kind::kCompare ? WrOpcode::kCas : WrOpcode::kFetchAdd,
                 .completion = FI_ATOMIC | (call.kind == Kind::kWrite ? FI_WRITE : FI_READ),
                 // The operand travels in the request's header, there is nothing else to copy.
                 .flags = call.flags & ~std::uint64_t{FI_INJECT},
                 .remote_addr = call.remote[0].addr,
                 .rkey = call.remote[0].key,
                 .context = call.context};
    if (call.kind == Kind::kCompare) {
        post.compare_add = load(compare);
        post.swap = load(operand);
    } else {
        post.compare_add = call.op == FI_SUM ? load(operand) : 0;
    }
    const iovec to{result, sizeof(std::uint64_t)};
    return msg_post(ep, post, &to, 1);
}

std::uint64_t flags_of_call(const EpMsg& ep, std::uint64_t flags) noexcept {
    return flags | (ep.is_tx_selective ? std::uint64_t{0} : FI_COMPLETION);
}
std::uint64_t default_flags(const EpMsg& ep) noexcept {
    return flags_of_call(ep, ep.tx_op_flags);
}

/// A call of the form that takes a structure.
/// @param call  What the structure does not say.
ssize_t run_msg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags, Call call) noexcept {
    EpMsg& ep = EpMsg::from(self);
    if ((flags & ~kAtomicFlags) != 0) {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr) {
        return -FI_EINVAL;
    }
    call.operand = msg->msg_iov;
    call.operand_count = msg->iov_count;
    call.remote = msg->rma_iov;
    call.remote_count = msg->rma_iov_count;
    call.datatype = msg->datatype;
    call.op = msg->op;
    call.context = msg->context;
    call.flags = flags_of_call(ep, flags);
    return run(ep, call);
}

ssize_t atomic_writev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                      fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                      fi_datatype datatype, fi_op op, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, 1, key};
    return run(ep, {.kind = Kind::kWrite,
                    .operand = iov,
                    .operand_count = count,
                    .remote = &remote,
                    .remote_count = 1,
                    .datatype = datatype,
                    .op = op,
                    .context = context,
                    .flags = default_flags(ep)});
}

ssize_t atomic_write(fid_ep* self, const void* buffer, std::size_t count, void* /*desc*/,
                     fi_addr_t dest, std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                     fi_op op, void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    return atomic_writev(self, &iov, nullptr, 1, dest, addr, key, datatype, op, context);
}

ssize_t atomic_writemsg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags, {.kind = Kind::kWrite});
}

ssize_t atomic_inject(fid_ep* self, const void* buffer, std::size_t count, fi_addr_t /*dest*/,
                      std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                      fi_op op) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    const fi_rma_ioc remote{addr, 1, key};
    return run(EpMsg::from(self), {.kind = Kind::kWrite,
                                   .operand = &iov,
                                   .operand_count = 1,
                                   .remote = &remote,
                                   .remote_count = 1,
                                   .datatype = datatype,
                                   .op = op});
}

ssize_t atomic_readwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                          fi_ioc* results, void** /*result_desc*/, std::size_t result_count,
                          fi_addr_t /*dest*/, std::uint64_t addr, std::uint64_t key,
                          fi_datatype datatype, fi_op op, void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, 1, key};
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
                    .flags = default_flags(ep)});
}

ssize_t atomic_readwrite(fid_ep* self, const void* buffer, std::size_t count, void* /*desc*/,
                         void* result, void* /*result_desc*/, fi_addr_t dest, std::uint64_t addr,
                         std::uint64_t key, fi_datatype datatype, fi_op op,
                         void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    fi_ioc to{result, count};
    return atomic_readwritev(self, &iov, nullptr, 1, &to, nullptr, 1, dest, addr, key, datatype, op,
                             context);
}

ssize_t atomic_readwritemsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* results,
                            void** /*result_desc*/, std::size_t result_count,
                            std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags,
                   {.kind = Kind::kFetch, .result = results, .result_count = result_count});
}

ssize_t atomic_compwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                          const fi_ioc* compares, void** /*compare_desc*/,
                          std::size_t compare_count, fi_ioc* results, void** /*result_desc*/,
                          std::size_t result_count, fi_addr_t /*dest*/, std::uint64_t addr,
                          std::uint64_t key, fi_datatype datatype, fi_op op,
                          void* context) noexcept {
    EpMsg& ep = EpMsg::from(self);
    const fi_rma_ioc remote{addr, 1, key};
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
                    .flags = default_flags(ep)});
}

ssize_t atomic_compwrite(fid_ep* self, const void* buffer, std::size_t count, void* /*desc*/,
                         const void* compare, void* /*compare_desc*/, void* result,
                         void* /*result_desc*/, fi_addr_t dest, std::uint64_t addr,
                         std::uint64_t key, fi_datatype datatype, fi_op op,
                         void* context) noexcept {
    const fi_ioc iov{const_cast<void*>(buffer), count};
    const fi_ioc expected{const_cast<void*>(compare), count};
    fi_ioc to{result, count};
    return atomic_compwritev(self, &iov, nullptr, 1, &expected, nullptr, 1, &to, nullptr, 1, dest,
                             addr, key, datatype, op, context);
}

ssize_t atomic_compwritemsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compares,
                            void** /*compare_desc*/, std::size_t compare_count, fi_ioc* results,
                            void** /*result_desc*/, std::size_t result_count,
                            std::uint64_t flags) noexcept {
    return run_msg(self, msg, flags,
                   {.kind = Kind::kCompare,
                    .compare = compares,
                    .compare_count = compare_count,
                    .result = results,
                    .result_count = result_count});
}

int msg_writevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op, std::size_t* count) noexcept {
    return valid(Kind::kWrite, datatype, op, count);
}
int msg_readwritevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op,
                       std::size_t* count) noexcept {
    return valid(Kind::kFetch, datatype, op, count);
}
int msg_compwritevalid(fid_ep* /*ep*/, fi_datatype datatype, fi_op op,
                       std::size_t* count) noexcept {
    return valid(Kind::kCompare, datatype, op, count);
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

}  // namespace rvt::ofi
