// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Thread numbers for the counters, and their sums.
#include "core/stats.h"

#include <bit>

namespace rvt::core {
namespace {

constexpr unsigned kNumbers = 32;
std::atomic<std::uint32_t> taken_numbers{0};  // bit i: number i belongs to a living thread

unsigned take_number() noexcept {
    // relaxed: the exchange below re-reads it where it was too old.
    std::uint32_t taken = taken_numbers.load(std::memory_order_relaxed);
    while (taken != ~std::uint32_t{0}) {
        const auto free = static_cast<unsigned>(std::countr_one(taken));
        // acquire: pairs with the release in ~ThreadNumber: the last holder's counts are in its
        // line.
        if (taken_numbers.compare_exchange_weak(taken, taken | (1u << free),
                                                std::memory_order_acquire)) {
            return free;
        }
    }
    return kNumbers;
}

// The calling thread's. What has a destructor is found in twice the time.
constexpr unsigned kUnknownNumber = ~0u;
constinit thread_local unsigned own_number = kUnknownNumber;

struct ThreadNumber {
    unsigned number = take_number();
    ThreadNumber() = default;
    ~ThreadNumber() {
        own_number = kNumbers;  // the thread may count on: see core/reader_pins.cc
        if (number < kNumbers) {
            // release: pairs with the acquire in take_number().
            taken_numbers.fetch_and(~(1u << number), std::memory_order_release);
        }
    }
    ThreadNumber(const ThreadNumber&) = delete;
    ThreadNumber& operator=(const ThreadNumber&) = delete;
};

}  // namespace

unsigned Stats::thread_number() noexcept {
    static_assert(kThreadLines == kNumbers);
    if (own_number == kUnknownNumber) [[unlikely]] {
        static thread_local ThreadNumber mine;
        own_number = mine.number;
    }
    return own_number;
}

std::uint64_t Stats::sum(Stat stat) const noexcept {
    std::uint64_t total = 0;
    for (const Line& line : lines_) {
        // relaxed: counts order nothing.
        total += line.cells[static_cast<std::size_t>(stat)].load(std::memory_order_relaxed);
    }
    return total;
}

const char* to_string(Stat stat) noexcept {
    static constexpr const char* kNames[] = {
        "messages_sent", "bytes_sent",    "messages_received", "bytes_received", "loop_messages",
        "rnr_naks",      "request_naks",  "access_naks",       "drops",          "flushed",
        "retries",       "bad_segments",  "bad_packets",       "duplicates",     "sequence_errors",
        "timeouts",      "regions_found", "regions_kept",      "regions_once",   "regions_dropped",
        "regions_stale",
    };
    static_assert(std::size(kNames) == kStats);
    return kNames[static_cast<std::size_t>(stat)];
}

std::string describe_losses(const Stats& stats) {
    std::string text;
    for (const Stat stat :
         {Stat::kBadPackets, Stat::kDrops, Stat::kDuplicates, Stat::kSequenceErrors,
          Stat::kTimeouts, Stat::kRetries, Stat::kRnrNaks, Stat::kRequestNaks, Stat::kAccessNaks}) {
        if (const std::uint64_t count = stats.sum(stat); count != 0) {
            text += (text.empty() ? "" : ", ") + (to_string(stat) + (" " + std::to_string(count)));
        }
    }
    return text;
}

}  // namespace rvt::core
