// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Hints of fi_getinfo(3) from a command line: "caps=FI_TAGGED|FI_SOURCE,tx_attr->inject_size=64".
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <rdma/fabric.h>

namespace rvt::info {

struct FreeInfo {
    void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// Hints for this provider. "ep" stands for "ep_attr->" and so on; a value is a number or names of
/// constants joined by |. Returns: nullptr, and what is wrong in `error`.
Info parse_hints(std::string_view text, std::string& error);

/// Every hint that can be named, one a line.
std::string hint_names();

}  // namespace rvt::info
