// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of data of any length, which memcpy() is not always good at: above 2 KiB the one of glibc
// takes "rep movsb" wherever the processor says that it is fast. Where a destination begins up to
// 63 bytes behind its source, counted within their pages, AMD's Zen 3 takes 16 to 30 times as
// long for it as for a loop (copy_bench: Zen 3, glibc 2.36, 4 to 256 KiB). That is the rule and
// not the exception: rings begin with a page, and what malloc() maps 16 bytes behind one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "util/cpu.h"

namespace rvt::util {

namespace detail {

/// copy_bytes() of more than kMostShort bytes.
void copy_long(void* to, const void* from, std::size_t count) noexcept;

}  // namespace detail

/// What memcpy() never copies by "rep movsb", in bytes.
inline constexpr std::size_t kMostShort = 2048;

/// As std::memcpy().
RVT_ALWAYS_INLINE void copy_bytes(void* to, const void* from, std::size_t count) noexcept {
    if (count > kMostShort) [[unlikely]] {
        detail::copy_long(to, from, count);
        return;
    }
    std::memcpy(to, from, count);
}

/// As std::memmove(): the areas may overlap.
inline void move_bytes(void* to, const void* from, std::size_t count) noexcept {
    const std::uintptr_t gap =
        reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
    if (gap < count || -gap < count) {
        std::memmove(to, from, count);
    } else {
        copy_bytes(to, from, count);
    }
}

}  // namespace rvt::util
