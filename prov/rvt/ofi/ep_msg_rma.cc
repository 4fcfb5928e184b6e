// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_rma(3) of connected endpoints.
#include "ofi/ep_msg_post.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kMsgReadFlags = kPostFlags & ~(FI_INJECT | FI_REMOTE_CQ_DATA);

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
    if (is_bad_msg_list(iov, count)) {
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
    if ((flags & ~kMsgReadFlags) != 0) {
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
    if (is_bad_msg_list(iov, count)) {
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

}  // namespace

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
