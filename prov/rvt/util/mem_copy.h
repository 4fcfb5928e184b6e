// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of a few bytes, without a call. Of any length: util/long_copy.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "util/cpu.h"

namespace rvt::util {

namespace detail {

struct Block16 {
    std::uint64_t half[2];
};

template <class Word>
RVT_ALWAYS_INLINE Word get(const std::byte* at) noexcept {
    Word word{};
    std::memcpy(&word, at, sizeof word);
    return word;
}
template <class Word>
RVT_ALWAYS_INLINE void put(std::byte* at, const Word& word) noexcept {
    std::memcpy(at, &word, sizeof word);
}

// Copies sizeof(Word) <= n <= 2 * sizeof(Word) bytes with two moves that may overlap.
template <class Word>
RVT_ALWAYS_INLINE void copy_ends(std::byte* to, const std::byte* from, std::size_t n) noexcept {
    const Word first = get<Word>(from);
    const Word last = get<Word>(from + n - sizeof(Word));
    put(to, first);
    put(to + n - sizeof(Word), last);
}

}  // namespace detail

/// What copy_small() copies at most.
inline constexpr std::size_t kMostSmall = 64;

/// Copies up to kMostSmall bytes with a few moves instead of a call. All is read before anything is
/// written, so the areas may overlap.
///
/// Cost: two moves below 16 bytes, four from there on, whatever the size: sizes that change from
///       message to message cost no mispredicted branch within either range.
RVT_ALWAYS_INLINE void copy_small(void* to, const void* from, std::size_t count) noexcept {
    using detail::Block16;
    auto* const out = static_cast<std::byte*>(to);
    const auto* const in = static_cast<const std::byte*>(from);
    if (count >= 16) {
        // Four blocks, two from each end, cover up to 64 bytes; for shorter ones they coincide.
        const std::size_t second = std::min<std::size_t>(count - 16, 16);
        const Block16 a = detail::get<Block16>(in);
        const Block16 b = detail::get<Block16>(in + second);
        const Block16 c = detail::get<Block16>(in + count - 16 - second);
        const Block16 d = detail::get<Block16>(in + count - 16);
        detail::put(out, a);
        detail::put(out + second, b);
        detail::put(out + count - 16 - second, c);
        detail::put(out + count - 16, d);
    } else if (count >= 8) {
        detail::copy_ends<std::uint64_t>(out, in, count);
    } else if (count >= 4) {
        detail::copy_ends<std::uint32_t>(out, in, count);
    } else if (count >= 2) {
        detail::copy_ends<std::uint16_t>(out, in, count);
    } else if (count == 1) {
        *out = *in;
    }
}

/// Copies bytes that are few in most calls. The areas do not overlap.
RVT_ALWAYS_INLINE void copy_mostly_small(void* to, const void* from, std::size_t count) noexcept {
    if (count <= kMostSmall) [[likely]] {
        copy_small(to, from, count);
    } else {
        std::memcpy(to, from, count);
    }
}

}  // namespace rvt::util
