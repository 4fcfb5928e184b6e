// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Holding packets back, and damaging them.
#include "protocol/faulty_line.h"

#include <algorithm>
#include <utility>

#include "protocol/header_sizes.h"

namespace rvt::protocol {
namespace {

constexpr std::size_t kReservedAt = 4;  // the byte of the base transport header that no ICRC covers

/// Turns one bit over, somewhere an ICRC tells.
void damage(std::span<std::byte> bytes, std::uint64_t random) noexcept {
    if (bytes.size() < kBthBytes) {
        return;  // no packet of this protocol, and refused as it is
    }
    std::size_t at = random / 8 % (bytes.size() - 1);
    at += at >= kReservedAt ? 1 : 0;
    bytes[at] ^= static_cast<std::byte>(1u << random % 8);
}

}  // namespace

bool FaultyLine::passes(const WirePacket& packet, std::uint64_t now_us) noexcept {
    const Fault fault = injector_.next();
    const bool has_fault = fault.is_dropped || fault.is_duplicated || fault.is_corrupted ||
                           fault.overtaken_by != 0 || fault.delay_us != 0;
    if (!fault.is_dropped) {
        overtake();
    }
    if (has_fault) {
        hold(packet, fault, now_us);
    }
    return !has_fault;
}

void FaultyLine::overtake() noexcept {
    for (Held& held : held_) {
        if (held.overtaken_by != 0 && --held.overtaken_by == 0) {
            held.due_us = 0;
        }
    }
}

void FaultyLine::hold(const WirePacket& packet, const Fault& fault, std::uint64_t now_us) noexcept {
    const int copies = 1 + (fault.is_duplicated ? 1 : 0) - (fault.is_dropped ? 1 : 0);
    const std::uint64_t due_us =
        now_us + fault.delay_us + (fault.overtaken_by != 0 ? kOvertakenUs : 0);
    for (int i = 0; i < copies && held_.size() < kMostHeld; ++i) {
        held_.push_back(
            {.packet = KeptPacket(packet), .due_us = due_us, .overtaken_by = fault.overtaken_by});
        if (fault.is_corrupted) {
            damage(held_.back().packet.bytes(), fault.corrupt_bit);
        }
    }
}

std::optional<KeptPacket> FaultyLine::take_due(std::uint64_t now_us) noexcept {
    const auto first = std::find_if(held_.begin(), held_.end(),
                                    [&](const Held& held) { return held.due_us <= now_us; });
    if (first == held_.end()) {
        return std::nullopt;
    }
    std::optional<KeptPacket> due(std::move(first->packet));
    held_.erase(first);
    return due;
}

}  // namespace rvt::protocol
