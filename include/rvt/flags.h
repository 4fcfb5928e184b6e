// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Bit sets made of enum classes. An enumeration opts in by specialising IsFlags; sets of different
// enumerations then never mix, and testing a bit of one on another does not compile.
#pragma once

#include <type_traits>

namespace rvt {

template <class E>
struct IsFlags : std::false_type {};

template <class E>
concept FlagEnum = std::is_enum_v<E> && IsFlags<E>::value;

template <FlagEnum E>
constexpr std::underlying_type_t<E> bits(E set) noexcept {
    return static_cast<std::underlying_type_t<E>>(set);
}

template <FlagEnum E>
constexpr E operator|(E a, E b) noexcept {
    return static_cast<E>(bits(a) | bits(b));
}

template <FlagEnum E>
constexpr E operator&(E a, E b) noexcept {
    return static_cast<E>(bits(a) & bits(b));
}

/// What is in `a` and not in `b`.
template <FlagEnum E>
constexpr E without(E a, E b) noexcept {
    return static_cast<E>(bits(a) & ~bits(b));
}

template <FlagEnum E>
constexpr bool has_all(E set, E wanted) noexcept {
    return (set & wanted) == wanted;
}

template <FlagEnum E>
constexpr bool has_any(E set, E wanted) noexcept {
    return bits(set & wanted) != 0;
}

namespace core {
// Operators of the core's own enumerations would hide these.
using rvt::operator|;
using rvt::operator&;
}  // namespace core

}  // namespace rvt
