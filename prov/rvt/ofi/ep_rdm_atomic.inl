// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_atomic(3) over an engine. Counts of elements become lengths in bytes here; which operation a
// call may carry is looked up in the matrix of atomic_valid.cc.
#pragma once

#include <array>

#include "ofi/atomic_valid.h"
#include "ofi/ep_rdm_engine.h"
#include "util/saturate.h"

namespace rvt::ofi {

/// A list of elements as a list of bytes.
struct AtomicIov {
    std::array<iovec, core::kMaxIov> iov;
    std::size_t count = 0;

    RVT_ALWAYS_INLINE bool fill(const fi_ioc* from, std::size_t n, std::size_t element) noexcept {
        if (is_bad_list(from, n)) [[unlikely]] {
            return false;
        }
        for (std::size_t i = 0; i < n; ++i) {
            iov[i] = {from[i].addr, util::saturating_mul(from[i].count, element)};
        }
        count = n;
        return true;
    }
};

/// One atomic call as libfabric describes it: lists of elements, then what all kinds share.
struct AtomicCall {
    core::RdAtomic::Kind kind;
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
    fi_addr_t dest;
    void* context;
    std::uint64_t data;
};

/// A call as the engine takes it, with the lists that the request points to.
struct AtomicRequest {
    AtomicIov operand;
    AtomicIov compare;
    AtomicIov result;
    std::array<core::RdRemote, core::kMaxIov> remote;

    /// Returns: 0, or the error of the call.
    RVT_ALWAYS_INLINE int fill(const AtomicCall& call) noexcept {
        if (!is_valid_atomic(call.kind, call.datatype, call.op)) [[unlikely]] {
            return -FI_EOPNOTSUPP;
        }
        const std::size_t element = kDatatypeBytes[call.datatype];
        // FI_ATOMIC_READ has no operand; what is named for it is not looked at.
        const std::size_t operands = call.op == FI_ATOMIC_READ ? 0 : call.operand_count;
        if (!operand.fill(call.operand, operands, element) ||
            !compare.fill(call.compare, call.compare_count, element) ||
            !result.fill(call.result, call.result_count, element) ||
            is_bad_list(call.remote, call.remote_count)) [[unlikely]] {
            return -FI_EINVAL;
        }
        for (std::size_t i = 0; i < call.remote_count; ++i) {
            remote[i] = {call.remote[i].addr, util::saturating_mul(call.remote[i].count, element),
                         call.remote[i].key};
        }
        return 0;
    }

    RVT_ALWAYS_INLINE core::RdAtomic request(const AtomicCall& call, RdFlags flags) const noexcept {
        return {.kind = call.kind,
                .datatype = static_cast<std::uint8_t>(call.datatype),
                .op = static_cast<std::uint8_t>(call.op),
                .operand = operand.iov.data(),
                .operand_count = operand.count,
                .compare = compare.iov.data(),
                .compare_count = compare.count,
                .result = result.iov.data(),
                .result_count = result.count,
                .remote = remote.data(),
                .remote_count = call.remote_count,
                .dest = call.dest,
                .data = call.data,
                .context = call.context,
                .flags = flags};
    }
};

template <class Engine>
ssize_t ep_rdm_atomic(EpRdmOver<Engine>& ep, const AtomicCall& call, RdFlags flags) noexcept {
    AtomicRequest lists;
    const int refused = lists.fill(call);
    return refused == 0 ? to_fi(ep.over.atomic(lists.request(call, flags))) : refused;
}

RVT_ALWAYS_INLINE std::size_t total_elements(const fi_ioc* list, std::size_t count) noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < count && list != nullptr; ++i) {
        total = util::saturating_add(total, list[i].count);
    }
    return total;
}

// ---- base: remote = remote op operand ----

template <class Engine>
ssize_t ep_rdm_atomic_writev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                             fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                             fi_datatype datatype, fi_op op, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    const fi_rma_ioc remote{addr, total_elements(iov, count), key};
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kBase, iov, count, nullptr, 0, nullptr, 0, &remote,
                          1, datatype, op, dest, context, 0},
                         ep.access_flags);
}

template <class Engine>
ssize_t ep_rdm_atomic_write(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                            fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                            fi_datatype datatype, fi_op op, void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    return ep_rdm_atomic_writev<Engine>(self, &one, &desc, 1, dest, addr, key, datatype, op,
                                        context);
}

template <class Engine>
ssize_t ep_rdm_atomic_writemsg(fid_ep* self, const fi_msg_atomic* msg,
                               std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kAtomicFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr) [[unlikely]] {
        return -FI_EINVAL;
    }
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kBase, msg->msg_iov, msg->iov_count, nullptr, 0,
                          nullptr, 0, msg->rma_iov, msg->rma_iov_count, msg->datatype, msg->op,
                          msg->addr, msg->context, msg->data},
                         ep.access_flags_of(flags));
}

