// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How a given endpoint is reached from here: connects to it as an application would, without
// disturbing the other side's.
#pragma once

#include <string>

#include "rvt_info/hints.h"
#include "rvt_info/report.h"

namespace rvt::info {

/// @param address  "127.0.0.1:4711", "[::1]:4711", or libfabric's fi_sockaddr_in://127.0.0.1:4711.
Section describe_peer(const std::string& address);

}  // namespace rvt::info
