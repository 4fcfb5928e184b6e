// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An alias is a second fid whose calls become the owner's calls that carry flags. It is made for
// few operations: each costs one call more than the owner's.
#include "ofi/ep_alias.h"

#include "ofi/ep_rdm.h"
#include "ofi/errors.h"
#include "ofi/info.h"

namespace rvt::ofi {
namespace {

fid_ep* owner_of(fid_ep* self) noexcept {
    return EpAlias::owner_of(self);
}
fid* owner_of(fid* self) noexcept {
    return &EpAlias::from(self).owner->handle.fid;
}

// ---- messages ----

ssize_t send_iov(fid_ep* self, const iovec* iov, std::size_t count, std::uint64_t data,
                 fi_addr_t dest, void* context, std::uint64_t extra) noexcept {
    const fi_msg msg{iov, nullptr, count, dest, context, data};
    return fi_sendmsg(owner_of(self), &msg, EpAlias::from(self).tx_op_flags | extra);
}
ssize_t alias_sendv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                    fi_addr_t dest, void* context) noexcept {
    return send_iov(self, iov, count, 0, dest, context, 0);
}
ssize_t alias_send(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                   fi_addr_t dest, void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return send_iov(self, &one, 1, 0, dest, context, 0);
}
ssize_t alias_senddata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                       std::uint64_t data, fi_addr_t dest, void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return send_iov(self, &one, 1, data, dest, context, FI_REMOTE_CQ_DATA);
}
ssize_t alias_sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    return fi_sendmsg(owner_of(self), msg, flags);
}
ssize_t alias_inject(fid_ep* self, const void* buffer, std::size_t length,
                     fi_addr_t dest) noexcept {
    return fi_inject(owner_of(self), buffer, length, dest);
}
ssize_t alias_injectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                         fi_addr_t dest) noexcept {
    return fi_injectdata(owner_of(self), buffer, length, data, dest);
}
ssize_t alias_recvv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                    fi_addr_t source, void* context) noexcept {
    const fi_msg msg{iov, nullptr, count, source, context, 0};
    return fi_recvmsg(owner_of(self), &msg, EpAlias::from(self).rx_op_flags);
}
ssize_t alias_recv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                   void* context) noexcept {
    const iovec one{buffer, length};
    return alias_recvv(self, &one, &desc, 1, source, context);
}
ssize_t alias_recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    return fi_recvmsg(owner_of(self), msg, flags);
}

// ---- tagged messages ----

ssize_t tsend_iov(fid_ep* self, const iovec* iov, std::size_t count, std::uint64_t data,
                  fi_addr_t dest, std::uint64_t tag, void* context, std::uint64_t extra) noexcept {
    const fi_msg_tagged msg{iov, nullptr, count, dest, tag, 0, context, data};
    return fi_tsendmsg(owner_of(self), &msg, EpAlias::from(self).tx_op_flags | extra);
}
ssize_t alias_tsendv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
    return tsend_iov(self, iov, count, 0, dest, tag, context, 0);
}
ssize_t alias_tsend(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                    fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return tsend_iov(self, &one, 1, 0, dest, tag, context, 0);
}
ssize_t alias_tsenddata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                        std::uint64_t data, fi_addr_t dest, std::uint64_t tag,
                        void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return tsend_iov(self, &one, 1, data, dest, tag, context, FI_REMOTE_CQ_DATA);
}
ssize_t alias_tsendmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
    return fi_tsendmsg(owner_of(self), msg, flags);
}
ssize_t alias_tinject(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                      std::uint64_t tag) noexcept {
    return fi_tinject(owner_of(self), buffer, length, dest, tag);
}
ssize_t alias_tinjectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                          fi_addr_t dest, std::uint64_t tag) noexcept {
    return fi_tinjectdata(owner_of(self), buffer, length, data, dest, tag);
}
ssize_t alias_trecvv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t source, std::uint64_t tag, std::uint64_t ignore,
                     void* context) noexcept {
    const fi_msg_tagged msg{iov, nullptr, count, source, tag, ignore, context, 0};
    return fi_trecvmsg(owner_of(self), &msg, EpAlias::from(self).rx_op_flags);
}
ssize_t alias_trecv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                    std::uint64_t tag, std::uint64_t ignore, void* context) noexcept {
    const iovec one{buffer, length};
    return alias_trecvv(self, &one, &desc, 1, source, tag, ignore, context);
}
ssize_t alias_trecvmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
    return fi_trecvmsg(owner_of(self), msg, flags);
}

