// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "benchmarks/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <unistd.h>

#include "common/fail.h"
#include "common/timing.h"

namespace fab {
namespace {

// Flags of the shared page, rank 0 to rank 1 and back.
constexpr std::size_t kCountFlag = 0;  // iterations of the next batch
constexpr std::size_t kGoFlag = 1;     // number of the batch
constexpr std::size_t kReadyFlag = 2;  // the batch that rank 1 is ready for
constexpr std::size_t kEndFlag = 3;    // the batch that is over
constexpr std::size_t kPingFlag = 4;   // of line_ns()
constexpr std::size_t kPongFlag = 5;
constexpr std::uint32_t kNoMore = 0;
constexpr double kAfarFactor = 25;  // hosts that are apart may be emulated ones, which begin slowly
constexpr double kPlacedFactor = 4;  // shorter batches: cores stay where they are for some 50 ms
constexpr double kPlacedLimitS = 15;

void spin_until(const SharedPage::Flag& flag, std::uint32_t value,
                const std::function<void()>& idle) {
    double deadline = 0;
    for (unsigned turn = 1; flag.get() != value; ++turn) {
        if (idle) idle();
        relax();
        if ((turn & 0xfff) != 0) continue;
        if (deadline == 0) deadline = now_s() + 30;
        if (now_s() > deadline) FAB_FAIL("the other rank does not come");
    }
}

/// See kLineVariable. Returns: ns; 0: every batch counts.
double wanted_line_ns(const Rank& self) {
    const char* value = std::getenv(kLineVariable);
    return value == nullptr || !self.shares_page ? 0 : std::strtod(value, nullptr);
}

bool is_about(double line, double wanted) {
    return line <= wanted * kLineFactor && line >= wanted / kLineFactor;
}

/// Rank 0: tells the other rank how many iterations come, waits until it is ready.
void start_batch(Rank& self, std::uint32_t count, const std::function<void()>& idle) {
    if (!self.shares_page) {
        char is_ready = 0;
        self.send(self.other(), &count, sizeof count);
        if (count != kNoMore) self.receive_polling(self.other(), &is_ready, 1, idle);
        return;
    }
    auto& flags = self.page->flags;
    const std::uint32_t batch = flags[kGoFlag].get() + 1;
    flags[kCountFlag].set(count);
    flags[kGoFlag].set(batch);
    if (count != kNoMore) spin_until(flags[kReadyFlag], batch, idle);
}

void follow_afar(Rank& self, const std::function<void(std::size_t)>& body,
                 const std::function<void()>& idle) {
    for (;;) {
        std::uint32_t count = kNoMore;
        self.receive_polling(self.other(), &count, sizeof count, idle);
        if (count == kNoMore) return;
        const char is_ready = 1;
        self.send(self.other(), &is_ready, 1);
        body(count);
    }
}

void follow(Rank& self, const std::function<void(std::size_t)>& body,
            const std::function<void()>& idle) {
    auto& flags = self.page->flags;
    const bool probes = wanted_line_ns(self) != 0;
    for (std::uint32_t batch = flags[kReadyFlag].get() + 1;; ++batch) {
        spin_until(flags[kGoFlag], batch, idle);
        const std::uint32_t count = flags[kCountFlag].get();
        flags[kReadyFlag].set(batch);
        if (count == kNoMore) return;
        if (probes) line_ns(self, idle);
        body(count);
        if (probes) line_ns(self, idle);
    }
}

struct Batch {
    double seconds;
    bool counts;
};

Batch time_one(Rank& self, std::size_t count, const std::function<void(std::size_t)>& body,
               const std::function<void()>& idle) {
    const double line = wanted_line_ns(self);
    start_batch(self, static_cast<std::uint32_t>(count), idle);
    const bool begins_there = line == 0 || is_about(line_ns(self, idle), line);
    const double start = now_s();
    body(count);
    const double seconds = now_s() - start;
    const bool ends_there = line == 0 || is_about(line_ns(self, idle), line);
    return {seconds, begins_there && ends_there};
}

}  // namespace

double line_ns(Rank& self, const std::function<void()>& idle) {
    constexpr int kTurns = 64;
    SharedPage::Flag& ping = self.page->flags[kPingFlag];
    SharedPage::Flag& pong = self.page->flags[kPongFlag];
    double start = 0;
    for (int turn = 0; turn <= kTurns; ++turn) {
        const std::uint32_t value = (self.rank == 0 ? ping : pong).get() + 1;
        if (self.rank == 0) ping.set(value);
        // The other one may still be at its batch at first, and need progress here.
        spin_until(self.rank == 0 ? pong : ping, value, turn == 0 ? idle : nullptr);
        if (self.rank != 0) pong.set(value);
        if (turn == 0) start = now_s();
    }
    return (now_s() - start) / kTurns / 2 * 1e9;
}

double time_batches(Rank& self, const std::function<void(std::size_t)>& body,
                    const std::function<void()>& idle, double batch_s, int batches) {
    if (self.rank != 0) {
        (self.shares_page ? follow : follow_afar)(self, body, idle);
        return 0;
    }
    const bool chooses = wanted_line_ns(self) != 0;
    if (!self.shares_page) batch_s *= kAfarFactor;
    if (chooses) batch_s /= kPlacedFactor;
    std::size_t count = 1;
    time_one(self, count, body, idle);  // the first one pays for connections, indexes and the like
    double last = time_one(self, count, body, idle).seconds;
    for (int step = 0; step < 12 && last < batch_s / 3; ++step) {
        const double factor = std::clamp(batch_s / std::max(last, 1e-7), 1.5, 20.0);
        count = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * factor));
        last = time_one(self, count, body, idle).seconds;
    }
    std::vector<double> times;
    const double deadline = now_s() + kPlacedLimitS;
    while (times.size() < static_cast<std::size_t>(batches)) {
        const Batch batch = time_one(self, count, body, idle);
        if (batch.counts) times.push_back(batch.seconds / static_cast<double>(count));
        if (chooses && now_s() > deadline) break;
    }
    start_batch(self, kNoMore, idle);
    if (times.empty()) {
        FAB_FAIL("no batch had the line of %s=%s within %g s", kLineVariable,
                 std::getenv(kLineVariable), kPlacedLimitS);
    }
    return median(times);
}

