// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reading a plan, and rolling the dice.
#include "protocol/faults.h"

#include <charconv>
#include <optional>

namespace rvt::protocol {
namespace {

constexpr std::uint32_t kMillion = 1'000'000;
constexpr std::uint32_t kMostOvertaking = 16;

struct Name {
    std::string_view name;
    std::uint32_t FaultPlan::*chance;
};
constexpr Name kNames[] = {
    {"drop", &FaultPlan::drop},       {"duplicate", &FaultPlan::duplicate},
    {"reorder", &FaultPlan::reorder}, {"corrupt", &FaultPlan::corrupt},
    {"delay", &FaultPlan::delay},
};

/// Cuts `text` at the first `mark`. Returns: what stands before it; `text` keeps what stands
/// behind.
std::string_view cut(std::string_view& text, char mark) noexcept {
    const std::size_t at = text.find(mark);
    const std::string_view before = text.substr(0, at);
    text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
    return before;
}

template <class Number>
bool read_number(std::string_view text, std::string_view unit, Number& to) noexcept {
    if (!text.ends_with(unit)) {
        return false;
    }
    text.remove_suffix(unit.size());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && end == text.data() + text.size();
}

bool read_chance(std::string_view text, std::uint32_t& to) noexcept {
    double percent = 0;
    if (!read_number(text, "%", percent) || !(percent >= 0 && percent <= 100)) {
        return false;
    }
    to = static_cast<std::uint32_t>(percent * (kMillion / 100.0) + 0.5);
    return true;
}

bool read_item(std::string_view item, FaultPlan& plan) noexcept {
    const std::string_view name = cut(item, '=');
    if (name == "seed") {
        return read_number(item, "", plan.seed);
    }
    for (const Name& known : kNames) {
        if (known.name == name) {
            const std::string_view chance = cut(item, ':');
            const bool has_time = known.chance == &FaultPlan::delay && !item.empty();
            return read_chance(chance, plan.*known.chance) &&
                   (has_time ? read_number(item, "us", plan.delay_us) && plan.delay_us != 0
                             : item.empty());
        }
    }
    return false;
}

/// Returns: the first item that cannot be read.
std::optional<std::string_view> read_items(std::string_view text, FaultPlan& plan) noexcept {
    while (!text.empty()) {
        const std::string_view item = cut(text, ',');
        if (!read_item(item, plan)) {
            return item;
        }
    }
    return std::nullopt;
}

}  // namespace

Result<FaultPlan> parse_faults(std::string_view text) noexcept {
    FaultPlan plan;
    return read_items(text, plan) ? Result<FaultPlan>(EINVAL) : plan;
}

std::string_view unknown_fault(std::string_view text) noexcept {
    FaultPlan ignored;
    return read_items(text, ignored).value_or(std::string_view());
}

/// SplitMix64: one addition and three mixing steps, good enough for dice.
std::uint64_t FaultInjector::random() noexcept {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

bool FaultInjector::happens(std::uint32_t millionths) noexcept {
    return millionths != 0 && random() % kMillion < millionths;
}

Fault FaultInjector::next() noexcept {
    Fault fault;
    fault.is_dropped = happens(plan_.drop);
    fault.is_duplicated = happens(plan_.duplicate);
    if (happens(plan_.reorder)) {
        fault.overtaken_by = 1 + static_cast<std::uint32_t>(random() % kMostOvertaking);
    }
    if (happens(plan_.corrupt)) {
        fault.is_corrupted = true;
        fault.corrupt_bit = random();
    }
    if (happens(plan_.delay)) {
        fault.delay_us = 1 + static_cast<std::uint32_t>(random() % plan_.delay_us);
    }
    return fault;
}

}  // namespace rvt::protocol
