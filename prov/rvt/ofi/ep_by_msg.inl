// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Data-path tables whose every call becomes the call that carries flags and descriptors:
// fi_sendmsg(3) and its like. For endpoints that see few operations, or must look at each buffer:
// each costs one call more than an engine's own.
//
// To says what those calls do. Its members are static and take the endpoint that was called:
//   sendmsg, recvmsg, tsendmsg, trecvmsg, readmsg, writemsg, atomicmsg, fetch_atomicmsg,
//   compare_atomicmsg   as the entries of fi_ops_msg and the other tables
//   tx_op_flags, rx_op_flags   the flags of calls that bring none
// Calls that inject have no flags: whoever makes a table of these sets them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ofi/atomic_valid.h"
#include "ofi/compat.h"
#include "ofi/ep_tables.h"
#include "ofi/rd_flags.h"
#include "util/saturate.h"

namespace rvt::ofi {

// ---- messages ----

template <class To>
struct MsgByMsg {
    static ssize_t send_iov(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                            std::uint64_t data, fi_addr_t dest, void* context,
                            std::uint64_t extra) noexcept {
        const fi_msg msg{iov, desc, count, dest, context, data};
        return To::sendmsg(self, &msg, To::tx_op_flags(self) | extra);
    }
    static ssize_t sendv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                         fi_addr_t dest, void* context) noexcept {
        return send_iov(self, iov, desc, count, 0, dest, context, 0);
    }
    static ssize_t send(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                        fi_addr_t dest, void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return send_iov(self, &one, &desc, 1, 0, dest, context, 0);
    }
    static ssize_t senddata(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                            std::uint64_t data, fi_addr_t dest, void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return send_iov(self, &one, &desc, 1, data, dest, context, FI_REMOTE_CQ_DATA);
    }
    static ssize_t recvv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                         fi_addr_t source, void* context) noexcept {
        const fi_msg msg{iov, desc, count, source, context, 0};
        return To::recvmsg(self, &msg, To::rx_op_flags(self));
    }
    static ssize_t recv(fid_ep* self, void* buffer, std::size_t length, void* desc,
                        fi_addr_t source, void* context) noexcept {
        const iovec one{buffer, length};
        return recvv(self, &one, &desc, 1, source, context);
    }
    static constexpr fi_ops_msg table() noexcept {
        return {
            .size = sizeof(fi_ops_msg),
            .recv = recv,
            .recvv = recvv,
            .recvmsg = To::recvmsg,
            .send = send,
            .sendv = sendv,
            .sendmsg = To::sendmsg,
            .senddata = senddata,
        };
    }
};

// ---- tagged messages ----

template <class To>
struct TaggedByMsg {
    static ssize_t send_iov(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                            std::uint64_t data, fi_addr_t dest, std::uint64_t tag, void* context,
                            std::uint64_t extra) noexcept {
        const fi_msg_tagged msg{iov, desc, count, dest, tag, 0, context, data};
        return To::tsendmsg(self, &msg, To::tx_op_flags(self) | extra);
    }
    static ssize_t sendv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                         fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
        return send_iov(self, iov, desc, count, 0, dest, tag, context, 0);
    }
    static ssize_t send(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                        fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return send_iov(self, &one, &desc, 1, 0, dest, tag, context, 0);
    }
    static ssize_t senddata(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                            std::uint64_t data, fi_addr_t dest, std::uint64_t tag,
                            void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return send_iov(self, &one, &desc, 1, data, dest, tag, context, FI_REMOTE_CQ_DATA);
    }
    static ssize_t recvv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                         fi_addr_t source, std::uint64_t tag, std::uint64_t ignore,
                         void* context) noexcept {
        const fi_msg_tagged msg{iov, desc, count, source, tag, ignore, context, 0};
        return To::trecvmsg(self, &msg, To::rx_op_flags(self) & kTaggedRecvFlags);
    }
    static ssize_t recv(fid_ep* self, void* buffer, std::size_t length, void* desc,
                        fi_addr_t source, std::uint64_t tag, std::uint64_t ignore,
                        void* context) noexcept {
        const iovec one{buffer, length};
        return recvv(self, &one, &desc, 1, source, tag, ignore, context);
    }
    static constexpr fi_ops_tagged table() noexcept {
        return {
            .size = sizeof(fi_ops_tagged),
            .recv = recv,
            .recvv = recvv,
            .recvmsg = To::trecvmsg,
            .send = send,
            .sendv = sendv,
            .sendmsg = To::tsendmsg,
            .senddata = senddata,
        };
    }
};

