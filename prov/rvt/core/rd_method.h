// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way of moving a large message is fastest here, learned from the transfers themselves.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "util/cpu.h"

namespace rvt::core {

/// How the data of a large message or access gets from one process to the other.
enum class RdMethod : std::uint8_t {
    kPipeline,  // both sides copy, through the rings
    kDirect,    // one side copies: the receiver of a message, the initiator of an access
    kSplit,     // both sides copy, each a part
    kCount,
};

/// Remembers, for each power of two of the size, how fast each method has been.
///
/// Transfers that are under way together end in bunches, so the time of one says little, and that
/// of several what part of a bunch they are: a method is used for a block of transfers, and judged
/// by the sum of their times, when nothing more is under way. Those that come first after another
/// method are not judged: they find none of what they touch in a cache. Only what is out of the
/// question is given up while it settles, as copying by turns is where processes share a core.
///
/// Threads: one at a time.
class RdMethodChooser {
  public:
    using Mask = std::uint8_t;  // bit = RdMethod
    static constexpr Mask bit(RdMethod method) noexcept {
        return static_cast<Mask>(1u << static_cast<unsigned>(method));
    }

    /// Precondition: allowed is not 0.
    RdMethod choose(std::uint64_t bytes, Mask allowed) noexcept {
        Class& sizes = class_of(bytes);
        if (sizes.left != 0 && (allowed & bit(sizes.method)) == 0) {
            --sizes.left;  // the block goes on with those that its method is allowed for
            return best_of(sizes, allowed);
        }
        if (sizes.left == 0) {
            const RdMethod before = std::exchange(sizes.method, next_method(sizes, allowed));
            Record& record = sizes.record_of(sizes.method);
            if (sizes.method != before) {
                record.begin();
            }
            sizes.left = block_of(bytes, record) +
                         (record.is_settling ? settling_of(bytes, sizes.method, record) : 0);
        }
        --sizes.left;
        return sizes.method;
    }

    /// Takes in how long a transfer took, not counting the time that another one had before it.
    /// @param is_last  No other one is under way.
    void learn(std::uint64_t bytes, RdMethod method, std::uint64_t ticks,
               bool is_last = true) noexcept {
        Class& sizes = class_of(bytes);
        Record& record = sizes.record_of(method);
        const std::uint32_t settling = settling_of(bytes, method, record);
        record.is_settling = record.is_settling && settling != 0;
        if (record.is_settling) {
            ++record.transfers;
            record.take(bytes, ticks);
            if (is_out_of_the_question(sizes, record)) {
                give_up(sizes, method);
            } else if (record.transfers >= (is_last ? settling : kMostTransfers)) {
                record.is_settling = false;
                record.start_block();
            }
            return;
        }
        record.take(bytes, ticks);
        ++record.transfers;
        if (record.transfers < block_of(bytes, record) ||
            (!is_last && record.transfers < kMostTransfers)) {
            return;
        }
        const float cost = record.block_cost();
        if (record.blocks <= kWarmup || record.is_new) {
            // So much counts as warm by itself.
            const std::uint32_t blocks = record.bytes >= kGrowthBytes ? kWarmup : 1;
            record.blocks = std::min(record.blocks + blocks, kWarmup + 1);
            record.cost = cost;  // what was known is old, or of few transfers and cold memory
        } else {
            // A block during which a process was interrupted says nothing of the method.
            record.cost += 0.3f * (std::min(cost, 2 * record.cost) - record.cost);
        }
        record.is_new = false;
        record.start_block();
    }

