// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Messages of the communication manager as values, and their form on the wire: MADs of 256 bytes
// between the queue pairs 1 of two devices. All members are in the host's byte order. IBTA vol. 1,
// 12.6, 12.11 and 13.4.3; the header that names IP addresses and ports: annex A11.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "rvt/status.h"

namespace rvt::protocol {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr std::uint32_t kGsiQpn = 1;  // of both ends
inline constexpr std::uint32_t kGsiQkey = 0x80010000;

// What a consumer may add to each message.
inline constexpr std::size_t kReqPrivateBytes = 92;
inline constexpr std::size_t kMraPrivateBytes = 222;
inline constexpr std::size_t kRejPrivateBytes = 148;
inline constexpr std::size_t kRepPrivateBytes = 196;
inline constexpr std::size_t kRtuPrivateBytes = 224;
inline constexpr std::size_t kDreqPrivateBytes = 220;
inline constexpr std::size_t kDrepPrivateBytes = 224;
inline constexpr std::size_t kSidrReqPrivateBytes = 216;
inline constexpr std::size_t kSidrRepPrivateBytes = 136;
inline constexpr std::size_t kMostPrivateBytes = 224;
inline constexpr std::size_t kMostRejectInfoBytes = 72;

template <std::size_t kBytes>
using CmBytes = std::array<std::byte, kBytes>;

/// Why a connection was refused or given up. IBTA table 108.
enum class CmRejectReason : std::uint16_t {
    kNoQp = 1,
    kNoEec = 2,
    kNoResources = 3,
    kTimeout = 4,
    kUnsupportedRequest = 5,
    kInvalidCommId = 6,
    kInvalidCommInstance = 7,
    kInvalidServiceId = 8,
    kInvalidTransport = 9,
    kStaleConnection = 10,
    kNoRdc = 11,
    kPrimaryGid = 12,
    kPrimaryLid = 13,
    kPrimarySl = 14,
    kPrimaryTrafficClass = 15,
    kPrimaryHopLimit = 16,
    kPrimaryPacketRate = 17,
    kAlternateGid = 18,
    kAlternateLid = 19,
    kAlternateSl = 20,
    kAlternateTrafficClass = 21,
    kAlternateHopLimit = 22,
    kAlternatePacketRate = 23,
    kCmRedirect = 24,
    kPortRedirect = 25,
    kInvalidMtu = 26,
    kResponderResources = 27,
    kConsumer = 28,
    kRnrRetryCount = 29,
    kDuplicateCommId = 30,
    kInvalidClassVersion = 31,
    kPrimaryFlowLabel = 32,
    kAlternateFlowLabel = 33,
};

/// IBTA's name of a reason, or "unknown".
const char* to_string(CmRejectReason reason) noexcept;

/// Which message a REJ or MRA is about.
enum class CmSubject : std::uint8_t { kReq = 0, kRep = 1, kOther = 2 };

/// Service of the pairs to be connected.
enum class CmTransport : std::uint8_t { kRc = 0, kUc = 1, kRd = 2, kExtended = 3 };

enum class CmFailover : std::uint8_t { kAccepted = 0, kNotSupported = 1, kRejected = 2 };

/// IBTA table 114.
enum class SidrStatus : std::uint8_t {
    kOk = 0,
    kInvalidServiceId = 1,
    kRejected = 2,
    kNoQp = 3,
    kRedirect = 4,
    kUnsupportedVersion = 5,
};

/// LIDs mean nothing on Ethernet; this one stands for "see the GID".
inline constexpr std::uint16_t kPermissiveLid = 0xffff;

struct CmPath {
    std::uint16_t local_lid = 0;
    std::uint16_t remote_lid = 0;
    std::array<std::uint8_t, 16> local_gid{};
    std::array<std::uint8_t, 16> remote_gid{};
    std::uint32_t flow_label = 0;  // 20 bits
    std::uint8_t packet_rate = 0;  // 6 bits
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t service_level = 0;  // 4 bits
    bool is_subnet_local = false;
    std::uint8_t local_ack_timeout = 0;  // 5 bits: 4.096 us * 2^n

    friend bool operator==(const CmPath&, const CmPath&) noexcept = default;
};

/// Asks for a connection.
struct CmReq {
    std::uint32_t local_comm_id = 0;
    std::uint64_t service_id = 0;
    std::uint64_t ca_guid = 0;
    std::uint32_t qkey = 0;
    std::uint32_t qpn = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t remote_response_timeout = 0;  // 5 bits, as local_ack_timeout
    CmTransport transport = CmTransport::kRc;
    bool has_flow_control = false;
    std::uint32_t starting_psn = 0;
    std::uint8_t local_response_timeout = 0;  // 5 bits
    std::uint8_t retry_count = 0;             // 3 bits
    std::uint16_t pkey = 0xffff;
    std::uint8_t path_mtu = 0;        // 4 bits, see mtu_code()
    std::uint8_t rnr_retry = 0;       // 3 bits
    std::uint8_t max_cm_retries = 0;  // 4 bits
    bool has_srq = false;
    std::uint8_t extended_transport = 0;  // 3 bits
    CmPath primary{};
    CmPath alternate{};  // all zero: there is none
    CmBytes<kReqPrivateBytes> private_data{};

    friend bool operator==(const CmReq&, const CmReq&) noexcept = default;
};

/// Says that an answer takes long.
struct CmMra {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    CmSubject subject = CmSubject::kReq;
    std::uint8_t service_timeout = 0;  // 5 bits
    CmBytes<kMraPrivateBytes> private_data{};

