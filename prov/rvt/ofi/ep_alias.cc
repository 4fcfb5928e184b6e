// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An alias is a second fid whose calls become the owner's calls that carry flags.
#include "ofi/ep_alias.h"

#include "ofi/ep_by_msg.inl"
#include "ofi/ep_rdm.h"
#include "ofi/errors.h"
#include "ofi/info.h"
#include "ofi/op_flags.h"
#include "ofi/refuse.h"

namespace rvt::ofi {
namespace {

fid_ep* owner_of(fid_ep* self) noexcept {
    return &EpAlias::from(self).owner->handle;
}
fid* owner_of(fid* self) noexcept {
    return &EpAlias::from(self).owner->handle.fid;
}

/// The owner's calls, with the flags of the alias.
struct ToOwner {
    static std::uint64_t tx_op_flags(fid_ep* self) noexcept {
        return EpAlias::from(self).tx_op_flags;
    }
    static std::uint64_t rx_op_flags(fid_ep* self) noexcept {
        return EpAlias::from(self).rx_op_flags;
    }

    static ssize_t sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        return fi_sendmsg(owner_of(self), msg, flags);
    }
    static ssize_t recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        return fi_recvmsg(owner_of(self), msg, flags);
    }
    static ssize_t tsendmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
        return fi_tsendmsg(owner_of(self), msg, flags);
    }
    static ssize_t trecvmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
        return fi_trecvmsg(owner_of(self), msg, flags);
    }
    static ssize_t readmsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
        return fi_readmsg(owner_of(self), msg, flags);
    }
    static ssize_t writemsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
        return fi_writemsg(owner_of(self), msg, flags);
    }
    static ssize_t atomicmsg(fid_ep* self, const fi_msg_atomic* msg, std::uint64_t flags) noexcept {
        return fi_atomicmsg(owner_of(self), msg, flags);
    }
    static ssize_t fetch_atomicmsg(fid_ep* self, const fi_msg_atomic* msg, fi_ioc* result,
                                   void** result_desc, std::size_t result_count,
                                   std::uint64_t flags) noexcept {
        return fi_fetch_atomicmsg(owner_of(self), msg, result, result_desc, result_count, flags);
    }
    static ssize_t compare_atomicmsg(fid_ep* self, const fi_msg_atomic* msg, const fi_ioc* compare,
                                     void** compare_desc, std::size_t compare_count, fi_ioc* result,
                                     void** result_desc, std::size_t result_count,
                                     std::uint64_t flags) noexcept {
        return fi_compare_atomicmsg(owner_of(self), msg, compare, compare_desc, compare_count,
                                    result, result_desc, result_count, flags);
    }
};

// ---- calls that inject ----

ssize_t alias_inject(fid_ep* self, const void* buffer, std::size_t length,
                     fi_addr_t dest) noexcept {
    return fi_inject(owner_of(self), buffer, length, dest);
}
ssize_t alias_injectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                         fi_addr_t dest) noexcept {
    return fi_injectdata(owner_of(self), buffer, length, data, dest);
}
ssize_t alias_tinject(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                      std::uint64_t tag) noexcept {
    return fi_tinject(owner_of(self), buffer, length, dest, tag);
}
ssize_t alias_tinjectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                          fi_addr_t dest, std::uint64_t tag) noexcept {
    return fi_tinjectdata(owner_of(self), buffer, length, data, dest, tag);
}
ssize_t alias_inject_write(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                           std::uint64_t addr, std::uint64_t key) noexcept {
    return fi_inject_write(owner_of(self), buffer, length, dest, addr, key);
}
ssize_t alias_inject_writedata(fid_ep* self, const void* buffer, std::size_t length,
                               std::uint64_t data, fi_addr_t dest, std::uint64_t addr,
                               std::uint64_t key) noexcept {
    return fi_inject_writedata(owner_of(self), buffer, length, data, dest, addr, key);
}
ssize_t alias_inject_atomic(fid_ep* self, const void* buffer, std::size_t count, fi_addr_t dest,
                            std::uint64_t addr, std::uint64_t key, fi_datatype datatype,
                            fi_op op) noexcept {
    return fi_inject_atomic(owner_of(self), buffer, count, dest, addr, key, datatype, op);
}

constexpr EpTables make_tables() noexcept {
    EpTables tables = tables_by_msg<ToOwner>();
    tables.msg.inject = alias_inject;
    tables.msg.injectdata = alias_injectdata;
    tables.tagged.inject = alias_tinject;
    tables.tagged.injectdata = alias_tinjectdata;
    tables.rma.inject = alias_inject_write;
    tables.rma.injectdata = alias_inject_writedata;
    tables.atomic.inject = alias_inject_atomic;
    return tables;
}

constinit EpTables alias_tables = make_tables();

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
    switch (command) {
        case FI_GETOPSFLAG:
            return get_op_flags({alias.tx_op_flags, alias.rx_op_flags},
                                *static_cast<std::uint64_t*>(argument));
        case FI_SETOPSFLAG:
            return set_op_flags(alias.tx_op_flags, alias.rx_op_flags, {kTxOpFlags, kRxOpFlags},
                                *static_cast<const std::uint64_t*>(argument));
        default: return -FI_ENOSYS;
    }
}

// ---- names

int alias_setname(fid* self, void* address, std::size_t bytes) noexcept {
    return fi_setname(owner_of(self), address, bytes);
}
int alias_getname(fid* self, void* address, std::size_t* bytes) noexcept {
    return fi_getname(owner_of(self), address, bytes);
}

constexpr Refuse<-FI_ENOSYS> kNoConnections{};
fi_ops_cm alias_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = alias_setname,
    .getname = alias_getname,
    .getpeer = kNoConnections,
    .connect = kNoConnections,
    .listen = kNoConnections,
    .accept = kNoConnections,
    .reject = kNoConnections,
    .shutdown = kNoConnections,
    .join = kNoConnections,
};

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
        made->handle.cm = &alias_cm_ops;
        made->handle.msg = &alias_tables.msg;
        made->handle.tagged = &alias_tables.tagged;
        made->handle.rma = &alias_tables.rma;
        made->handle.atomic = &alias_tables.atomic;
        owner.aliases.add();
        *alias.fid = &made->handle.fid;
        return 0;
    });
}

}  // namespace rvt::ofi
