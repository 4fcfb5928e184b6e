// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Which entries of BackendOps a backend must fill, as data; and the filling of the others.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "rvt/backend.h"

namespace rvt::core {

/// When a row of the table asks for its entry.
struct NeededWhen {
    enum class Kind : std::uint8_t { kGrade, kFilled } kind;
    Grade grade;        // kGrade: for backends of this grade
    std::size_t other;  // kFilled: for backends that fill this entry, given by its offset
};

struct Requirement {
    std::size_t entry;  // offset in BackendOps
    NeededWhen when;
    const char* why;  // what the core needs it for, to follow "for"
};

/// The one table; the checker and its error text come from it, and docs/backends.md shows it.
std::span<const Requirement> requirements() noexcept;

/// Name of the entry at an offset of BackendOps.
const char* entry_name(std::size_t offset) noexcept;

/// Every entry that is missing, each with what it is needed for; empty when none is.
std::string missing_entries(const BackendOps& ops, Grade grade);

/// `ops` with the core's version in each empty entry. Afterwards every entry is callable.
BackendOps fill_defaults(const BackendOps& ops) noexcept;

}  // namespace rvt::core
