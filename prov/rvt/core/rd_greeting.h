// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the ends of a flow tell each other of themselves: the private data of the communication
// manager's messages. Nothing of it is trusted. docs/roce.md, section 5, and docs/verbs.md,
// section 5, describe it.
#pragma once

#include <array>
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
    static constexpr std::uint8_t kIb = 16;   // its port is one of InfiniBand's, and follows

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

/// Behind it, zeros without kIb: what leads to the pair of a NIC at a port of InfiniBand.
struct RdGreetingPort {
    static constexpr std::uint8_t kNeedsGrh = 1;

    std::array<std::uint8_t, 16> gid{};
    std::uint16_t lid = 0;   // in the order of the greeting's bytes, as the next
    std::uint16_t pkey = 0;  // bit 15: as a full member of the partition
    std::uint8_t flags = 0;
    std::array<std::uint8_t, 3> unused{};
};
static_assert(sizeof(RdGreetingPort) == 24);

/// What is sent.
struct RdGreetingMessage {
    RdGreeting greeting{};
    RdGreetingPort port{};
};
static_assert(sizeof(RdGreetingMessage) == 48);

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

inline RdGreetingPort to_greeting_port(const IbPort& port) noexcept {
    return {.gid = port.gid,
            .lid = port.lid,
            .pkey = port.pkey,
            .flags = port.needs_grh ? RdGreetingPort::kNeedsGrh : std::uint8_t{0}};
}

/// The port that the peer has named; one without LID when it has named none.
inline IbPort read_greeting_port(std::span<const std::byte> bytes) noexcept {
    RdGreetingMessage message{.greeting = read_greeting(bytes)};
    if ((message.greeting.flags & RdGreeting::kIb) == 0 || bytes.size() < sizeof message) {
        return {};
    }
    std::memcpy(&message, bytes.data(), sizeof message);
    return {.gid = message.port.gid,
            .lid = message.port.lid,
            .pkey = message.port.pkey,
            .needs_grh = (message.port.flags & RdGreetingPort::kNeedsGrh) != 0};
}

/// Why pairs of NICs at these ports do not find each other; nullptr: they do. Between ports that
/// are none of InfiniBand's addresses lead.
inline const char* why_apart(const IbPort& own, const IbPort& peer) noexcept {
    constexpr std::uint16_t kFullMember = 0x8000;      // IBTA vol. 1, 10.9.1.2
    constexpr std::uint16_t kLastUnicastLid = 0xbfff;  // IBTA vol. 1, 4.1.3
    constexpr std::size_t kPrefixBytes = 8;
    if (own.lid == 0 && peer.lid == 0) {
        return nullptr;
    }
    if (own.lid == 0 || peer.lid == 0) {
        return "only one of them is at a port of InfiniBand";
    }
    if (peer.lid > kLastUnicastLid) {
        return "the peer's LID is none of a port";
    }
    if (std::memcmp(own.gid.data(), peer.gid.data(), kPrefixBytes) != 0) {
        return "their ports are in different subnets";
    }
    if (((own.pkey ^ peer.pkey) & ~kFullMember) != 0) {
        return "their ports are in different partitions";
    }
    if (((own.pkey | peer.pkey) & kFullMember) == 0) {
        return "both ports are limited members of the partition";
    }
    return nullptr;
}

/// From a pair at one port to one at the other.
inline AhAttr way_between(const IbPort& own, const IbPort& peer, const Address& address) noexcept {
    return peer.lid == 0 ? AhAttr{.dest = address}
                         : AhAttr{.dest = {.gid = peer.gid},
                                  .dlid = peer.lid,
                                  .needs_grh = own.needs_grh || peer.needs_grh};
}

}  // namespace rvt::core
