// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The contract's Status and Result under the name that the folders of the provider use.
#pragma once

#include "rvt/status.h"

namespace rvt::util {

using rvt::kOk;
using rvt::Result;
using rvt::Status;

}  // namespace rvt::util