// ---- one-sided ----

template <class To>
struct RmaByMsg {
    static std::size_t total_bytes(const iovec* iov, std::size_t count) noexcept {
        std::size_t total = 0;
        for (std::size_t i = 0; i < count && iov != nullptr; ++i) {
            total = util::saturating_add(total, iov[i].iov_len);
        }
        return total;
    }
    static ssize_t readv(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                         fi_addr_t source, std::uint64_t addr, std::uint64_t key,
                         void* context) noexcept {
        const fi_rma_iov remote{addr, total_bytes(iov, count), key};
        const fi_msg_rma msg{iov, desc, count, source, &remote, 1, context, 0};
        return To::readmsg(self, &msg, To::tx_op_flags(self) & kReadFlags);
    }
    static ssize_t read(fid_ep* self, void* buffer, std::size_t length, void* desc,
                        fi_addr_t source, std::uint64_t addr, std::uint64_t key,
                        void* context) noexcept {
        const iovec one{buffer, length};
        return readv(self, &one, &desc, 1, source, addr, key, context);
    }
    static ssize_t write_iov(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                             std::uint64_t data, fi_addr_t dest, std::uint64_t addr,
                             std::uint64_t key, void* context, std::uint64_t extra) noexcept {
        const fi_rma_iov remote{addr, total_bytes(iov, count), key};
        const fi_msg_rma msg{iov, desc, count, dest, &remote, 1, context, data};
        return To::writemsg(self, &msg, To::tx_op_flags(self) | extra);
    }
    static ssize_t writev(fid_ep* self, const iovec* iov, void** desc, std::size_t count,
                          fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                          void* context) noexcept {
        return write_iov(self, iov, desc, count, 0, dest, addr, key, context, 0);
    }
    static ssize_t write(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                         fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return write_iov(self, &one, &desc, 1, 0, dest, addr, key, context, 0);
    }
    static ssize_t writedata(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                             std::uint64_t data, fi_addr_t dest, std::uint64_t addr,
                             std::uint64_t key, void* context) noexcept {
        const iovec one{const_cast<void*>(buffer), length};
        return write_iov(self, &one, &desc, 1, data, dest, addr, key, context, FI_REMOTE_CQ_DATA);
    }
    static constexpr fi_ops_rma table() noexcept {
        return {
            .size = sizeof(fi_ops_rma),
            .read = read,
            .readv = readv,
            .readmsg = To::readmsg,
            .write = write,
            .writev = writev,
            .writemsg = To::writemsg,
            .writedata = writedata,
        };
    }
};

// ---- atomics ----

template <class To>
struct AtomicByMsg {
    /// What a call names, as the msg calls take it. Lives as long as the call.
    struct Msg {
        Msg(const fi_ioc* iov, void** desc, std::size_t count, fi_addr_t peer, std::uint64_t addr,
            std::uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
            for (std::size_t i = 0; i < count && iov != nullptr; ++i) {
                remote.count = util::saturating_add(remote.count, iov[i].count);
            }
            remote.addr = addr;
            remote.key = key;
            msg.msg_iov = iov;
            msg.desc = desc;
            msg.iov_count = count;
            msg.addr = peer;
            msg.rma_iov = &remote;
            msg.rma_iov_count = 1;
            msg.datatype = datatype;
            msg.op = op;
            msg.context = context;
        }
        ~Msg() = default;
        Msg(const Msg&) = delete;
        Msg& operator=(const Msg&) = delete;

