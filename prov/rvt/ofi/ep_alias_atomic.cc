// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_atomic(3) on an alias: every call becomes the owner's call that carries flags.
#include "ofi/atomic_valid.h"
#include "ofi/ep_alias.h"
#include "ofi/rd_flags.h"

namespace rvt::ofi {
namespace {

std::uint64_t flags_of(fid_ep* self, std::uint64_t possible) noexcept {
    return EpAlias::from(self).tx_op_flags & possible;
}

/// What a call names, as the msg calls take it. Lives as long as the call.
struct AtomicMsg {
    AtomicMsg(const fi_ioc* iov, std::size_t count, fi_addr_t peer, std::uint64_t addr,
              std::uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
        for (std::size_t i = 0; i < count; ++i) {
            remote.count += iov[i].count;
        }
        remote.addr = addr;
        remote.key = key;
        msg.msg_iov = iov;
        msg.iov_count = count;
        msg.addr = peer;
        msg.rma_iov = &remote;
        msg.rma_iov_count = 1;
        msg.datatype = datatype;
        msg.op = op;
        msg.context = context;
    }
    ~AtomicMsg() = default;
    AtomicMsg(const AtomicMsg&) = delete;
    AtomicMsg& operator=(const AtomicMsg&) = delete;

    fi_rma_ioc remote{};
    fi_msg_atomic msg{};
};

// ---- without a result

ssize_t alias_writev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t dest, std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                     fi_op op, void* context) noexcept {
    const AtomicMsg call(iov, count, dest, addr, key, datatype, op, context);
    return fi_atomicmsg(EpAlias::owner_of(self), &call.msg, flags_of(self, kAtomicFlags));
}
ssize_t alias_write(fid_ep* self, const void* buffer, std::size_t count, void* desc, fi_addr_t dest,
                    std::uint64_t addr, std::uint64_t key, fi_datatype datatype, fi_op op,
                    void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    return alias_writev(self, &one, &desc, 1, dest, addr, key, datatype, op, context);
}
ssize_t alias_writemsg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags) noexcept {
    return fi_atomicmsg(EpAlias::owner_of(self), msg, flags);
}
ssize_t alias_inject(fid_ep* self, const void* buffer, std::size_t count, fi_addr_t dest,
                     std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                     fi_op op) noexcept {
    return fi_inject_atomic(EpAlias::owner_of(self), buffer, count, dest, addr, key, datatype, op);
}

// ---- with a result: the buffer comes back, so that nothing can be injected

ssize_t alias_readwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                         fi_ioc* result, void** result_desc, std::size_t result_count,
                         fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         fi_datatype datatype, fi_op op, void* context) noexcept {
    const AtomicMsg call(iov, count, dest, addr, key, datatype, op, context);
    return fi_fetch_atomicmsg(EpAlias::owner_of(self), &call.msg, result, result_desc, result_count,
                              flags_of(self, kReadFlags));
}
ssize_t alias_readwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                        void* result, void* result_desc, fi_addr_t dest, std::uint64_t addr,
                        std::uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    fi_ioc got{result, count};
    return alias_readwritev(self, &one, &desc, 1, &got, &result_desc, 1, dest, addr, key, datatype,
                            op, context);
}
ssize_t alias_readwritemsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* result,
                           void** result_desc, std::size_t result_count,
                           std::uint64_t flags) noexcept {
    return fi_fetch_atomicmsg(EpAlias::owner_of(self), msg, result, result_desc, result_count,
                              flags);
}

ssize_t alias_compwritev(fid_ep* self, const fi_ioc* iov, void** /*desc*/, std::size_t count,
                         const fi_ioc* compare, void** compare_desc, std::size_t compare_count,
                         fi_ioc* result, void** result_desc, std::size_t result_count,
                         fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         fi_datatype datatype, fi_op op, void* context) noexcept {
    const AtomicMsg call(iov, count, dest, addr, key, datatype, op, context);
    return fi_compare_atomicmsg(EpAlias::owner_of(self), &call.msg, compare, compare_desc,
                                compare_count, result, result_desc, result_count,
                                flags_of(self, kReadFlags));
}
ssize_t alias_compwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                        const void* compare, void* compare_desc, void* result, void* result_desc,
                        fi_addr_t dest, std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                        fi_op op, void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buffer), count};
    const fi_ioc with{const_cast<void*>(compare), count};
    fi_ioc got{result, count};
    return alias_compwritev(self, &one, &desc, 1, &with, &compare_desc, 1, &got, &result_desc, 1,
                            dest, addr, key, datatype, op, context);
}
ssize_t alias_compwritemsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compare,
                           void** compare_desc, std::size_t compare_count, fi_ioc* result,
                           void** result_desc, std::size_t result_count,
                           std::uint64_t flags) noexcept {
    return fi_compare_atomicmsg(EpAlias::owner_of(self), msg, compare, compare_desc, compare_count,
                                result, result_desc, result_count, flags);
}

}  // namespace

fi_ops_atomic alias_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = alias_write,
    .writev = alias_writev,
    .writemsg = alias_writemsg,
    .inject = alias_inject,
    .readwrite = alias_readwrite,
    .readwritev = alias_readwritev,
    .readwritemsg = alias_readwritemsg,
    .compwrite = alias_compwrite,
    .compwritev = alias_compwritev,
    .compwritemsg = alias_compwritemsg,
    .writevalid = atomic_writevalid,
    .readwritevalid = atomic_readwritevalid,
    .compwritevalid = atomic_compwritevalid,
};

}  // namespace rvt::ofi
