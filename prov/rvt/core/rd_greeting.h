// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the ends of a flow tell each other of themselves: the private data of the communication
// manager's messages. Nothing of it is trusted. docs/roce.md, section 5, and docs/verbs.md,
// section 5, describe it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/device.h"
#include "core/rd_flow.h"

namespace rvt::core {

/// In the private data of requests and replies.
struct RdGreeting {
    static constexpr std::uint32_t kMagic = 0x44747672;  // "rvtD", and the byte order
    static constexpr std::uint8_t kVersion = 3;
    static constexpr std::uint8_t kUserKeys = 1;
    static constexpr std::uint8_t kRmaEvents = 2;
    static constexpr std::uint8_t kNic = 4;   // the pair that is named is a NIC's
    static constexpr std::uint8_t kRdma = 8;  // which does READs and WRITEs, and answers them

    std::uint32_t magic = kMagic;
    std::uint8_t version = kVersion;
    std::uint8_t flags = 0;
    std::uint16_t payload_bytes = 0;
    std::uint64_t incarnation = 0;
    std::uint64_t dials = 0;  // requests that the endpoint has made, this one included

    [[nodiscard]] bool is_ours() const noexcept {
        return magic == kMagic && version == kVersion && payload_bytes >= kMinPayload;
    }
    [[nodiscard]] bool names_nic() const noexcept { return (flags & kNic) != 0; }
    /// Whether a request was made before the link's, by the same endpoint, and came late.
    /// @param peer_dials  Requests that the link's peer had made by then.
    [[nodiscard]] bool is_late(const RdFlowPeer& peer, std::uint64_t peer_dials) const noexcept {
        return incarnation == peer.incarnation && dials <= peer_dials;
    }
    [[nodiscard]] RdFlowPeer peer() const noexcept {
        return {.incarnation = incarnation,
                .has_user_keys = (flags & kUserKeys) != 0,
                .wants_rma_events = (flags & kRmaEvents) != 0,
                .can_rdma = (flags & kRdma) != 0};
    }
};
static_assert(sizeof(RdGreeting) == 24);

/// First byte of the private data of a refusal.
enum class RdRefused : std::uint8_t { kCrossing = 1, kVersion = 2, kNoNic = 3 };

/// What the peer said; its magic is not ours when it speaks another language.
inline RdGreeting read_greeting(std::span<const std::byte> bytes) noexcept {
    RdGreeting greeting{.magic = 0};
    if (bytes.size() >= sizeof greeting) {
        std::memcpy(&greeting, bytes.data(), sizeof greeting);
    }
    return greeting;
}

}  // namespace rvt::core
