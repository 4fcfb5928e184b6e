// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The syndrome of an acknowledgement: what it says and with which number. IBTA vol. 1, 9.7.5.2.1,
// tables 44 to 47.
#pragma once

#include <cstdint>

namespace rvt::protocol {

enum class NakCode : std::uint8_t {
    kPsnSequence = 0,
    kInvalidRequest = 1,
    kRemoteAccess = 2,
    kRemoteOperational = 3,
};
inline constexpr std::uint8_t kNakCodes = 4;  // 4 is for IBTA's RD service, which has no flow here

struct Syndrome {
    enum class Type : std::uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };
    Type type = Type::kAck;
    std::uint8_t value = 0;  // ACK: credits; RNR NAK: timer code; NAK: a NakCode

    friend constexpr bool operator==(Syndrome, Syndrome) noexcept = default;
};

/// Credits of a responder that counts none.
inline constexpr std::uint8_t kUnlimitedCredits = 0x1f;

constexpr std::uint8_t to_wire(Syndrome syndrome) noexcept {
    return static_cast<std::uint8_t>(static_cast<unsigned>(syndrome.type) << 5 |
                                     (syndrome.value & 0x1fu));
}
/// The top bit is reserved and not looked at.
constexpr Syndrome syndrome_of(std::uint8_t wire) noexcept {
    return {.type = static_cast<Syndrome::Type>(wire >> 5 & 3u),
            .value = static_cast<std::uint8_t>(wire & 0x1fu)};
}

constexpr Syndrome ack() noexcept {
    return {.type = Syndrome::Type::kAck, .value = kUnlimitedCredits};
}
constexpr Syndrome rnr_nak(std::uint8_t timer) noexcept {
    return {.type = Syndrome::Type::kRnrNak, .value = timer};
}
constexpr Syndrome nak(NakCode code) noexcept {
    return {.type = Syndrome::Type::kNak, .value = static_cast<std::uint8_t>(code)};
}

}  // namespace rvt::protocol
