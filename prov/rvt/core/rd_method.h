// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way of moving a large message is fastest here, learned from the transfers themselves.
#pragma once

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
        ++sizes.transfers;
        const bool is_probe = sizes.transfers % kProbeEvery == 0;
        RdMethod best = RdMethod::kPipeline;
        float best_cost = std::numeric_limits<float>::max();
        for (unsigned i = 0; i < kMethods; ++i) {
            const auto method = static_cast<RdMethod>(i);
            if ((allowed & bit(method)) == 0) {
                continue;
            }
            const Record& record = sizes.methods[i];
            if (record.samples < kWarmup ||
                (is_probe && sizes.transfers / kProbeEvery % kMethods == i)) {
                return method;
            }
            if (record.cost < best_cost) {
                best_cost = record.cost;
                best = method;
            }
        }
        return best;
    }

    /// Takes in how long a transfer took.
    void learn(std::uint64_t bytes, RdMethod method, std::uint64_t ticks) noexcept {
        Record& record = class_of(bytes).methods[static_cast<unsigned>(method)];
        // Of transfers that end together the first takes all of the time and the others none: times
        // have a mean that means something, rates do not.
        const float cost = static_cast<float>(ticks) / static_cast<float>(bytes);
        // The first transfers touch cold memory; they count for little.
        const float weight = record.samples < kWarmup ? 0.5f : 0.2f;
        record.cost = record.samples == 0 ? cost : record.cost + weight * (cost - record.cost);
        record.samples += record.samples < kWarmup ? 1 : 0;
    }

  private:
    static constexpr unsigned kMethods = static_cast<unsigned>(RdMethod::kCount);
    static constexpr std::uint32_t kWarmup = 10;
    static constexpr std::uint32_t kProbeEvery = 128;
    static constexpr unsigned kFirstClass = 12;  // below 8 KiB all sizes are alike
    static constexpr unsigned kClasses = 20;

    struct Record {
        float cost = 0;  // ticks for a byte
        std::uint32_t samples = 0;
    };
    struct Class {
        std::array<Record, kMethods> methods{};
        std::uint32_t transfers = 0;
    };
    Class& class_of(std::uint64_t bytes) noexcept {
        const unsigned width = static_cast<unsigned>(std::bit_width(bytes));
        const unsigned index = width <= kFirstClass ? 0 : width - kFirstClass;
        return classes_[index < kClasses ? index : kClasses - 1];
    }

    std::array<Class, kClasses> classes_{};
};

}  // namespace rvt::core
