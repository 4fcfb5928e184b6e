// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the calls of fi_msg(3) and fi_rma(3) on connected endpoints have in common: lists of
// buffers, flags, and the posting of a request, which is in ep_msg_post.cc.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "core/qp.h"
#include "core/rd_types.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/device_use.h"
#include "ofi/ep_msg.h"
#include "ofi/errors.h"
#include "ofi/mr.h"

namespace rvt::ofi {

inline constexpr std::uint64_t kPostFlags = FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA |
                                            FI_MORE | FI_FENCE | FI_INJECT_COMPLETE |
                                            FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
inline constexpr std::uint64_t kNoFlags = 0;

inline std::uint64_t number_of(const MsgOp* op) noexcept {
    return reinterpret_cast<std::uintptr_t>(op);
}

inline bool is_bad_msg_list(const void* list, std::size_t count) noexcept {
    return count > kMsgIov || (list == nullptr && count != 0);
}
template <class Message>
bool is_bad(const Message* message) noexcept {
    return message == nullptr || is_bad_msg_list(message->msg_iov, message->iov_count);
}

/// How local buffers are named in work requests.
struct Naming {
    std::uint32_t key;  // of what has no descriptor
    bool is_nic;        // where that is nothing but the scratch word, or copied by the post
    bool has_memory;    // of a NIC, for what has none
    bool is_copied = false;
    const void* scratch = nullptr;
    bool is_held = false;  // what is staged is named where its copy is

    bool name(Sge& element, const void* desc) const noexcept {
        if (desc == nullptr) {
            if (!is_nic || is_copied || element.length == 0 ||
                element.addr == reinterpret_cast<std::uintptr_t>(scratch)) {
                return true;
            }
            element.lkey = NicMemory::kNone;
            return has_memory;
        }
        if (is_nic) {
            return to_nic(element, desc) || is_held;
        }
        return to_device(element, desc);
    }
};

inline Naming naming_of(const EpMsg& ep, bool is_copied, bool is_held) noexcept {
    MsgDomain& msg = *ep.domain->msg;
    return {.key = msg.local_key(),
            .is_nic = ep.domain->nic != nullptr,
            .has_memory = msg.nic_memory() != nullptr,
            .is_copied = is_copied,
            .scratch = msg.scratch(),
            .is_held = is_held};
}

/// Whether a message through copies goes there a part at a time. A NIC needs all of it at once, and
/// what is short is copied in the call.
inline bool is_in_stages(const EpMsg& ep, std::uint64_t bytes) noexcept {
    return ep.domain->nic == nullptr && bytes > core::kMaxStagedSize;
}

/// The elements of a work request.
template <std::size_t kMost>
struct Elements {
    std::array<Sge, kMost> list;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    bool lacks_key = false;
    bool is_beyond_cpu = false;  // some of it only the NIC reaches

    [[nodiscard]] std::span<Sge> elements() noexcept { return {list.data(), count}; }
    /// @tparam kIsReceive  Of its buffers, which may be longer, it is what a message can fill.
    /// @param most  Bytes of a message.
    /// Returns: -FI_EMSGSIZE for more than a message may hold, -FI_EINVAL for a buffer that is not
    /// within the region of its descriptor, or lacks one that it needs.
    template <bool kIsReceive = false>
    int fill(const iovec* iov, void* const* desc, std::size_t n, const Naming& naming,
             std::uint64_t most) noexcept {
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint64_t left = most - bytes;
            if (!kIsReceive && iov[i].iov_len > left) {
                return -FI_EMSGSIZE;
            }
            const std::uint64_t length = std::min<std::uint64_t>(iov[i].iov_len, left);
            list[i] = {.addr = reinterpret_cast<std::uintptr_t>(iov[i].iov_base),
                       .length = static_cast<std::uint32_t>(length),
                       .lkey = naming.key};
            const void* const region = desc != nullptr ? desc[i] : nullptr;
            if (!naming.name(list[i], region)) [[unlikely]] {
                return -FI_EINVAL;
            }
            is_beyond_cpu |= region != nullptr && naming.is_nic && is_imported(region);
            lacks_key |= list[i].lkey == NicMemory::kNone;
            bytes += length;
        }
        count = n;
        return 0;
    }
};

/// Where neither a NIC nor memory of devices is, descriptors say nothing.
inline void* const* desc_of(const EpMsg& ep, void* const* desc) noexcept {
    return ep.domain->nic != nullptr || (ep.domain->caps & FI_HMEM) != 0 ? desc : nullptr;
}

inline core::Counter* counter_of(const Cntr* cntr) noexcept {
    return cntr != nullptr ? &const_cast<Cntr*>(cntr)->counter : nullptr;
}

/// What a queue that is full, or a pair that has failed, means to the application.
inline ssize_t post_result(util::Status status) noexcept {
    return status.error() == ENOMEM ? -FI_EAGAIN : to_fi(status);
}

/// Whether the application has to read first: the queue holds more than it was made for.
inline bool must_wait(const Cq* cq) noexcept {
    return cq != nullptr && cq->queue->has_overflow();
}

/// With its own flags a call completes as they say, without as the endpoint's defaults do.
inline std::uint64_t flags_of_call(const EpMsg& ep, std::uint64_t flags) noexcept {
    return flags | (ep.is_tx_selective ? kNoFlags : FI_COMPLETION);
}
inline std::uint64_t default_flags(const EpMsg& ep) noexcept {
    return flags_of_call(ep, ep.tx_op_flags);
}

/// Posts a request under the domain's lock, however long its lists are.
ssize_t msg_post_any(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                     std::size_t count) noexcept;
/// What is injected is copied from where the CPU has it, before the call returns. Results, which
/// come later, are those of any request.
ssize_t msg_inject_from_device(EpMsg& ep, const MsgPost& post, const iovec* iov, void* const* desc,
                               std::size_t count) noexcept;

inline ssize_t msg_post(EpMsg& ep, const MsgPost& post, const iovec* iov,
                        std::size_t count) noexcept {
    void* const* const desc = desc_of(ep, post.desc);
    const bool is_injected = (post.flags & FI_INJECT) != 0;
    if (desc != nullptr && is_injected && (ep.domain->caps & FI_HMEM) != 0) [[unlikely]] {
        return msg_inject_from_device(ep, post, iov, desc, count);
    }
    return msg_post_any(ep, post, iov, desc, count);
}

}  // namespace rvt::ofi
