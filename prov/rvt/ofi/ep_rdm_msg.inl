// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) over an engine. Each callback translates its arguments and is done; the engine's code
// is inlined here.
#pragma once

#include "ofi/ep_rdm_engine.h"

namespace rvt::ofi {

template <class Engine>
ssize_t ep_rdm_send(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                    fi_addr_t dest, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template send_one<RdFlags::kNone>(buffer, length, dest, 0, 0, context,
                                                           ep.send_flags));
}

template <class Engine>
ssize_t ep_rdm_senddata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                        std::uint64_t data, fi_addr_t dest, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template send_one<RdFlags::kData>(buffer, length, dest, 0, data, context,
                                                           ep.send_flags));
}

template <class Engine>
ssize_t ep_rdm_inject(fid_ep* self, const void* buffer, std::size_t length,
                      fi_addr_t dest) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template send_one<RdFlags::kInject>(buffer, length, dest, 0, 0, nullptr,
                                                             RdFlags::kNone));
}

template <class Engine>
ssize_t ep_rdm_injectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                          fi_addr_t dest) noexcept {
    constexpr RdFlags kFixed = RdFlags::kInject | RdFlags::kData;
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(
        ep.over.template send_one<kFixed>(buffer, length, dest, 0, data, nullptr, RdFlags::kNone));
}

template <class Engine>
ssize_t ep_rdm_sendv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t dest, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if (is_bad_list(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.send({.iov = iov,
                               .iov_count = count,
                               .dest = dest,
                               .context = context,
                               .flags = ep.send_flags}));
}

template <class Engine>
ssize_t ep_rdm_sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kSendFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (is_bad_message(msg)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.send({.iov = msg->msg_iov,
                               .iov_count = msg->iov_count,
                               .dest = msg->addr,
                               .data = msg->data,
                               .context = msg->context,
                               .flags = ep.send_flags_of(flags)}));
}

template <class Engine>
ssize_t ep_rdm_recv(fid_ep* self, void* buffer, std::size_t length, void* /*desc*/,
                    fi_addr_t source, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template recv_one<RdFlags::kNone>(buffer, length, source | ep.source_mask,
                                                           0, 0, context, ep.recv_flags));
}

template <class Engine>
ssize_t ep_rdm_recvv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t source, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if (is_bad_list(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.recv({.iov = iov,
                               .iov_count = count,
                               .source = source | ep.source_mask,
                               .context = context,
                               .flags = ep.recv_flags}));
}

template <class Engine>
ssize_t ep_rdm_recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kRecvFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (is_bad_message(msg)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.recv({.iov = msg->msg_iov,
                               .iov_count = msg->iov_count,
                               .source = msg->addr | ep.source_mask,
                               .context = msg->context,
                               .flags = ep.recv_flags_of(flags)}));
}

template <class Engine>
constexpr fi_ops_msg ep_rdm_msg_ops() noexcept {
    return {
        .size = sizeof(fi_ops_msg),
        .recv = ep_rdm_recv<Engine>,
        .recvv = ep_rdm_recvv<Engine>,
        .recvmsg = ep_rdm_recvmsg<Engine>,
        .send = ep_rdm_send<Engine>,
        .sendv = ep_rdm_sendv<Engine>,
        .sendmsg = ep_rdm_sendmsg<Engine>,
        .inject = ep_rdm_inject<Engine>,
        .senddata = ep_rdm_senddata<Engine>,
        .injectdata = ep_rdm_injectdata<Engine>,
    };
}

}  // namespace rvt::ofi
