// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A callback of any signature that answers one error: for tables of what an endpoint lacks, or does
// not do yet.
#pragma once

namespace rvt::ofi {

template <class R, class... Arguments>
using Callback = R (*)(Arguments...);

template <int kError>
struct Refuse {
    template <class R, class... Arguments>
    // NOLINTNEXTLINE(google-explicit-constructor): tables of callbacks are filled by it.
    constexpr operator Callback<R, Arguments...>() const noexcept {
        return [](Arguments...) noexcept -> R { return kError; };
    }
};

}  // namespace rvt::ofi
