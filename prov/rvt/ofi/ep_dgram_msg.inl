// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) of datagram endpoints, instantiated for each lock policy. Each callback translates its
// arguments and is done.
#pragma once

#include "ofi/ep_dgram.h"
#include "ofi/errors.h"
#include "util/lock.h"

namespace rvt::ofi {

inline constexpr std::uint64_t kDgramSendFlags = kDgramTxOpFlags | FI_REMOTE_CQ_DATA | FI_MORE;
inline constexpr std::uint64_t kDgramRecvFlags = kDgramRxOpFlags | FI_MORE;

/// Whether a list of buffers cannot be taken: too long, or not there.
RVT_ALWAYS_INLINE bool is_bad_iov(const iovec* iov, std::size_t count) noexcept {
    return count > core::kMaxIov || (iov == nullptr && count != 0);
}

template <class Lock>
RVT_ALWAYS_INLINE ssize_t dgram_send(EpDgram& ep, const core::RdSend& request) noexcept {
    const util::Guard<Lock> guard(ep.domain->lock.as<Lock>());
    return to_fi(ep.endpoint.send_locked(request));
}

template <class Lock>
RVT_ALWAYS_INLINE ssize_t dgram_recv(EpDgram& ep, const core::RdRecv& request) noexcept {
    const util::Guard<Lock> guard(ep.domain->lock.as<Lock>());
    return to_fi(ep.endpoint.recv_locked(request));
}

template <class Lock>
ssize_t ep_dgram_send(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                      fi_addr_t dest, void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    const iovec one{const_cast<void*>(buffer), length};
    return dgram_send<Lock>(
        ep,
        {.iov = &one, .iov_count = 1, .dest = dest, .context = context, .flags = ep.send_flags});
}

template <class Lock>
ssize_t ep_dgram_senddata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                          std::uint64_t data, fi_addr_t dest, void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    const iovec one{const_cast<void*>(buffer), length};
    return dgram_send<Lock>(ep, {.iov = &one,
                                 .iov_count = 1,
                                 .dest = dest,
                                 .data = data,
                                 .context = context,
                                 .flags = ep.send_flags | RdFlags::kData});
}

template <class Lock>
ssize_t ep_dgram_inject(fid_ep* self, const void* buffer, std::size_t length,
                        fi_addr_t dest) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return dgram_send<Lock>(EpDgram::from(self),
                            {.iov = &one, .iov_count = 1, .dest = dest, .flags = RdFlags::kInject});
}

template <class Lock>
ssize_t ep_dgram_injectdata(fid_ep* self, const void* buffer, std::size_t length,
                            std::uint64_t data, fi_addr_t dest) noexcept {
    const iovec one{const_cast<void*>(buffer), length};
    return dgram_send<Lock>(EpDgram::from(self), {.iov = &one,
                                                  .iov_count = 1,
                                                  .dest = dest,
                                                  .data = data,
                                                  .flags = RdFlags::kInject | RdFlags::kData});
}

template <class Lock>
ssize_t ep_dgram_sendv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                       fi_addr_t dest, void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    if (is_bad_iov(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return dgram_send<Lock>(
        ep,
        {.iov = iov, .iov_count = count, .dest = dest, .context = context, .flags = ep.send_flags});
}

/// What a call with flags asks for. Returns: 0, -FI_EBADFLAGS, -FI_EINVAL.
RVT_ALWAYS_INLINE int to_dgram_send(const EpDgram& ep, const fi_msg* msg, std::uint64_t flags,
                                    core::RdSend& request) noexcept {
    if ((flags & ~kDgramSendFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr || is_bad_iov(msg->msg_iov, msg->iov_count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    if ((flags & FI_MULTICAST) != 0 && !core::UdEndpoint::is_group(msg->addr)) [[unlikely]] {
        return -FI_EINVAL;
    }
    request = {.iov = msg->msg_iov,
               .iov_count = msg->iov_count,
               .dest = msg->addr,
               .data = msg->data,
               .context = msg->context,
               .flags = ep.send_base | to_send_flags(flags)};
    return 0;
}

template <class Lock>
ssize_t ep_dgram_sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    EpDgram& ep = EpDgram::from(self);
    core::RdSend request;
    const int refused = to_dgram_send(ep, msg, flags, request);
    return refused == 0 ? dgram_send<Lock>(ep, request) : refused;
}

template <class Lock>
ssize_t ep_dgram_recvv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                       fi_addr_t /*source*/, void* context) noexcept {
    EpDgram& ep = EpDgram::from(self);
    if (is_bad_iov(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return dgram_recv<Lock>(
        ep, {.iov = iov, .iov_count = count, .context = context, .flags = ep.recv_flags});
}

template <class Lock>
ssize_t ep_dgram_recv(fid_ep* self, void* buffer, std::size_t length, void* desc, fi_addr_t source,
                      void* context) noexcept {
    const iovec one{buffer, length};
    return ep_dgram_recvv<Lock>(self, &one, &desc, 1, source, context);
}

/// As to_dgram_send().
RVT_ALWAYS_INLINE int to_dgram_recv(const EpDgram& ep, const fi_msg* msg, std::uint64_t flags,
                                    core::RdRecv& request) noexcept {
    if ((flags & ~kDgramRecvFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (msg == nullptr || is_bad_iov(msg->msg_iov, msg->iov_count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    request = {.iov = msg->msg_iov,
               .iov_count = msg->iov_count,
               .context = msg->context,
               .flags = ep.recv_base | to_recv_flags(flags)};
    return 0;
}

template <class Lock>
ssize_t ep_dgram_recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    EpDgram& ep = EpDgram::from(self);
    core::RdRecv request;
    const int refused = to_dgram_recv(ep, msg, flags, request);
    return refused == 0 ? dgram_recv<Lock>(ep, request) : refused;
}

template <class Lock>
constexpr fi_ops_msg ep_dgram_msg_ops() noexcept {
    return {
        .size = sizeof(fi_ops_msg),
        .recv = ep_dgram_recv<Lock>,
        .recvv = ep_dgram_recvv<Lock>,
        .recvmsg = ep_dgram_recvmsg<Lock>,
        .send = ep_dgram_send<Lock>,
        .sendv = ep_dgram_sendv<Lock>,
        .sendmsg = ep_dgram_sendmsg<Lock>,
        .inject = ep_dgram_inject<Lock>,
        .senddata = ep_dgram_senddata<Lock>,
        .injectdata = ep_dgram_injectdata<Lock>,
    };
}

}  // namespace rvt::ofi
