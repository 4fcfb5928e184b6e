// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What every benchmark program shares: batches of iterations that two ranks run together, and the
// frame that runs one named measure and prints one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/team.h"

namespace fab {

/// A measure of one program: rank 0 returns the value, the others' return is ignored.
struct Measure {
    const char* name;
    const char* unit;
    double (*run)(Rank& self, std::size_t argument);
    int ranks = 2;
    const char* argument;  ///< What the argument means; null: there is none.
};

/// Environment variable, in ns: a batch counts only where a cache line takes about that long from
/// one rank to the other, both before it and behind it. A virtual machine's processors are moved
/// between the threads and cores of its host, some of which share a cache and some do not: only
/// what was measured in like places can be compared. Not set, and for ranks on two hosts: every
/// batch counts.
inline constexpr char kLineVariable[] = "FAB_LINE_NS";
inline constexpr double kLineFactor = 1.4;  ///< By so much it may be longer or shorter.

/// Both ranks call it at once; `idle` as below. Returns: on rank 0 how long a cache line takes from
/// one to the other, in ns.
double line_ns(Rank& self, const std::function<void()>& idle);

/// Runs batches of `body(n)` on both ranks at once, n chosen so that a batch takes about `batch_s`.
/// `idle` is called while waiting for the other rank between batches.
/// Returns: on rank 0 the median time of one iteration in seconds of those that count; on others 0.
double time_batches(Rank& self, const std::function<void(std::size_t)>& body,
                    const std::function<void()>& idle, double batch_s = 0.02, int batches = 5);

/// Within a batch: one rank announces its end, the other one polls for that.
void announce_end(const Rank& self);
bool is_ended(const Rank& self);

/// Runs the measure of this name and prints its value. `team` says where its ranks run; their
/// number is the measure's. Returns: the program's exit code.
int run_measure(std::span<const Measure> measures, const char* program, const char* name,
                const char* argument, TeamOptions team);

/// No measure takes longer.
inline constexpr double kMeasureLimitS = 60;

/// How many bytes of this process are resident.
double resident_bytes();

/// Messages of one window of a bandwidth measure.
inline std::size_t window_of(std::size_t size) {
    const std::size_t fit = (std::size_t{64} << 20) / (size == 0 ? 1 : size);
    return fit < 2 ? 2 : fit > 64 ? 64 : fit;
}

}  // namespace fab
