// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One instance of the data path for one lock policy. Each is compiled in a file of its own,
// rdm_ops_*.cc, since the three together are most of the time that a build takes.
#pragma once

#include "core/rd_engine.h"
#include "ofi/domain.h"
#include "ofi/ep_rdm_ops.inl"
#include "rdm_station.h"
#include "rdm_tuning.h"
#include "roce_tuning.h"

namespace rvt {

template <class Lock>
ofi::EpRdm* make_rdm(ofi::Domain& domain, const core::RdAttr& attr) {
    using Engine = core::RdEngine<Lock, RdmHost>;
    return new ofi::EpRdmOver<Engine>(domain.lock.as<Lock>(), attr, rdm_tuning(), domain.rd_keys(),
                                      packet_capture());
}

/// What ofi/ needs to know of the instance.
template <class Lock>
constexpr ofi::RdmOps rdm_ops_for() noexcept {
    return ofi::rdm_ops<core::RdEngine<Lock, RdmHost>>(make_rdm<Lock>);
}

}  // namespace rvt
