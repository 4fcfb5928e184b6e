// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// All tables of an engine's data path. Included by the composition root only, once for each engine.
#pragma once

#include "ofi/ep_rdm_atomic.inl"
#include "ofi/ep_rdm_msg.inl"
#include "ofi/ep_rdm_rma.inl"
#include "ofi/ep_rdm_tagged.inl"

namespace rvt::ofi {

/// @param create  Makes an EpRdmOver<Engine> for a domain whose lock has the engine's policy.
template <RdEngineType Engine>
constexpr RdmOps rdm_ops(EpRdm* (*create)(Domain&, const core::RdAttr&)) noexcept {
    return {
        .tables = {.msg = ep_rdm_msg_ops<Engine>(),
                   .tagged = ep_rdm_tagged_ops<Engine>(),
                   .rma = ep_rdm_rma_ops<Engine>(),
                   .atomic = ep_rdm_atomic_ops<Engine>()},
        .create = create,
    };
}

}  // namespace rvt::ofi
