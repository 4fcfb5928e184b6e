// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sizes that an application names: what does not fit becomes the largest there is, which every
// limit then refuses.
#pragma once

#include <cstddef>
#include <limits>

#include "util/cpu.h"

namespace rvt::util {

inline constexpr std::size_t kMaxSize = std::numeric_limits<std::size_t>::max();

RVT_ALWAYS_INLINE constexpr std::size_t saturating_add(std::size_t a, std::size_t b) noexcept {
    std::size_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? kMaxSize : sum;
}

RVT_ALWAYS_INLINE constexpr std::size_t saturating_mul(std::size_t a, std::size_t b) noexcept {
    std::size_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? kMaxSize : product;
}

}  // namespace rvt::util
