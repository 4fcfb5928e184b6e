// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What users ask of packet devices, and what they are told when it cannot be read.
#include "roce_tuning.h"

#include "common/check.h"
#include "common/process.h"
#include "protocol/capture.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "util/log.h"
#include "util/params.h"

using namespace rvt;
using util::ParamId;

namespace {

std::string warnings;

constexpr util::LogSink kSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kWarn; },
    .write =
        [](util::LogLevel, util::LogArea, const char*, int, const char* text) noexcept {
            warnings += text;
            warnings += '\n';
        }};

void listen() {
    util::set_log_sink(&kSink);
}

}  // namespace

Test(roce_tuning, nothing_is_asked_for_by_default, .init = listen) {
    RVT_ASSERT(not(packet_faults().has_faults()));
    RVT_ASSERT(packet_capture() == nullptr);
    RVT_ASSERT(warnings.empty());
}

Test(roce_tuning, faults_are_those_of_the_parameter, .init = listen) {
    util::set_param_text(ParamId::kFault, "drop=1%,delay=0.5%:200us,seed=7");
    const protocol::FaultPlan wanted{.drop = 10'000, .delay = 5'000, .delay_us = 200, .seed = 7};
    RVT_ASSERT(packet_faults() == wanted);
    RVT_ASSERT(warnings.empty());
}

Test(roce_tuning, a_part_that_cannot_be_read_is_named, .init = listen) {
    util::set_param_text(ParamId::kFault, "drop=1%,lose=2%,seed=7");
    RVT_ASSERT(packet_faults() == protocol::FaultPlan{});
    cr_assert(warnings.find("\"lose=2%\"") != std::string::npos, "%s", warnings.c_str());
}

Test(roce_tuning, a_part_that_is_empty_is_said_to_be, .init = listen) {
    util::set_param_text(ParamId::kFault, "drop=1%,,");
    RVT_ASSERT(packet_faults() == protocol::FaultPlan{});
    cr_assert(warnings.find("cannot read \"drop=1%,,\": a part is empty") != std::string::npos,
              "%s", warnings.c_str());
}

Test(roce_tuning, what_cannot_be_read_is_said_once_for_all_devices, .init = listen) {
    util::set_param_text(ParamId::kFault, "lose=2%");
    RVT_ASSERT(packet_faults() == protocol::FaultPlan{});
    RVT_ASSERT(packet_faults() == protocol::FaultPlan{});
    RVT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1);
}

Test(roce_tuning, one_capture_serves_all_devices, .init = listen) {
    const test::CaptureFile file;
    const std::string name = "/proc/%p/fd/" + std::to_string(file.fd.get());
    util::set_param_text(ParamId::kPcap, name.c_str());
    RVT_ASSERT(packet_capture() != nullptr);
    RVT_ASSERT(packet_capture() == packet_capture());
    cr_assert(warnings.empty(), "%s", warnings.c_str());
}

Test(roce_tuning, a_capture_that_cannot_be_written_is_said_once, .init = listen) {
    util::set_param_text(ParamId::kPcap, "/proc/nowhere/file");
    RVT_ASSERT(packet_capture() == nullptr);
    RVT_ASSERT(packet_capture() == nullptr);
    RVT_ASSERT(warnings.find("/proc/nowhere/file: No such file") != std::string::npos);
    RVT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1);
}

Test(roce_tuning, what_waits_is_written_when_the_process_exits) {
    const test::CaptureFile file;
    util::set_param_text(ParamId::kPcap, file.name.c_str());
    test::Process child([](test::Process&) {
        // As a device that the application never closed.
        static std::shared_ptr<protocol::PcapWriter>& kept = *new std::shared_ptr(packet_capture());
        kept->add_interface("one");
        std::exit(0);
    });
    RVT_EQ(child.wait(), 0);
    RVT_EQ(test::read_capture(file.name).interfaces.size(), 1);
}
