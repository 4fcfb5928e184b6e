// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) of datagram endpoints whose buffers may be memory of a device (FI_HMEM). Each is looked
// up by its descriptor before the endpoint sees it; what is not a device's goes the way of ordinary
// memory.
#pragma once

#include <algorithm>
#include <array>

#include "ofi/device_use.h"
#include "ofi/ep_by_msg.inl"
#include "ofi/ep_dgram_msg.inl"

namespace rvt::ofi {

/// What the calls with flags do. They refuse what those for ordinary memory refuse.
struct DgramToDevice {
    /// In a call FI_MULTICAST refuses what is no group; as a default it refuses nothing.
    static std::uint64_t tx_op_flags(fid_ep* self) noexcept {
        return EpDgram::from(self).tx_op_flags & kDgramSendFlags & ~std::uint64_t{FI_MULTICAST};
    }
    static std::uint64_t rx_op_flags(fid_ep* self) noexcept {
        return EpDgram::from(self).rx_op_flags & kDgramRecvFlags;
    }

    static ssize_t sendmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        EpDgram& ep = EpDgram::from(self);
        core::RdSend request;
        const int refused = to_dgram_send(ep, msg, flags, request);
        if (refused != 0) {
            return refused;
        }
        if (ep.endpoint.is_too_long(request)) {
            return -FI_EMSGSIZE;  // of which nothing is copied
        }
        return hand_over(ep, request, msg->desc, core::CpuAccess::kRead,
                         [&](const auto& each) { return ep.endpoint.send_locked(each); });
    }
    static ssize_t recvmsg(fid_ep* self, const fi_msg* msg, std::uint64_t flags) noexcept {
        EpDgram& ep = EpDgram::from(self);
        core::RdRecv request;
        const int refused = to_dgram_recv(ep, msg, flags, request);
        if (refused != 0) {
            return refused;
        }
        return hand_over(ep, request, msg->desc, core::CpuAccess::kWrite,
                         [&](const auto& each) { return ep.endpoint.recv_locked(each); });
    }

  private:
    /// Posts it with `post`, its buffers where the CPU has them. Those of what is injected are free
    /// on return.
    template <class Request, class Post>
    static ssize_t hand_over(EpDgram& ep, Request request, void* const* desc,
                             core::CpuAccess access, Post post) noexcept {
        std::array<iovec, core::kMaxIov> iov;
        std::copy_n(request.iov, request.iov_count, iov.begin());
        const util::Guard<DomainLock> guard(ep.domain->lock);
        DeviceBuffers device(ep.device_uses, nullptr);
        int refused = device.take(iov.data(), desc, request.iov_count, access);
        refused = refused == 0 ? device.refresh() : refused;
        if (refused != 0) {
            return refused;
        }
        request.iov = iov.data();
        const bool is_held = !has(request.flags, RdFlags::kInject);
        if (is_held) {
            device.put_into(request);
        }
        const util::Status posted = post(request);
        if (posted.is_ok() && is_held) {
            device.keep();
        }
        return to_fi(posted);
    }
};

// ---- the commonest calls, straight on where there is no descriptor ----

template <class Lock>
ssize_t dgram_device_send(fid_ep* self, const void* buffer, std::size_t length, void* desc,
                          fi_addr_t dest, void* context) noexcept {
    return desc == nullptr
               ? ep_dgram_send<Lock>(self, buffer, length, desc, dest, context)
               : MsgByMsg<DgramToDevice>::send(self, buffer, length, desc, dest, context);
}
template <class Lock>
ssize_t dgram_device_recv(fid_ep* self, void* buffer, std::size_t length, void* desc,
                          fi_addr_t source, void* context) noexcept {
    return desc == nullptr
               ? ep_dgram_recv<Lock>(self, buffer, length, desc, source, context)
               : MsgByMsg<DgramToDevice>::recv(self, buffer, length, desc, source, context);
}

template <class Lock>
constexpr fi_ops_msg ep_dgram_device_ops() noexcept {
    fi_ops_msg ops = MsgByMsg<DgramToDevice>::table();
    ops.send = dgram_device_send<Lock>;
    ops.recv = dgram_device_recv<Lock>;
    ops.inject = ep_dgram_inject<Lock>;
    ops.injectdata = ep_dgram_injectdata<Lock>;
    return ops;
}

}  // namespace rvt::ofi