void announce_end(const Rank& self) {
    if (!self.shares_page) FAB_FAIL("this measure is for ranks of one host");
    self.page->flags[kEndFlag].set(self.page->flags[kReadyFlag].get());
}

bool is_ended(const Rank& self) {
    return self.page->flags[kEndFlag].get() == self.page->flags[kReadyFlag].get();
}

int run_measure(std::span<const Measure> measures, const char* program, const char* name,
                const char* argument, TeamOptions team) {
    const auto found = std::find_if(measures.begin(), measures.end(), [name](const Measure& one) {
        return std::strcmp(one.name, name) == 0;
    });
    if (found == measures.end()) {
        std::fprintf(stderr, "%s has no measure %s; -l lists them\n", program, name);
        return 2;
    }
    char* end = nullptr;
    const std::size_t value = argument == nullptr ? 0 : std::strtoull(argument, &end, 0);
    if ((argument != nullptr) != (found->argument != nullptr) ||
        (argument != nullptr && (end == argument || *end != '\0'))) {
        std::fprintf(stderr, "%s %s %s; what it takes: %s\n", program, name,
                     argument == nullptr ? "asks for an argument" : "does not take this argument",
                     found->argument == nullptr ? "none" : found->argument);
        return 2;
    }
    team.size = found->ranks;
    team.limit_s = kMeasureLimitS;
    std::array<double, 16> results{};
    const auto body = [&](Rank& self) {
        const double result = found->run(self, value);
        if (self.rank == 0) self.page->results[0] = result;
    };
    int worst = 0;
    for (const Outcome& outcome : run_team(team, body, &results)) {
        if (outcome.code == 0 && outcome.signal == 0) continue;
        if (worst == 0 || worst == kExitPeerGone) worst = outcome.code != 0 ? outcome.code : 1;
        std::fprintf(stderr, "%s %s: %s\n", program, name,
                     outcome.timed_out     ? "stopped at the time limit"
                     : outcome.signal != 0 ? strsignal(outcome.signal)
                                           : outcome.last_words.c_str());
    }
    if (worst == 0 && team.own_rank <= 0) std::printf("%.6g %s\n", results[0], found->unit);
    return worst;
}

double resident_bytes() {
    FILE* file = std::fopen("/proc/self/statm", "r");
    unsigned long total = 0;
    unsigned long resident = 0;
    if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) {
        FAB_FAIL("cannot read /proc/self/statm");
    }
    std::fclose(file);
    return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace fab
