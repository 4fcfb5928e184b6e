// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way of moving a large message is fastest here, learned from the transfers themselves.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

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
/// by the sum of their times, when nothing more is under way.
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
        if (sizes.left == 0 || (allowed & bit(sizes.method)) == 0) {
            sizes.method = next_method(sizes, allowed);
            sizes.left = block_of(bytes, sizes.methods[static_cast<unsigned>(sizes.method)]);
        }
        --sizes.left;
        return sizes.method;
    }

    /// Takes in how long a transfer took, not counting the time that another one had before it.
    /// @param is_last  No other one is under way.
    void learn(std::uint64_t bytes, RdMethod method, std::uint64_t ticks,
               bool is_last = true) noexcept {
        Record& record = class_of(bytes).methods[static_cast<unsigned>(method)];
        record.bytes += bytes;
        record.ticks += ticks;
        ++record.transfers;
        if (record.transfers < block_of(bytes, record) ||
            (!is_last && record.transfers < kMostTransfers)) {
            return;
        }
        const float cost = static_cast<float>(record.ticks) / static_cast<float>(record.bytes);
        if (record.blocks <= kWarmup) {
            ++record.blocks;
            record.cost = cost;  // the first transfers touch cold memory, and are few
        } else {
            // A block during which a process was interrupted says nothing of the method.
            record.cost += 0.3f * (std::min(cost, 2 * record.cost) - record.cost);
        }
        record.bytes = record.ticks = record.transfers = 0;
    }

  private:
    static constexpr unsigned kMethods = static_cast<unsigned>(RdMethod::kCount);
    static constexpr std::uint32_t kWarmup = 2;           // blocks
    static constexpr std::uint32_t kWarmupTransfers = 5;  // few: the rings of a pair grow by use
    static constexpr std::uint32_t kMostTransfers = 32;   // of a block that is never the last
    static constexpr std::uint32_t kProbeEvery = 32;      // blocks
    static constexpr std::uint64_t kBlockBytes = 2u << 20;
    static constexpr unsigned kFirstClass = 12;  // below 8 KiB all sizes are alike
    static constexpr unsigned kClasses = 20;

    struct Record {
        float cost = 0;            // ticks for a byte
        std::uint32_t blocks = 0;  // up to kWarmup + 1
        // Of the block that is under way.
        std::uint32_t transfers = 0;
        std::uint64_t bytes = 0;
        std::uint64_t ticks = 0;
    };
    struct Class {
        std::array<Record, kMethods> methods{};
        RdMethod method = RdMethod::kPipeline;  // of the block that is under way
        std::uint32_t left = 0;                 // transfers of it
        std::uint32_t blocks = 0;
    };

    static std::uint32_t block_of(std::uint64_t bytes, const Record& record) noexcept {
        if (record.blocks < kWarmup) {
            return kWarmupTransfers;
        }
        return static_cast<std::uint32_t>(
            std::clamp<std::uint64_t>(kBlockBytes / std::max<std::uint64_t>(bytes, 1), 2, 32));
    }
    Class& class_of(std::uint64_t bytes) noexcept {
        const unsigned width = static_cast<unsigned>(std::bit_width(bytes));
        const unsigned index = width <= kFirstClass ? 0 : width - kFirstClass;
        return classes_[index < kClasses ? index : kClasses - 1];
    }

    /// The best one so far; now and then another, as the machine or the program may have changed.
    static RdMethod next_method(Class& sizes, Mask allowed) noexcept {
        ++sizes.blocks;
        const unsigned probe =
            sizes.blocks % kProbeEvery == 0 ? sizes.blocks / kProbeEvery % kMethods : kMethods;
        RdMethod best = RdMethod::kPipeline;
        float best_cost = std::numeric_limits<float>::max();
        for (unsigned i = 0; i < kMethods; ++i) {
            const auto method = static_cast<RdMethod>(i);
            if ((allowed & bit(method)) == 0) {
                continue;
            }
            const Record& record = sizes.methods[i];
            if (record.blocks < kWarmup || i == probe) {
                return method;
            }
            if (record.cost < best_cost) {
                best_cost = record.cost;
                best = method;
            }
        }
        return best;
    }

    std::array<Class, kClasses> classes_{};
};

}  // namespace rvt::core
