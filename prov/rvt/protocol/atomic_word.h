// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The word of an extended atomic: form, datatype, operation, a byte that is sent as 0 and not
// looked at. docs/roce.md, section 1.
#pragma once

#include <cstdint>

#include "rvt/types.h"

namespace rvt::protocol {

constexpr std::uint32_t atomic_word(const ExtendedAtomic& atomic) noexcept {
    return static_cast<std::uint32_t>(atomic.form) << 24 |
           static_cast<std::uint32_t>(atomic.datatype) << 16 |
           static_cast<std::uint32_t>(atomic.op) << 8;
}
/// Its members may be numbers that are nothing.
constexpr ExtendedAtomic extended_atomic(std::uint32_t word) noexcept {
    return {.form = static_cast<AtomicForm>(word >> 24),
            .datatype = static_cast<std::uint8_t>(word >> 16),
            .op = static_cast<std::uint8_t>(word >> 8)};
}

}  // namespace rvt::protocol