// ---- one-sided ----

std::size_t total_bytes(const iovec* iov, std::size_t count) noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        total += iov[i].iov_len;
    }
    return total;
}

ssize_t alias_readv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                    fi_addr_t source, std::uint64_t addr, std::uint64_t key,
                    void* context) noexcept {
    const fi_rma_iov remote{addr, total_bytes(iov, count), key};
    const fi_msg_rma msg{iov, nullptr, count, source, &remote, 1, context, 0};
    return fi_readmsg(owner_of(self), &msg, EpAlias::from(self).tx_op_flags & kReadFlags);
}
ssize_t alias_read(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                   std::uint64_t addr, std::uint64_t key, void* context) noexcept {
    const iovec one{buffer, length};
    return alias_readv(self, &one, &desc, 1, source, addr, key, context);
}
ssize_t alias_readmsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    return fi_readmsg(owner_of(self), msg, flags);
}
ssize_t write_iov(fid_ep* self, const iovec* iov, std::size_t count, std::uint64_t data,
                  fi_addr_t dest, std::uint64_t addr, std::uint64_t key, void* context,
                  std::uint64_t extra) noexcept {
    const fi_rma_iov remote{addr, total_bytes(iov, count), key};
    const fi_msg_rma msg{iov, nullptr, count, dest, &remote, 1, context, data};
    return fi_writemsg(owner_of(self), &msg, EpAlias::from(self).tx_op_flags | extra);
}
ssize_t alias_writev(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                     void* context) noexcept {
    return write_iov(self, iov, count, 0, dest, addr, key, context, 0);
}
ssize_t alias_write(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                    fi_addr_t dest, std::uint64_t addr, std::uint64_t key, void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return write_iov(self, &one, 1, 0, dest, addr, key, context, 0);
}
ssize_t alias_writemsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    return fi_writemsg(owner_of(self), msg, flags);
}
ssize_t alias_inject_write(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                           std::uint64_t addr, std::uint64_t key) noexcept {
    return fi_inject_write(owner_of(self), buffer, length, dest, addr, key);
}
ssize_t alias_writedata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                        std::uint64_t data, fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                        void* context) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return write_iov(self, &one, 1, data, dest, addr, key, context, FI_REMOTE_CQ_DATA);
}
ssize_t alias_inject_writedata(fid_ep* self, const void* buffer, std::size_t length,
                               std::uint64_t data, fi_addr_t dest, std::uint64_t addr,
                               std::uint64_t key) noexcept {
    return fi_inject_writedata(owner_of(self), buffer, length, data, dest, addr, key);
}

// ---- control ----

ssize_t alias_cancel(fid* self, void* context) noexcept {
    return fi_cancel(owner_of(self), context);
}
int alias_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    return ep_rdm_getopt(owner_of(self), level, option, value, bytes);
}
int alias_setopt(fid* self, int level, int option, const void* value, std::size_t bytes) noexcept {
    return ep_rdm_setopt(owner_of(self), level, option, value, bytes);
}
int alias_tx_ctx(fid_ep* /*self*/, int /*index*/, fi_tx_attr* /*attr*/, fid_ep** /*ep*/,
                 void* /*context*/) noexcept {
    return -FI_ENOSYS;
}
int alias_rx_ctx(fid_ep* /*self*/, int /*index*/, fi_rx_attr* /*attr*/, fid_ep** /*ep*/,
                 void* /*context*/) noexcept {
    return -FI_ENOSYS;
}
ssize_t alias_rx_size_left(fid_ep* self) noexcept {
    return owner_of(self)->ops->rx_size_left(owner_of(self));
}
ssize_t alias_tx_size_left(fid_ep* self) noexcept {
    return owner_of(self)->ops->tx_size_left(owner_of(self));
}

