// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint with its engine inside: from the fid_ep that a call hands in to the engine is an
// addition, not a load. The composition root instantiates this for each engine it offers; ofi/
// knows the engine by this concept only.
#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include "core/rd_endpoint.h"
#include "core/rd_types.h"
#include "ofi/ep_rdm.h"
#include "ofi/errors.h"

namespace rvt::ofi {

/// What the data path calls. Members are not virtual and meant to be inlined.
template <class E>
concept RdEngineType = std::derived_from<E, core::RdEndpoint> &&
    requires(E engine, const void* from, void* to, std::size_t n, std::uint64_t u, RdFlags flags,
             const core::RdSend& send, const core::RdRecv& recv, const core::RdRma& rma,
             const core::RdAtomic& atomic) {
    typename E::Lock;
    { engine.template send_one<RdFlags::kTagged>(from, n, u, u, u, to, flags) }
    noexcept->std::same_as<util::Status>;
    { engine.template recv_one<RdFlags::kTagged>(to, n, u, u, u, to, flags) }
    noexcept->std::same_as<util::Status>;
    { engine.send(send) }
    noexcept->std::same_as<util::Status>;
    { engine.recv(recv) }
    noexcept->std::same_as<util::Status>;
    { engine.rma(rma) }
    noexcept->std::same_as<util::Status>;
    { engine.atomic(atomic) }
    noexcept->std::same_as<util::Status>;
};

template <RdEngineType Engine>
struct EpRdmOver : EpRdm {
    template <class... Arguments>
    explicit EpRdmOver(Arguments&&... arguments) : over(std::forward<Arguments>(arguments)...) {
        engine = &over;
        destroy = [](EpRdm* self) noexcept { delete static_cast<EpRdmOver*>(self); };
    }
    RVT_ALWAYS_INLINE static EpRdmOver& from(fid_ep* self) noexcept {
        return static_cast<EpRdmOver&>(EpRdm::from(self));
    }

    Engine over;
};

/// Whether a list of buffers cannot be taken: too long, or not there.
RVT_ALWAYS_INLINE bool is_bad_list(const void* list, std::size_t count) noexcept {
    return count > core::kMaxIov || (list == nullptr && count != 0);
}
template <class Message>
RVT_ALWAYS_INLINE bool is_bad_message(const Message* message) noexcept {
    return message == nullptr || is_bad_list(message->msg_iov, message->iov_count);
}

}  // namespace rvt::ofi
