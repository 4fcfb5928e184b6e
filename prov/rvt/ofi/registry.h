// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fabrics and domains that are open in this process, and the passive endpoints whose address
// another may take over. fi_getinfo consults it: hints may name an open one, and answers refer to
// the first that is open under their name.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ofi/compat.h"

namespace rvt::ofi::registry {

/// Whether an object is what is looked for. Called under the lock of the list, so that the object
/// is not closed meanwhile; it opens and closes none.
using Fits = std::function<bool(fid& object)>;

/// Threads: any.
void add(fid* object, std::string_view name);
void remove(const fid* object) noexcept;

// What applications name is compared and never followed. With FI_HOOK set it is libfabric's own
// object over the one that is open here, which has it as its context.

/// The open object that is meant, if it is of that name and fits, or nullptr.
fid* find(const fid* named, std::size_t fclass, std::string_view name, const Fits& fits = {});
/// The name of the open object that is meant; else empty.
std::string name_of(const fid* named, std::size_t fclass);
/// The first that was opened under the name and fits, or nullptr.
fid* first(std::size_t fclass, std::string_view name, const Fits& fits = {});

}  // namespace rvt::ofi::registry