    friend bool operator==(const CmMra&, const CmMra&) noexcept = default;
};

struct CmRej {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    CmSubject subject = CmSubject::kReq;
    CmRejectReason reason = CmRejectReason::kConsumer;  // may be a number that has no name
    std::uint8_t info_bytes = 0;                        // of info, which belongs to the reason
    CmBytes<kMostRejectInfoBytes> info{};
    CmBytes<kRejPrivateBytes> private_data{};

    friend bool operator==(const CmRej&, const CmRej&) noexcept = default;
};

struct CmRep {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    std::uint32_t qkey = 0;
    std::uint32_t qpn = 0;
    std::uint32_t starting_psn = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t target_ack_delay = 0;  // 5 bits
    CmFailover failover = CmFailover::kAccepted;
    bool has_flow_control = false;
    std::uint8_t rnr_retry = 0;  // 3 bits
    bool has_srq = false;
    std::uint64_t ca_guid = 0;
    CmBytes<kRepPrivateBytes> private_data{};

    friend bool operator==(const CmRep&, const CmRep&) noexcept = default;
};

/// Says that the connection is ready for use.
struct CmRtu {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    CmBytes<kRtuPrivateBytes> private_data{};

    friend bool operator==(const CmRtu&, const CmRtu&) noexcept = default;
};

struct CmDreq {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    std::uint32_t remote_qpn = 0;
    CmBytes<kDreqPrivateBytes> private_data{};

    friend bool operator==(const CmDreq&, const CmDreq&) noexcept = default;
};

struct CmDrep {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    CmBytes<kDrepPrivateBytes> private_data{};

    friend bool operator==(const CmDrep&, const CmDrep&) noexcept = default;
};

/// Asks for the datagram pair of a service.
struct CmSidrReq {
    std::uint32_t request_id = 0;
    std::uint16_t pkey = 0xffff;
    std::uint64_t service_id = 0;
    CmBytes<kSidrReqPrivateBytes> private_data{};

    friend bool operator==(const CmSidrReq&, const CmSidrReq&) noexcept = default;
};

struct CmSidrRep {
    std::uint32_t request_id = 0;
    SidrStatus status = SidrStatus::kOk;  // may be a number that has no name
    std::uint8_t info_bytes = 0;
    std::uint32_t qpn = 0;
    std::uint64_t service_id = 0;
    std::uint32_t qkey = 0;
    CmBytes<kMostRejectInfoBytes> info{};
    CmBytes<kSidrRepPrivateBytes> private_data{};

    friend bool operator==(const CmSidrRep&, const CmSidrRep&) noexcept = default;
};

using CmMessage =
    std::variant<CmReq, CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep, CmSidrReq, CmSidrRep>;

struct CmMad {
    std::uint64_t transaction_id = 0;
    CmMessage message{};

    friend bool operator==(const CmMad&, const CmMad&) noexcept = default;
};

/// Writes the whole MAD; what is reserved is zero.
void encode_cm(const CmMad& mad, std::span<std::byte, kMadBytes> to) noexcept;

/// Takes a MAD apart; reserved bits are not looked at.
/// Returns: EBADMSG for bytes that are no message of this list, or that have a value which none of
///          its senders may write: another length or version, a queue pair number that no consumer
///          can own, an MTU that does not exist, more information than there is room for.
Result<CmMad> decode_cm(std::span<const std::byte> mad) noexcept;

/// The code of an MTU, 1 for 256 bytes to 5 for 4096. Precondition: it is one of those.
std::uint8_t mtu_code(std::uint32_t bytes) noexcept;
constexpr std::uint32_t mtu_bytes(std::uint8_t code) noexcept {
    return 128u << code;
}

/// What a code of 5 bits stands for in time-outs. Precondition: it is below 32.
constexpr std::uint64_t cm_timeout_us(std::uint8_t code) noexcept {
    return (std::uint64_t{4096} << code) / 1000;
}

// ---- the RDMA IP CM service (annex A11) ----

enum class PortSpace : std::uint16_t { kTcp = 0x0106, kUdp = 0x0111 };

constexpr std::uint64_t ip_service_id(PortSpace space, std::uint16_t port) noexcept {
    return std::uint64_t{static_cast<std::uint16_t>(space)} << 16 | port;
}
/// Whether requests to this service begin their private data with an IpCmHeader.
constexpr bool is_ip_service(std::uint64_t service_id) noexcept {
    const std::uint64_t space = service_id >> 16;
    return space == static_cast<std::uint16_t>(PortSpace::kTcp) ||
           space == static_cast<std::uint16_t>(PortSpace::kUdp);
}
constexpr std::uint16_t ip_service_port(std::uint64_t service_id) noexcept {
    return static_cast<std::uint16_t>(service_id);
}

inline constexpr std::size_t kIpCmHeaderBytes = 36;

/// Who talks to whom; addresses as in Address: IPv6, or IPv4 mapped into it, both of one family.
struct IpCmHeader {
    std::uint16_t source_port = 0;
    std::array<std::uint8_t, 16> source{};
    std::array<std::uint8_t, 16> dest{};

    friend bool operator==(const IpCmHeader&, const IpCmHeader&) noexcept = default;
};

void encode_ip_cm(const IpCmHeader& header, std::span<std::byte, kIpCmHeaderBytes> to) noexcept;
/// Returns: EBADMSG for a version other than 0 and for what is neither IPv4 nor IPv6.
Result<IpCmHeader> decode_ip_cm(std::span<const std::byte, kIpCmHeaderBytes> from) noexcept;

}  // namespace rvt::protocol