        fi_rma_ioc remote{};
        fi_msg_atomic msg{};
    };

    // ---- without a result

    static ssize_t writev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                          fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                          fi_datatype datatype, fi_op op, void* context) noexcept {
        const Msg call(iov, desc, count, dest, addr, key, datatype, op, context);
        return To::atomicmsg(self, &call.msg, To::tx_op_flags(self) & kAtomicFlags);
    }
    static ssize_t write(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                         fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         fi_datatype datatype, fi_op op, void* context) noexcept {
        const fi_ioc one{const_cast<void*>(buffer), count};
        return writev(self, &one, &desc, 1, dest, addr, key, datatype, op, context);
    }

    // ---- with a result: the buffer comes back, so that nothing can be injected

    static ssize_t readwritev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                              fi_ioc* result, void** result_desc, std::size_t result_count,
                              fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                              fi_datatype datatype, fi_op op, void* context) noexcept {
        // FI_ATOMIC_READ has no operand: the result says how much is read.
        const Msg call(op == FI_ATOMIC_READ ? result : iov, op == FI_ATOMIC_READ ? nullptr : desc,
                       op == FI_ATOMIC_READ ? result_count : count, dest, addr, key, datatype, op,
                       context);
        return To::fetch_atomicmsg(self, &call.msg, result, result_desc, result_count,
                                   To::tx_op_flags(self) & kReadFlags);
    }
    static ssize_t readwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                             void* result, void* result_desc, fi_addr_t dest, std::uint64_t addr,
                             std::uint64_t key, fi_datatype datatype, fi_op op,
                             void* context) noexcept {
        const fi_ioc one{const_cast<void*>(buffer), count};
        fi_ioc got{result, count};
        return readwritev(self, &one, &desc, 1, &got, &result_desc, 1, dest, addr, key, datatype,
                          op, context);
    }
    static ssize_t compwritev(fid_ep* self, const fi_ioc* iov, void** desc, std::size_t count,
                              const fi_ioc* compare, void** compare_desc, std::size_t compare_count,
                              fi_ioc* result, void** result_desc, std::size_t result_count,
                              fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                              fi_datatype datatype, fi_op op, void* context) noexcept {
        const Msg call(iov, desc, count, dest, addr, key, datatype, op, context);
        return To::compare_atomicmsg(self, &call.msg, compare, compare_desc, compare_count, result,
                                     result_desc, result_count, To::tx_op_flags(self) & kReadFlags);
    }
    static ssize_t compwrite(fid_ep* self, const void* buffer, std::size_t count, void* desc,
                             const void* compare, void* compare_desc, void* result,
                             void* result_desc, fi_addr_t dest, std::uint64_t addr,
                             std::uint64_t key, fi_datatype datatype, fi_op op,
                             void* context) noexcept {
        const fi_ioc one{const_cast<void*>(buffer), count};
        const fi_ioc with{const_cast<void*>(compare), count};
        fi_ioc got{result, count};
        return compwritev(self, &one, &desc, 1, &with, &compare_desc, 1, &got, &result_desc, 1,
                          dest, addr, key, datatype, op, context);
    }
    static constexpr fi_ops_atomic table() noexcept {
        return {
            .size = sizeof(fi_ops_atomic),
            .write = write,
            .writev = writev,
            .writemsg = To::atomicmsg,
            .readwrite = readwrite,
            .readwritev = readwritev,
            .readwritemsg = To::fetch_atomicmsg,
            .compwrite = compwrite,
            .compwritev = compwritev,
            .compwritemsg = To::compare_atomicmsg,
            .writevalid = atomic_writevalid,
            .readwritevalid = atomic_readwritevalid,
            .compwritevalid = atomic_compwritevalid,
        };
    }
};

template <class To>
constexpr EpTables tables_by_msg() noexcept {
    return {.msg = MsgByMsg<To>::table(),
            .tagged = TaggedByMsg<To>::table(),
            .rma = RmaByMsg<To>::table(),
            .atomic = AtomicByMsg<To>::table()};
}

}  // namespace rvt::ofi
