// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Random tests are repeated with many seeds, or with the one that has failed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace rvt::test {

/// A sanitizer takes many times as long: with one, each fourth seed has to do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeedStep = 4;
#else
constexpr std::uint64_t kSeedStep = 1;
#endif

/// The one that is being played; 0: none. A failed assertion names it.
inline std::uint64_t seed_in_play = 0;

/// Calls play(seed) for the seed that RVT_SEED names, else for 1 to `count` in steps of kSeedStep.
/// Returns: whether it was for all of them.
template <class Play>
bool for_each_seed(std::uint64_t count, Play play) {
    const char* const one = std::getenv("RVT_SEED");
    const std::uint64_t first = one != nullptr ? std::stoull(one) : 1;
    const std::uint64_t last = one != nullptr ? first : count;
    for (std::uint64_t seed = first; seed <= last; seed += kSeedStep) {
        seed_in_play = seed;
        play(seed);
    }
    seed_in_play = 0;
    return one == nullptr;
}

}  // namespace rvt::test
