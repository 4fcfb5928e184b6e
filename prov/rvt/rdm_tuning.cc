// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads the parameters that tune the RD service.
#include "rdm_tuning.h"

#include <algorithm>

#include "util/params.h"

namespace rvt {

core::RdTuning rdm_tuning() noexcept {
    const auto bytes = [](util::ParamId id) {
        return static_cast<std::size_t>(util::param_number(id));
    };
    core::RdTuning tuning;
    tuning.eager_max = bytes(util::ParamId::kEagerMax);
    tuning.wire_eager_max = std::max(bytes(util::ParamId::kWireEagerMax), tuning.eager_max);
    tuning.rendezvous_headers = bytes(util::ParamId::kRendezvousHeaders);
    tuning.direct_min = bytes(util::ParamId::kDirectMin);
    return tuning;
}

}  // namespace rvt