int alias_close(fid* self) noexcept {
    EpAlias& alias = EpAlias::from(self);
    alias.owner->aliases.drop();
    delete &alias;
    return 0;
}

int alias_control(fid* self, int command, void* argument) noexcept {
    EpAlias& alias = EpAlias::from(self);
    if (command != FI_GETOPSFLAG || argument == nullptr) {
        return -FI_ENOSYS;
    }
    auto& flags = *static_cast<std::uint64_t*>(argument);
    flags = (flags & FI_RECV) != 0 ? alias.rx_op_flags : alias.tx_op_flags;
    return 0;
}

fi_ops alias_fid_ops = fid_ops(alias_close, no_bind, alias_control);

fi_ops_ep alias_ep_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = alias_cancel,
    .getopt = alias_getopt,
    .setopt = alias_setopt,
    .tx_ctx = alias_tx_ctx,
    .rx_ctx = alias_rx_ctx,
    .rx_size_left = alias_rx_size_left,
    .tx_size_left = alias_tx_size_left,
};

fi_ops_msg alias_msg_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = alias_recv,
    .recvv = alias_recvv,
    .recvmsg = alias_recvmsg,
    .send = alias_send,
    .sendv = alias_sendv,
    .sendmsg = alias_sendmsg,
    .inject = alias_inject,
    .senddata = alias_senddata,
    .injectdata = alias_injectdata,
};

fi_ops_tagged alias_tagged_ops = {
    .size = sizeof(fi_ops_tagged),
    .recv = alias_trecv,
    .recvv = alias_trecvv,
    .recvmsg = alias_trecvmsg,
    .send = alias_tsend,
    .sendv = alias_tsendv,
    .sendmsg = alias_tsendmsg,
    .inject = alias_tinject,
    .senddata = alias_tsenddata,
    .injectdata = alias_tinjectdata,
};

fi_ops_rma alias_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = alias_read,
    .readv = alias_readv,
    .readmsg = alias_readmsg,
    .write = alias_write,
    .writev = alias_writev,
    .writemsg = alias_writemsg,
    .inject = alias_inject_write,
    .writedata = alias_writedata,
    .injectdata = alias_inject_writedata,
};

}  // namespace

int ep_alias_open(EpRdm& owner, struct fi_alias& alias) noexcept {
    constexpr std::uint64_t kSides = FI_TRANSMIT | FI_RECV;
    const bool is_tx = (alias.flags & FI_TRANSMIT) != 0;
    const bool is_rx = (alias.flags & FI_RECV) != 0;
    const std::uint64_t op_flags = alias.flags & ~kSides;
    if (is_tx == is_rx || (op_flags & ~(is_tx ? kTxOpFlags : kRxOpFlags)) != 0) {
        return -FI_EBADFLAGS;
    }
    return entry([&]() -> int {
        auto* made = new EpAlias;
        made->owner = &owner;
        made->tx_op_flags = is_tx ? op_flags : owner.tx_op_flags;
        made->rx_op_flags = is_rx ? op_flags : owner.rx_op_flags;
        made->handle = owner.handle;
        made->handle.fid.ops = &alias_fid_ops;
        made->handle.ops = &alias_ep_ops;
        made->handle.msg = &alias_msg_ops;
        made->handle.tagged = &alias_tagged_ops;
        made->handle.rma = &alias_rma_ops;
        made->handle.atomic = &alias_atomic_ops;
        owner.aliases.add();
        *alias.fid = &made->handle.fid;
        return 0;
    });
}

}  // namespace rvt::ofi
