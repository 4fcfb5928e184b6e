// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_tagged(3) over an engine.
#pragma once

#include "ofi/ep_rdm_engine.h"

namespace rvt::ofi {

template <class Engine>
ssize_t ep_rdm_tsend(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                     fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template send_one<RdFlags::kTagged>(buffer, length, dest, tag, 0, context,
                                                             ep.send_flags));
}

template <class Engine>
ssize_t ep_rdm_tsenddata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                         std::uint64_t data, fi_addr_t dest, std::uint64_t tag,
                         void* context) noexcept {
    constexpr RdFlags kFixed = RdFlags::kTagged | RdFlags::kData;
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(
        ep.over.template send_one<kFixed>(buffer, length, dest, tag, data, context, ep.send_flags));
}

template <class Engine>
ssize_t ep_rdm_tinject(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                       std::uint64_t tag) noexcept {
    constexpr RdFlags kFixed = RdFlags::kTagged | RdFlags::kInject;
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(
        ep.over.template send_one<kFixed>(buffer, length, dest, tag, 0, nullptr, RdFlags::kNone));
}

template <class Engine>
ssize_t ep_rdm_tinjectdata(fid_ep* self, const void* buffer, std::size_t length, std::uint64_t data,
                           fi_addr_t dest, std::uint64_t tag) noexcept {
    constexpr RdFlags kFixed = RdFlags::kTagged | RdFlags::kInject | RdFlags::kData;
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(ep.over.template send_one<kFixed>(buffer, length, dest, tag, data, nullptr,
                                                   RdFlags::kNone));
}

template <class Engine>
ssize_t ep_rdm_tsendv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                      fi_addr_t dest, std::uint64_t tag, void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if (is_bad_list(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.send({.iov = iov,
                               .iov_count = count,
                               .dest = dest,
                               .tag = tag,
                               .context = context,
                               .flags = ep.send_flags | RdFlags::kTagged}));
}

template <class Engine>
ssize_t ep_rdm_tsendmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
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
                               .tag = msg->tag,
                               .data = msg->data,
                               .context = msg->context,
                               .flags = ep.send_flags_of(flags) | RdFlags::kTagged}));
}

template <class Engine>
ssize_t ep_rdm_trecv(fid_ep* self, void* buffer, std::size_t length, void* /*desc*/,
                     fi_addr_t source, std::uint64_t tag, std::uint64_t ignore,
                     void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return to_fi(
        ep.over.template recv_one<RdFlags::kTagged>(buffer, length, source | ep.tagged_source_mask,
                                                    tag, ignore, context, ep.tagged_recv_flags));
}

template <class Engine>
ssize_t ep_rdm_trecvv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                      fi_addr_t source, std::uint64_t tag, std::uint64_t ignore,
                      void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if (is_bad_list(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.recv({.iov = iov,
                               .iov_count = count,
                               .source = source | ep.tagged_source_mask,
                               .tag = tag,
                               .ignore = ignore,
                               .context = context,
                               .flags = ep.tagged_recv_flags | RdFlags::kTagged}));
}

template <class Engine>
ssize_t ep_rdm_trecvmsg(fid_ep* self, const fi_msg_tagged* msg, std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kTaggedRecvFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    if (is_bad_message(msg)) [[unlikely]] {
        return -FI_EINVAL;
    }
    if (ep.lacks_answer(flags)) [[unlikely]] {
        return -FI_ENOCQ;
    }
    return to_fi(ep.over.recv({.iov = msg->msg_iov,
                               .iov_count = msg->iov_count,
                               .source = msg->addr | ep.tagged_source_mask,
                               .tag = msg->tag,
                               .ignore = msg->ignore,
                               .context = msg->context,
                               .flags = ep.recv_flags_of(flags) | RdFlags::kTagged}));
}

template <class Engine>
constexpr fi_ops_tagged ep_rdm_tagged_ops() noexcept {
    return {
        .size = sizeof(fi_ops_tagged),
        .recv = ep_rdm_trecv<Engine>,
        .recvv = ep_rdm_trecvv<Engine>,
        .recvmsg = ep_rdm_trecvmsg<Engine>,
        .send = ep_rdm_tsend<Engine>,
        .sendv = ep_rdm_tsendv<Engine>,
        .sendmsg = ep_rdm_tsendmsg<Engine>,
        .inject = ep_rdm_tinject<Engine>,
        .senddata = ep_rdm_tsenddata<Engine>,
        .injectdata = ep_rdm_tinjectdata<Engine>,
    };
}

}  // namespace rvt::ofi
