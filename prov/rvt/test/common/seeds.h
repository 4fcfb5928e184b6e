// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Random tests are repeated with many seeds, or with the one that has failed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace rvt::test {

/// Calls play(seed) for the seed that RVT_SEED names, else for 1 to `count`.
/// Returns: whether it was for all of them.
template <class Play>
bool for_each_seed(std::uint64_t count, Play play) {
    if (const char* const one = std::getenv("RVT_SEED")) {
        play(std::stoull(one));
        return false;
    }
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
        play(seed);
    }
    return true;
}

}  // namespace rvt::test
