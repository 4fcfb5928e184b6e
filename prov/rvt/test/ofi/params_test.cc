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

Test(params, a_number_may_have_the_letter_of_its_unit) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "1g", 1);
    setenv("FI_RVT_EAGER_MAX", "64K", 1);
    setenv("FI_RVT_DIRECT_MIN", "0x2000", 1);
    setenv("FI_RVT_ROCE_PORT", "04791", 1);
    define();
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{1} << 30);
    RVT_EQ(rvt::util::param_number(ParamId::kEagerMax), 64 << 10);
    RVT_EQ(rvt::util::param_number(ParamId::kDirectMin), 0x2000);
    RVT_EQ(rvt::util::param_number(ParamId::kRocePort), 4791);
}

Test(params, what_is_no_number_leaves_the_default) {
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "60s", 1);
    setenv("FI_RVT_MR_CACHE_COUNT", "4k", 1);  // counts nothing that has a k
    setenv("FI_RVT_BUSY_POLL_US", "on", 1);
    setenv("FI_RVT_REFUSED_TIMEOUT_MS", "", 1);
    setenv("FI_RVT_EAGER_MAX", "99999999999g", 1);
    setenv("FI_RVT_DIRECT_MIN", "64kb", 1);
    define();
    RVT_EQ(rvt::util::param_number(ParamId::kConnectTimeoutMs), 10000);
    RVT_EQ(rvt::util::param_number(ParamId::kMrCacheCount), 1024);
    RVT_EQ(rvt::util::param_number(ParamId::kBusyPollUs), 50);
    RVT_EQ(rvt::util::param_number(ParamId::kRefusedTimeoutMs), 3000);
    RVT_EQ(rvt::util::param_number(ParamId::kEagerMax), 32 << 10);
    RVT_EQ(rvt::util::param_number(ParamId::kDirectMin), 4 << 10);
}

Test(params, what_is_neither_yes_nor_no_leaves_the_default) {
    setenv("FI_RVT_ROCE", "maybe", 1);
    setenv("FI_RVT_VERBS", "off", 1);
    define();
    RVT_ASSERT(rvt::util::param_is_set(ParamId::kRoce));
    RVT_ASSERT(not(rvt::util::param_is_set(ParamId::kVerbs)));
}

Test(params, the_environment_cannot_leave_the_range) {
    setenv("FI_RVT_UNEXPECTED_BYTES", "7", 1);
    define();
    RVT_EQ(rvt::util::param_number(ParamId::kUnexpectedBytes), std::int64_t{64} << 20);
}
