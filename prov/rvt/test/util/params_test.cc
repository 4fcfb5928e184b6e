// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Parameters as the environment gives them.
#include "util/params.h"

#include "common/check.h"

#include <cstdlib>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

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
    rvt::util::define_params(&provider);
}

}  // namespace

Test(params, each_has_its_default_before_anybody_asks) {
    RVT_EQ(rvt::util::param_number(ParamId::kHostRemote), 0);
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
}

Test(params, the_environment_sets_a_value) {
    setenv("FI_RVT_HOST_REMOTE", "1", 1);
    setenv("FI_RVT_UNEXPECTED_BYTES", "1048576", 1);
    define();
    cr_assert(rvt::util::param_is_set(ParamId::kHostRemote));
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), 1048576);
}

Test(params, a_value_out_of_range_leaves_the_default) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "7", 1);
    define();
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
}

Test(params, every_one_has_a_help_text_and_a_range_that_holds_its_default) {
    for (const rvt::util::Param& param : rvt::util::all_params()) {
        cr_assert(std::string_view(param.help).size() > 20);
        cr_assert(param.min <= param.default_number);
        cr_assert(param.max >= param.default_number);
    }
}