  private:
    static constexpr unsigned kMethods = static_cast<unsigned>(RdMethod::kCount);
    static constexpr std::uint32_t kWarmup = 2;           // blocks
    static constexpr std::uint32_t kWarmupTransfers = 5;  // of one, at most
    static constexpr std::uint32_t kMostTransfers = 128;  // of a block, if others never end
    // Blocks until another method is tried: few at first, since something may have disturbed the
    // warm-up; then more, as what is known has proved true.
    static constexpr std::uint32_t kFirstTry = 8;
    static constexpr std::uint32_t kMostUntilTry = 256;
    static constexpr std::uint64_t kBlockBytes = 2u << 20;
    static constexpr std::uint64_t kSettlingBytes = 1u << 20;  // as the caches close by hold
    // The first time: a pair moves to its large rings, and touches each page of them once.
    static constexpr std::uint64_t kGrowthBytes = 6u << 20;
    // How many ticks longer than the best known one a method may take in all while it settles:
    // rings grow, and each page of them is touched on both sides, which takes up to 3.3 us.
    static inline const std::uint64_t kMostExtra = util::ticks_of_ns(kGrowthBytes / 4096 * 3'333);
    static constexpr float kOutOfTheQuestion = 8;   // of what the best known one costs
    static constexpr float kWorthChanging = 0.95f;  // of what the present method costs
    static constexpr float kWorthTrying = 2;        // the same, while what is known is young
    static constexpr unsigned kFirstClass = 12;     // below 8 KiB all sizes are alike
    static constexpr unsigned kClasses = 20;

    struct Record {
        float cost = 0;            // ticks for a byte
        std::uint32_t blocks = 0;  // up to kWarmup + 1
        bool is_new = true;        // another method was used before
        bool is_settling = true;   // its transfers are not judged yet
        // Of the block that is under way.
        std::uint32_t transfers = 0;
        std::uint64_t bytes = 0;
        std::uint64_t ticks = 0;
        std::uint64_t most = 0;  // ticks of one

        void begin() noexcept {
            is_new = is_settling = true;
            start_block();
        }
        void start_block() noexcept { bytes = ticks = most = transfers = 0; }
        void take(std::uint64_t more, std::uint64_t took) noexcept {
            bytes += more;
            ticks += took;
            most = std::max(most, took);
        }
        [[nodiscard]] float block_cost() const noexcept {
            return static_cast<float>(ticks) / static_cast<float>(bytes);
        }
    };
    struct Class {
        std::array<Record, kMethods> methods{};
        RdMethod method = RdMethod::kPipeline;  // of the block that is under way
        RdMethod best = RdMethod::kPipeline;
        unsigned tried = 0;                   // the last one that was not the best
        std::uint32_t left = 0;               // transfers of the block
        std::uint32_t until_try = kFirstTry;  // blocks
        std::uint32_t next_until_try = kFirstTry;

        Record& record_of(RdMethod of) noexcept { return methods[static_cast<unsigned>(of)]; }
    };

    static std::uint32_t transfers_of(std::uint64_t bytes, std::uint64_t each, std::uint64_t least,
                                      std::uint64_t most) noexcept {
        const std::uint64_t count = bytes / std::max<std::uint64_t>(each, 1);
        return static_cast<std::uint32_t>(std::clamp(count, least, most));
    }
    static std::uint32_t block_of(std::uint64_t bytes, const Record& record) noexcept {
        return record.blocks < kWarmup ? transfers_of(kBlockBytes, bytes, 1, kWarmupTransfers)
                                       : transfers_of(kBlockBytes, bytes, 2, 32);
    }
    static std::uint32_t settling_of(std::uint64_t bytes, RdMethod method,
                                     const Record& record) noexcept {
        const bool is_first = record.blocks < kWarmup;
        return is_first && method == RdMethod::kPipeline
                   ? transfers_of(kGrowthBytes, bytes, 0, kMostTransfers)
                   : transfers_of(kSettlingBytes, bytes, is_first ? 0 : 1, 32);
    }
    static bool is_out_of_the_question(const Class& sizes, const Record& record) noexcept {
        float least = std::numeric_limits<float>::max();
        for (const Record& other : sizes.methods) {
            least = other.blocks < kWarmup ? least : std::min(least, other.cost);
        }
        // The dearest one may have been interrupted.
        const auto usual = static_cast<float>(record.ticks - record.most);
        const float best = least * static_cast<float>(record.bytes);
        return usual > kOutOfTheQuestion * best && usual - best > static_cast<float>(kMostExtra);
    }
    /// Ends the block of a method that settles, at the cost seen so far.
    static void give_up(Class& sizes, RdMethod method) noexcept {
        Record& record = sizes.record_of(method);
        record.cost = record.block_cost();
        record.blocks = std::max(record.blocks, kWarmup);
        record.is_new = record.is_settling = false;
        record.start_block();
        if (sizes.method == method) {
            sizes.left = 0;
        }
    }
    Class& class_of(std::uint64_t bytes) noexcept {
        const unsigned width = static_cast<unsigned>(std::bit_width(bytes));
        const unsigned index = width <= kFirstClass ? 0 : width - kFirstClass;
        return classes_[index < kClasses ? index : kClasses - 1];
    }

    /// The best one so far; now and then another, as the machine or the program may have changed.
    static RdMethod next_method(Class& sizes, Mask allowed) noexcept {
        // First the one that serves whom it may, until more is known.
        for (const RdMethod method : {RdMethod::kDirect, RdMethod::kPipeline, RdMethod::kSplit}) {
            if ((allowed & bit(method)) != 0 && sizes.record_of(method).blocks < kWarmup) {
                return method;
            }
        }
        sizes.best = best_of(sizes, allowed);
        if (--sizes.until_try != 0) {
            return sizes.best;
        }
        const bool is_young = sizes.next_until_try < kMostUntilTry;
        sizes.until_try = sizes.next_until_try;
        sizes.next_until_try = std::min(2 * sizes.next_until_try, kMostUntilTry);
        const float most = is_young ? kWorthTrying * sizes.record_of(sizes.best).cost
                                    : std::numeric_limits<float>::max();
        return next_in_turn(sizes, allowed, most);
    }
    /// The next one that is not the best and costs at most so much, or the best.
    static RdMethod next_in_turn(Class& sizes, Mask allowed, float most) noexcept {
        for (unsigned i = 0; i < kMethods; ++i) {
            sizes.tried = (sizes.tried + 1) % kMethods;
            const auto method = static_cast<RdMethod>(sizes.tried);
            if (method != sizes.best && (allowed & bit(method)) != 0 &&
                sizes.record_of(method).cost <= most) {
                return method;
            }
        }
        return sizes.best;
    }
    static RdMethod best_of(Class& sizes, Mask allowed) noexcept {
        RdMethod best = sizes.best;
        float least = (allowed & bit(best)) != 0 ? kWorthChanging * sizes.record_of(best).cost
                                                 : std::numeric_limits<float>::max();
        for (unsigned i = 0; i < kMethods; ++i) {
            const auto method = static_cast<RdMethod>(i);
            if ((allowed & bit(method)) != 0 && sizes.methods[i].cost < least) {
                least = sizes.methods[i].cost;
                best = method;
            }
        }
        return best;
    }

    std::array<Class, kClasses> classes_{};
};

}  // namespace rvt::core
