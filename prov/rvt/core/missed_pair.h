// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Word that the connected pair that a packet was for is not there: in the private data of a REJ
// that answers no message of the communication manager. Another process may have the address now.
// docs/roce.md, section 5.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <variant>

#include "core/cm_agent.h"
#include "core/mad.h"

namespace rvt::core {

struct MissedPair {
    static constexpr std::uint32_t kMagic = 0x4d747672;  // "rvtM", and the byte order
    std::uint32_t magic = kMagic;
    std::uint32_t qpn = 0;
};

/// Returns: what a peer says it misses, if that is what it says. Threads: any.
inline std::optional<std::uint32_t> read_missed(CmMadBytes bytes) noexcept {
    const auto mad = protocol::decode_cm(bytes);
    const auto* rej = mad.is_ok() ? std::get_if<protocol::CmRej>(&mad.value().message) : nullptr;
    MissedPair missed{.magic = 0};
    if (rej != nullptr && rej->remote_comm_id == 0) {
        std::memcpy(&missed, rej->private_data.data(), sizeof missed);
    }
    return missed.magic == MissedPair::kMagic ? std::optional(missed.qpn) : std::nullopt;
}

/// Says so to a peer. Threads: any.
inline void send_missed(Device& device, const Address& to, std::uint32_t qpn) noexcept {
    protocol::CmRej rej{.subject = protocol::CmSubject::kOther,
                        .reason = protocol::CmRejectReason::kStaleConnection};
    const MissedPair missed{.qpn = qpn};
    std::memcpy(rej.private_data.data(), &missed, sizeof missed);
    std::array<std::byte, protocol::kMadBytes> mad;
    protocol::encode_cm({.transaction_id = 0, .message = rej}, mad);
    send_mad(device, to, mad);
}

}  // namespace rvt::core