template <class Engine>
ssize_t ep_rdm_atomic_inject(fid_ep* self, const void* buffer, std::size_t count, fi_addr_t dest,
                             std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                             fi_op op) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    const fi_ioc one{const_cast<void*>(buffer), count};
    const fi_rma_ioc remote{addr, count, key};
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kBase, &one, 1, nullptr, 0, nullptr, 0, &remote, 1,
                          datatype, op, dest, nullptr, 0},
                         ep.inject_access_flags);
}

// ---- fetch: result = remote, then as above ----

template <class Engine>
ssize_t ep_rdm_atomic_readwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/,
                                 std::size_t count, fi_ioc* result, void** /*result_desc*/,
                                 std::size_t result_count, fi_addr_t dest, std::uint64_t addr,
                                 std::uint64_t key, fi_datatype datatype, fi_op op,
                                 void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    const fi_rma_ioc remote{addr, total_elements(result, result_count), key};
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kFetch, iov, count, nullptr, 0, result,
                          result_count, &remote, 1, datatype, op, dest, context, 0},
                         ep.access_flags & ~RdFlags::kInject);
}

template <class Engine>
ssize_t ep_rdm_atomic_readwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                                void* result, void* result_desc, fi_addr_t dest, std::uint64_t addr,
                                std::uint64_t key, fi_datatype datatype, fi_op op,
                                void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    fi_ioc to{result, count};
    return ep_rdm_atomic_readwritev<Engine>(self, &one, &desc, 1, &to, &result_desc, 1, dest, addr,
                                            key, datatype, op, context);
}

template <class Engine>
ssize_t ep_rdm_atomic_readwritemsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* result,
                                   void** /*result_desc*/, std::size_t result_count,
                                   std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kAtomicFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr) [[unlikely]] {
        return -FI_EINVAL;
    }
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kFetch, msg->msg_iov, msg->iov_count, nullptr, 0,
                          result, result_count, msg->rma_iov, msg->rma_iov_count, msg->datatype,
                          msg->op, msg->addr, msg->context, msg->data},
                         ep.access_flags_of(flags));
}

// ---- compare: result = remote, then remote = operand where the comparison holds ----

template <class Engine>
ssize_t ep_rdm_atomic_compwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/,
                                 std::size_t count, const fi_ioc* compare, void** /*compare_desc*/,
                                 std::size_t compare_count, fi_ioc* result, void** /*result_desc*/,
                                 std::size_t result_count, fi_addr_t dest, std::uint64_t addr,
                                 std::uint64_t key, fi_datatype datatype, fi_op op,
                                 void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    const fi_rma_ioc remote{addr, total_elements(iov, count), key};
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kCompare, iov, count, compare, compare_count,
                          result, result_count, &remote, 1, datatype, op, dest, context, 0},
                         ep.access_flags & ~RdFlags::kInject);
}

template <class Engine>
ssize_t ep_rdm_atomic_compwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                                const void* compare, void* compare_desc, void* result,
                                void* result_desc, fi_addr_t dest, std::uint64_t addr,
                                std::uint64_t key, fi_datatype datatype, fi_op op,
                                void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    const fi_ioc with{const_cast<void*>(compare), count};
    fi_ioc to{result, count};
    return ep_rdm_atomic_compwritev<Engine>(self, &one, &desc, 1, &with, &compare_desc, 1, &to,
                                            &result_desc, 1, dest, addr, key, datatype, op,
                                            context);
}

template <class Engine>
ssize_t ep_rdm_atomic_compwritemsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compare,
                                   void** /*compare_desc*/, std::size_t compare_count,
                                   fi_ioc* result, void** /*result_desc*/, std::size_t result_count,
                                   std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kAtomicFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr) [[unlikely]] {
        return -FI_EINVAL;
    }
    return ep_rdm_atomic(ep,
                         {core::RdAtomic::Kind::kCompare, msg->msg_iov, msg->iov_count, compare,
                          compare_count, result, result_count, msg->rma_iov, msg->rma_iov_count,
                          msg->datatype, msg->op, msg->addr, msg->context, msg->data},
                         ep.access_flags_of(flags));
}

template <class Engine>
constexpr fi_ops_atomic ep_rdm_atomic_ops() noexcept {
    return {
        .size = sizeof(fi_ops_atomic),
        .write = ep_rdm_atomic_write<Engine>,
        .writev = ep_rdm_atomic_writev<Engine>,
        .writemsg = ep_rdm_atomic_writemsg<Engine>,
        .inject = ep_rdm_atomic_inject<Engine>,
        .readwrite = ep_rdm_atomic_readwrite<Engine>,
        .readwritev = ep_rdm_atomic_readwritev<Engine>,
        .readwritemsg = ep_rdm_atomic_readwritemsg<Engine>,
        .compwrite = ep_rdm_atomic_compwrite<Engine>,
        .compwritev = ep_rdm_atomic_compwritev<Engine>,
        .compwritemsg = ep_rdm_atomic_compwritemsg<Engine>,
        .writevalid = atomic_writevalid,
        .readwritevalid = atomic_readwritevalid,
        .compwritevalid = atomic_compwritevalid,
    };
}

}  // namespace rvt::ofi
