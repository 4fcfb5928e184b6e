// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of parameters and the values it takes.
#include "util/params.h"

#include "common/check.h"

#include <cstdint>
#include <string_view>

using rvt::util::ParamId;

Test(params, each_has_its_default_when_the_user_gives_nothing) {
    RVT_EQ(rvt::util::param_number(ParamId::kHostRemote), 0);
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
}

Test(params, a_value_in_range_is_taken) {
    rvt::util::set_param_number(ParamId::kHostRemote, 1);
    rvt::util::set_param_number(ParamId::kEagerMax, 256);
    RVT_ASSERT(rvt::util::param_is_set(ParamId::kHostRemote));
    RVT_EQ(rvt::util::param_number(ParamId::kEagerMax), 256);
}

Test(params, a_value_out_of_range_leaves_the_default) {
    rvt::util::set_param_number(ParamId::kUnexpectedBytes, 7);
    rvt::util::set_param_number(ParamId::kDirectMin, INT64_MAX);
    rvt::util::set_param_number(ParamId::kRoceFlows, -1);
    RVT_EQ(rvt::util::param_number(ParamId::kRoceFlows), 1 << 16);
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
    RVT_EQ(rvt::util::param_number(ParamId::kDirectMin), std::int64_t{4} << 10);
}

Test(params, every_one_has_a_help_text_and_a_range_that_holds_its_default) {
    for (const rvt::util::Param& param : rvt::util::all_params()) {
        RVT_ASSERT(std::string_view(param.help).size() > 20);
        RVT_ASSERT(param.min <= param.default_number);
        RVT_ASSERT(param.max >= param.default_number);
    }
}
