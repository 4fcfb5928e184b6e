// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way of moving a large message is fastest here, learned from the transfers themselves.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace rvt::core {

/// How the data of a large message gets from one process to the other.
enum class RdMethod : std::uint8_t {
    kPipeline,  // both sides copy, through the rings
    kDirect,    // the receiver reads the sender's memory
    kSplit,     // the receiver reads one half, the sender writes the other
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
        float best_rate = -1;
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
            if (record.rate > best_rate) {
                best_rate = record.rate;
                best = method;
            }
        }
        return best;
    }

    /// Takes in how long a transfer took.
    void learn(std::uint64_t bytes, RdMethod method, std::uint64_t ticks) noexcept {
        Record& record = class_of(bytes).methods[static_cast<unsigned>(method)];
        const float rate = static_cast<float>(bytes) / static_cast<float>(ticks + 1);
        // The first transfers touch cold memory; they count for little.
        const float weight = record.samples < kWarmup ? 0.5f : 0.2f;
        record.rate = record.samples == 0 ? rate : record.rate + weight * (rate - record.rate);
        record.samples += record.samples < kWarmup ? 1 : 0;
    }

    /// Bytes per tick that a method has reached at about this size; 0: not tried.
    float rate(std::uint64_t bytes, RdMethod method) const noexcept {
        return const_cast<RdMethodChooser*>(this)
            ->class_of(bytes)
            .methods[static_cast<unsigned>(method)]
            .rate;
    }

  private:
    static constexpr unsigned kMethods = static_cast<unsigned>(RdMethod::kCount);
    static constexpr std::uint32_t kWarmup = 10;
    static constexpr std::uint32_t kProbeEvery = 128;
    static constexpr unsigned kFirstClass = 12;  // below 8 KiB all sizes are alike
    static constexpr unsigned kClasses = 20;

    struct Record {
        float rate = 0;
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
