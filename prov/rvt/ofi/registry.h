// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fabrics and domains that are open in this process, and the passive endpoints whose address
// another may take over. fi_getinfo consults it: hints may name an open one, and answers refer to
// the first that is open under their name.
#pragma once

#include <string>
#include <string_view>

#include "ofi/compat.h"

namespace rvt::ofi::registry {

/// Threads: any.
void add(fid* object, std::string_view name);
void remove(const fid* object) noexcept;

/// Whether this is an open object of its class and name.
bool holds(const fid* object, std::size_t fclass, std::string_view name) noexcept;
/// The name of an open object of its class; else empty.
std::string name_of(const fid* object, std::size_t fclass);
/// The first that was opened under the name, or nullptr.
fid* first(std::size_t fclass, std::string_view name) noexcept;

}  // namespace rvt::ofi::registry
