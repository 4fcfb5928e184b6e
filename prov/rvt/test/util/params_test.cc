// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of parameters and the values it takes.
#include "util/params.h"

#include "common/check.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "util/log.h"

using rvt::util::ParamId;

namespace {

std::string warning;

constexpr rvt::util::LogSink kSink{
    .is_enabled = [](rvt::util::LogLevel, rvt::util::LogArea) noexcept { return true; },
    .write = [](rvt::util::LogLevel, rvt::util::LogArea, const char*, int,
                const char* text) noexcept { warning = text; }};

void listen() {
    rvt::util::set_log_sink(&kSink);
}

}  // namespace

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

Test(params, yes_and_no_have_all_the_words_of_libfabric, .init = listen) {
    for (const char* yes : {"yes", "1", "true", "on", "YES"}) {
        rvt::util::set_param_number(ParamId::kHostRemote, 0);
        rvt::util::parse_param_bool(ParamId::kHostRemote, yes);
        RVT_ASSERT(rvt::util::param_is_set(ParamId::kHostRemote));
    }
    for (const char* no : {"no", "0", "false", "off", "Off"}) {
        rvt::util::set_param_number(ParamId::kRoce, 1);
        rvt::util::parse_param_bool(ParamId::kRoce, no);
        RVT_ASSERT(not(rvt::util::param_is_set(ParamId::kRoce)));
    }
    cr_assert(warning.empty(), "%s", warning.c_str());
}

Test(params, what_is_neither_yes_nor_no_leaves_the_default, .init = listen) {
    for (const char* neither : {"2", "", "maybe", "yes "}) {
        warning.clear();
        rvt::util::parse_param_bool(ParamId::kRoce, neither);
        RVT_ASSERT(rvt::util::param_is_set(ParamId::kRoce));
        RVT_ASSERT(warning == "parameter roce: " + std::string(neither) +
                                  " given, yes or no possible (or 1 and 0, true and false, on and "
                                  "off); yes is used");
    }
    rvt::util::parse_param_bool(ParamId::kHostRemote, "2");
    RVT_ASSERT(warning.ends_with("; no is used"));
}

Test(params, a_number_between_the_steps_leaves_the_default, .init = listen) {
    for (const std::int64_t payload : {64, 192, 255, 300, 8959}) {
        warning.clear();
        rvt::util::set_param_number(ParamId::kRoceMtu, payload);
        RVT_EQ(rvt::util::param_number(ParamId::kRoceMtu), 0);
        RVT_ASSERT(warning == "parameter roce_mtu: " + std::to_string(payload) +
                                  " given, 0 or from 256 to 8960 in steps of 64 possible, or with "
                                  "k, m or g behind the number; 0 is used");
    }
    for (const std::int64_t payload : {0, 256, 1408, 8960}) {
        rvt::util::set_param_number(ParamId::kRoceMtu, payload);
        RVT_EQ(rvt::util::param_number(ParamId::kRoceMtu), payload);
    }
}

Test(params, every_one_has_a_help_text_and_a_range_that_holds_its_default) {
    for (const rvt::util::Param& param : rvt::util::all_params()) {
        RVT_ASSERT(std::string_view(param.help).size() > 20);
        RVT_ASSERT(param.min <= param.default_number);
        RVT_ASSERT(param.max >= param.default_number);
    }
}
