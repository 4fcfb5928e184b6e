// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_rma(3) over an engine.
#pragma once

#include <cstddef>

#include "ofi/ep_rdm_engine.h"
#include "util/iov_cursor.h"

namespace rvt::ofi {

// The application's list of remote pieces is read in place.
static_assert(sizeof(fi_rma_iov) == sizeof(core::RdRemote) &&
              offsetof(fi_rma_iov, addr) == offsetof(core::RdRemote, addr) &&
              offsetof(fi_rma_iov, len) == offsetof(core::RdRemote, len) &&
              offsetof(fi_rma_iov, key) == offsetof(core::RdRemote, key));

/// A transfer between `iov` and one remote piece of the same length.
template <class Engine>
RVT_ALWAYS_INLINE ssize_t ep_rdm_access(EpRdmOver<Engine>& ep, bool is_write, const iovec* iov,
                                        std::size_t count, fi_addr_t peer, std::uint64_t addr,
                                        std::uint64_t key, std::uint64_t data, void* context,
                                        RdFlags flags) noexcept {
    if (is_bad_list(iov, count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    const core::RdRemote remote{.addr = addr, .len = util::iov_length(iov, count), .key = key};
    return to_fi(ep.over.rma({.is_write = is_write,
                              .iov = iov,
                              .iov_count = count,
                              .remote = &remote,
                              .remote_count = 1,
                              .dest = peer,
                              .data = data,
                              .context = context,
                              .flags = flags}));
}

/// The same with one local buffer.
template <class Engine>
RVT_ALWAYS_INLINE ssize_t ep_rdm_access_one(EpRdmOver<Engine>& ep, bool is_write,
                                            const void* buffer, std::size_t length, fi_addr_t peer,
                                            std::uint64_t addr, std::uint64_t key,
                                            std::uint64_t data, void* context,
                                            RdFlags flags) noexcept {
    const iovec local{const_cast<void*>(buffer), length};
    const core::RdRemote remote{.addr = addr, .len = length, .key = key};
    return to_fi(ep.over.rma({.is_write = is_write,
                              .iov = &local,
                              .iov_count = 1,
                              .remote = &remote,
                              .remote_count = 1,
                              .dest = peer,
                              .data = data,
                              .context = context,
                              .flags = flags}));
}

template <class Engine>
RVT_ALWAYS_INLINE ssize_t ep_rdm_access_msg(EpRdmOver<Engine>& ep, bool is_write,
                                            const fi_msg_rma* msg, RdFlags flags) noexcept {
    if (is_bad_message(msg) || is_bad_list(msg->rma_iov, msg->rma_iov_count)) [[unlikely]] {
        return -FI_EINVAL;
    }
    return to_fi(ep.over.rma({.is_write = is_write,
                              .iov = msg->msg_iov,
                              .iov_count = msg->iov_count,
                              .remote = reinterpret_cast<const core::RdRemote*>(msg->rma_iov),
                              .remote_count = msg->rma_iov_count,
                              .dest = msg->addr,
                              .data = msg->data,
                              .context = msg->context,
                              .flags = flags}));
}

template <class Engine>
ssize_t ep_rdm_read(fid_ep* self, void* buffer, std::size_t length, void* /*desc*/,
                    fi_addr_t source, std::uint64_t addr, std::uint64_t key,
                    void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access_one(ep, false, buffer, length, source, addr, key, 0, context,
                             ep.access_flags & ~RdFlags::kInject);
}

template <class Engine>
ssize_t ep_rdm_readv(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                     fi_addr_t source, std::uint64_t addr, std::uint64_t key,
                     void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access(ep, false, iov, count, source, addr, key, 0, context,
                         ep.access_flags & ~RdFlags::kInject);
}

template <class Engine>
ssize_t ep_rdm_readmsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kReadFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    return ep_rdm_access_msg(ep, false, msg, ep.access_flags_of(flags));
}

template <class Engine>
ssize_t ep_rdm_write(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                     fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                     void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access_one(ep, true, buffer, length, dest, addr, key, 0, context,
                             ep.access_flags);
}

template <class Engine>
ssize_t ep_rdm_writev(fid_ep* self, const iovec* iov, void** /*desc*/, std::size_t count,
                      fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                      void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access(ep, true, iov, count, dest, addr, key, 0, context, ep.access_flags);
}

template <class Engine>
ssize_t ep_rdm_writemsg(fid_ep* self, const fi_msg_rma* msg, std::uint64_t flags) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    if ((flags & ~kSendFlags) != 0) [[unlikely]] {
        return -FI_EBADFLAGS;
    }
    return ep_rdm_access_msg(ep, true, msg, ep.access_flags_of(flags));
}

template <class Engine>
ssize_t ep_rdm_inject_write(fid_ep* self, const void* buffer, std::size_t length, fi_addr_t dest,
                            std::uint64_t addr, std::uint64_t key) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access_one(ep, true, buffer, length, dest, addr, key, 0, nullptr,
                             ep.inject_access_flags);
}

template <class Engine>
ssize_t ep_rdm_writedata(fid_ep* self, const void* buffer, std::size_t length, void* /*desc*/,
                         std::uint64_t data, fi_addr_t dest, std::uint64_t addr, std::uint64_t key,
                         void* context) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access_one(ep, true, buffer, length, dest, addr, key, data, context,
                             ep.access_flags | RdFlags::kData);
}

template <class Engine>
ssize_t ep_rdm_inject_writedata(fid_ep* self, const void* buffer, std::size_t length,
                                std::uint64_t data, fi_addr_t dest, std::uint64_t addr,
                                std::uint64_t key) noexcept {
    auto& ep = EpRdmOver<Engine>::from(self);
    return ep_rdm_access_one(ep, true, buffer, length, dest, addr, key, data, nullptr,
                             ep.inject_access_flags | RdFlags::kData);
}

template <class Engine>
constexpr fi_ops_rma ep_rdm_rma_ops() noexcept {
    return {
        .size = sizeof(fi_ops_rma),
        .read = ep_rdm_read<Engine>,
        .readv = ep_rdm_readv<Engine>,
        .readmsg = ep_rdm_readmsg<Engine>,
        .write = ep_rdm_write<Engine>,
        .writev = ep_rdm_writev<Engine>,
        .writemsg = ep_rdm_writemsg<Engine>,
        .inject = ep_rdm_inject_write<Engine>,
        .writedata = ep_rdm_writedata<Engine>,
        .injectdata = ep_rdm_inject_writedata<Engine>,
    };
}

}  // namespace rvt::ofi
