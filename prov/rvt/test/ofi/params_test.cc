// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Parameters as the environment gives them.
#include "ofi/params.h"

#include "common/check.h"

#include <cstdint>
#include <cstdlib>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

#include "util/params.h"

using rvt::util::ParamId;

namespace {

void define() {
    static fi_provider provider = {.version = 1,
                                   .fi_version = fi_version(),
                                   .context = {},
                                   .name = "rvt",
                                   .getinfo = nullptr,
                                   .fabric = nullptr,
                                   .cleanup = nullptr};
    rvt::ofi::define_params(&provider);
}

}  // namespace

Test(params, the_environment_sets_a_value) {
    setenv("FI_RVT_HOST_REMOTE", "1", 1);
    setenv("FI_RVT_UNEXPECTED_BYTES", "1048576", 1);
    define();
    RVT_ASSERT(rvt::util::param_is_set(ParamId::kHostRemote));
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), 1048576);
}

Test(params, the_environment_sets_a_text) {
    setenv("FI_RVT_FAULT", "drop=1%", 1);
    define();
    RVT_ASSERT(rvt::util::param_text(ParamId::kFault) == "drop=1%");
    RVT_ASSERT(rvt::util::param_text(ParamId::kPcap).empty());
}

Test(params, the_environment_cannot_leave_the_range) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "7", 1);
    define();
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
}
