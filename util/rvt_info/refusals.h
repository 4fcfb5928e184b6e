// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The provider's own words about hints that it refuses, caught on their way to libfabric's log.
#pragma once

#include <string>
#include <vector>

#include "rvt_info/report.h"

namespace rvt::info {

/// One refused candidate.
struct Refused {
    std::string device;
    std::string hint;
    std::string asked;
    std::string offered;
};

/// From now on log lines of the provider are kept instead of printed. Call before anything else of
/// libfabric. Returns: what was caught is complete from then on, or why it cannot be caught.
std::string catch_log_lines();

/// What has been refused since the last call.
std::vector<Refused> take_refusals();

/// Adds why, and what a user can do about it.
void add_reason(Section& section, const Refused& refused);

}  // namespace rvt::info
