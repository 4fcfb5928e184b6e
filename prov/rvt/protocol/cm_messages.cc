// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Each message is described once, field by field as it stands in the MAD; the same description
// writes and reads. IBTA vol. 1, tables 106 to 120.
#include "protocol/cm_messages.h"

#include "protocol/icrc.h"
#include "protocol/wire.h"
#include "rvt/types.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <utility>

namespace rvt::protocol {
namespace {

// The MAD header (13.4.2).
constexpr std::size_t kMadHeaderBytes = 24;
constexpr std::uint8_t kBaseVersion = 1;
constexpr std::uint8_t kCmClass = 0x07;
constexpr std::uint8_t kCmClassVersion = 2;
constexpr std::uint8_t kMethodSend = 0x03;
/// Of the first message; the others follow in the order of CmMessage.
constexpr std::uint16_t kReqAttribute = 0x0010;
static_assert(std::is_same_v<std::variant_alternative_t<0x14 - kReqAttribute, CmMessage>, CmRtu>);
static_assert(
    std::is_same_v<std::variant_alternative_t<0x18 - kReqAttribute, CmMessage>, CmSidrRep>);

/// Fields of any number of bits, the highest bit first.
class BitWriter {
  public:
    explicit BitWriter(std::span<std::byte> to) noexcept : to_(to) {
        std::fill(to.begin(), to.end(), std::byte{0});
    }

    template <class T>
    void bits(unsigned width, const T& field) noexcept {
        const auto value = static_cast<std::uint64_t>(field);
        while (width != 0) {
            --width;
            to_[at_ / 8] |= static_cast<std::byte>((value >> width & 1u) << (7 - at_ % 8));
            ++at_;
        }
    }
    template <class Bytes>
    void bytes(const Bytes& field) noexcept {
        std::memcpy(to_.data() + at_ / 8, field.data(), field.size());
        at_ += field.size() * 8;
    }
    void reserved(unsigned width) noexcept { at_ += width; }
    [[nodiscard]] bool is_at_end() const noexcept { return at_ == to_.size() * 8; }

  private:
    std::span<std::byte> to_;
    std::size_t at_ = 0;  // in bits
};

class BitReader {
  public:
    explicit BitReader(std::span<const std::byte> from) noexcept : from_(from) {}

    template <class T>
    void bits(unsigned width, T& field) noexcept {
        std::uint64_t value = 0;
        for (; width != 0; --width, ++at_) {
            value = value << 1 | (static_cast<unsigned>(from_[at_ / 8]) >> (7 - at_ % 8) & 1u);
        }
        field = static_cast<T>(value);
    }
    template <class Bytes>
    void bytes(Bytes& field) noexcept {
        std::memcpy(field.data(), from_.data() + at_ / 8, field.size());
        at_ += field.size() * 8;
    }
    void reserved(unsigned width) noexcept { at_ += width; }
    [[nodiscard]] bool is_at_end() const noexcept { return at_ == from_.size() * 8; }

  private:
    std::span<const std::byte> from_;
    std::size_t at_ = 0;  // in bits
};

// ---- the messages; Message is const where they are written ----

template <class Bits, class Path>
void describe_path(Bits& b, Path& path) noexcept {
    b.bits(16, path.local_lid);
    b.bits(16, path.remote_lid);
    b.bytes(path.local_gid);
    b.bytes(path.remote_gid);
    b.bits(20, path.flow_label);
    b.reserved(6);
    b.bits(6, path.packet_rate);
    b.bits(8, path.traffic_class);
    b.bits(8, path.hop_limit);
    b.bits(4, path.service_level);
    b.bits(1, path.is_subnet_local);
    b.reserved(3);
    b.bits(5, path.local_ack_timeout);
    b.reserved(3);
}

template <class Bits, class Message>
void describe_ids(Bits& b, Message& m) noexcept {
    b.bits(32, m.local_comm_id);
    b.bits(32, m.remote_comm_id);
}

template <class Bits, class Message>
void describe_req(Bits& b, Message& m) noexcept {
    b.bits(32, m.local_comm_id);
    b.reserved(32);
    b.bits(64, m.service_id);
    b.bits(64, m.ca_guid);
    b.reserved(32);
    b.bits(32, m.qkey);
    b.bits(24, m.qpn);
    b.bits(8, m.responder_resources);
    b.reserved(24);  // end-to-end contexts, here and below: only the RD service has them
    b.bits(8, m.initiator_depth);
    b.reserved(24);
    b.bits(5, m.remote_response_timeout);
    b.bits(2, m.transport);
    b.bits(1, m.has_flow_control);
    b.bits(24, m.starting_psn);
    b.bits(5, m.local_response_timeout);
    b.bits(3, m.retry_count);
    b.bits(16, m.pkey);
    b.bits(4, m.path_mtu);
    b.reserved(1);
    b.bits(3, m.rnr_retry);
    b.bits(4, m.max_cm_retries);
    b.bits(1, m.has_srq);
    b.bits(3, m.extended_transport);
    describe_path(b, m.primary);
    describe_path(b, m.alternate);
    b.bytes(m.private_data);
}

template <class Bits, class Message>
void describe_rep(Bits& b, Message& m) noexcept {
    describe_ids(b, m);
    b.bits(32, m.qkey);
    b.bits(24, m.qpn);
    b.reserved(8);
    b.reserved(24 + 8);
    b.bits(24, m.starting_psn);
    b.reserved(8);
    b.bits(8, m.responder_resources);
    b.bits(8, m.initiator_depth);
    b.bits(5, m.target_ack_delay);
    b.bits(2, m.failover);
    b.bits(1, m.has_flow_control);
    b.bits(3, m.rnr_retry);
    b.bits(1, m.has_srq);
    b.reserved(4);
    b.bits(64, m.ca_guid);
    b.bytes(m.private_data);
}

template <class Bits, class Message>
void describe_rej(Bits& b, Message& m) noexcept {
    describe_ids(b, m);
    b.bits(2, m.subject);
    b.reserved(6);
    b.bits(7, m.info_bytes);
    b.reserved(1);
    b.bits(16, m.reason);
    b.bytes(m.info);
    b.bytes(m.private_data);
}

template <class Bits, class Message>
void describe_sidr_rep(Bits& b, Message& m) noexcept {
    b.bits(32, m.request_id);
    b.bits(8, m.status);
    b.bits(8, m.info_bytes);
    b.reserved(16);
    b.bits(24, m.qpn);
    b.reserved(8);
    b.bits(64, m.service_id);
    b.bits(32, m.qkey);
    b.bytes(m.info);
    b.bytes(m.private_data);
}

template <class Bits, class Message>
void describe(Bits& b, Message& m) noexcept {
    using M = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<M, CmReq>) {
        describe_req(b, m);
    } else if constexpr (std::is_same_v<M, CmMra>) {
        describe_ids(b, m);
        b.bits(2, m.subject);
        b.reserved(6);
        b.bits(5, m.service_timeout);
        b.reserved(3);
        b.bytes(m.private_data);
    } else if constexpr (std::is_same_v<M, CmRej>) {
        describe_rej(b, m);
    } else if constexpr (std::is_same_v<M, CmRep>) {
        describe_rep(b, m);
    } else if constexpr (std::is_same_v<M, CmDreq>) {
        describe_ids(b, m);
        b.bits(24, m.remote_qpn);
        b.reserved(8);
        b.bytes(m.private_data);
    } else if constexpr (std::is_same_v<M, CmSidrReq>) {
        b.bits(32, m.request_id);
        b.bits(16, m.pkey);
        b.reserved(16);
        b.bits(64, m.service_id);
        b.bytes(m.private_data);
    } else if constexpr (std::is_same_v<M, CmSidrRep>) {
        describe_sidr_rep(b, m);
    } else {
        static_assert(std::is_same_v<M, CmRtu> || std::is_same_v<M, CmDrep>);
        describe_ids(b, m);
        b.bytes(m.private_data);
    }
    assert(b.is_at_end());
}

// ---- what no honest sender writes ----

constexpr bool is_consumer_qpn(std::uint32_t qpn) noexcept {
    return qpn > kGsiQpn && qpn < kQpnMask;
}
constexpr bool is_mtu_code(std::uint8_t code) noexcept {
    return code >= 1 && code <= 5;
}

bool is_sane(const CmReq& m) noexcept {
    return is_consumer_qpn(m.qpn) && is_mtu_code(m.path_mtu);
}
bool is_sane(const CmRep& m) noexcept {
    return is_consumer_qpn(m.qpn) && m.failover <= CmFailover::kRejected;
}
bool is_sane(const CmMra& m) noexcept {
    return m.subject <= CmSubject::kOther;
}
bool is_sane(const CmRej& m) noexcept {
    return m.subject <= CmSubject::kOther && m.info_bytes <= m.info.size();
}
bool is_sane(const CmDreq& m) noexcept {
    return is_consumer_qpn(m.remote_qpn);
}
bool is_sane(const CmSidrRep& m) noexcept {
    return m.info_bytes <= m.info.size() && (m.status != SidrStatus::kOk || is_consumer_qpn(m.qpn));
}
template <class Message>
bool is_sane(const Message&) noexcept {
    return true;
}

template <std::size_t kIndex>
Result<CmMessage> decode_as(std::span<const std::byte> body) noexcept {
    std::variant_alternative_t<kIndex, CmMessage> message;
    BitReader reader(body);
    describe(reader, message);
    if (!is_sane(message)) {
        return EBADMSG;
    }
    return CmMessage(message);
}

template <std::size_t... kIndex>
Result<CmMessage> decode_body(std::size_t index, std::span<const std::byte> body,
                              std::index_sequence<kIndex...>) noexcept {
    using Decode = Result<CmMessage> (*)(std::span<const std::byte>) noexcept;
    static constexpr Decode kDecoders[] = {decode_as<kIndex>...};
    return kDecoders[index](body);
}

constexpr std::array<std::uint8_t, 12> kMappedV4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

void encode_cm(const CmMad& mad, std::span<std::byte, kMadBytes> to) noexcept {
    BitWriter header(to.first(kMadHeaderBytes));
    header.bits(8, kBaseVersion);
    header.bits(8, kCmClass);
    header.bits(8, kCmClassVersion);
    header.bits(8, kMethodSend);
    header.reserved(16 + 16);  // status, class specific
    header.bits(64, mad.transaction_id);
    header.bits(16, kReqAttribute + mad.message.index());
    BitWriter body(to.subspan(kMadHeaderBytes));
    std::visit([&body](const auto& message) { describe(body, message); }, mad.message);
}

Result<CmMad> decode_cm(std::span<const std::byte> mad) noexcept {
    if (mad.size() != kMadBytes) {
        return EBADMSG;
    }
    WireReader header(mad.data());
    const bool is_ours = header.u8() == kBaseVersion && header.u8() == kCmClass &&
                         header.u8() == kCmClassVersion && header.u8() == kMethodSend;
    if (!is_ours) {
        return EBADMSG;
    }
    header.u32();
    const std::uint64_t transaction_id = header.u64();
    const auto index = static_cast<std::size_t>(header.u16()) - kReqAttribute;
    if (index >= std::variant_size_v<CmMessage>) {
        return EBADMSG;
    }
    const Result<CmMessage> message =
        decode_body(index, mad.subspan(kMadHeaderBytes),
                    std::make_index_sequence<std::variant_size_v<CmMessage>>());
    if (!message.is_ok()) {
        return message.status();
    }
    return CmMad{.transaction_id = transaction_id, .message = message.value()};
}

std::uint8_t mtu_code(std::uint32_t bytes) noexcept {
    std::uint8_t code = 1;
    while (mtu_bytes(code) < bytes) {
        ++code;
    }
    return code;
}

// ---- the RDMA IP CM service ----

void encode_ip_cm(const IpCmHeader& header, std::span<std::byte, kIpCmHeaderBytes> to) noexcept {
    const bool is_mapped = is_v4(header.source);
    BitWriter writer(to);
    writer.bits(8, 0u);
    writer.bits(4, is_mapped ? 4u : 6u);
    writer.reserved(4);
    writer.bits(16, header.source_port);
    for (std::array<std::uint8_t, 16> address : {header.source, header.dest}) {
        if (is_mapped) {
            std::fill_n(address.begin(), kMappedV4.size(), std::uint8_t{0});
        }
        writer.bytes(address);
    }
}

Result<IpCmHeader> decode_ip_cm(std::span<const std::byte, kIpCmHeaderBytes> from) noexcept {
    unsigned version = 0;
    unsigned ip_version = 0;
    IpCmHeader header;
    BitReader reader(from);
    reader.bits(8, version);
    reader.bits(4, ip_version);
    reader.reserved(4);
    reader.bits(16, header.source_port);
    reader.bytes(header.source);
    reader.bytes(header.dest);
    if (version != 0 || (ip_version != 4 && ip_version != 6)) {
        return EBADMSG;
    }
    if (ip_version == 4) {
        std::copy(kMappedV4.begin(), kMappedV4.end(), header.source.begin());
        std::copy(kMappedV4.begin(), kMappedV4.end(), header.dest.begin());
    }
    return header;
}

const char* to_string(CmRejectReason reason) noexcept {
    switch (reason) {
        case CmRejectReason::kNoQp: return "no QP available";
        case CmRejectReason::kNoEec: return "no EEC available";
        case CmRejectReason::kNoResources: return "no resources available";
        case CmRejectReason::kTimeout: return "timeout";
        case CmRejectReason::kUnsupportedRequest: return "unsupported request";
        case CmRejectReason::kInvalidCommId: return "invalid communication ID";
        case CmRejectReason::kInvalidCommInstance: return "invalid communication instance";
        case CmRejectReason::kInvalidServiceId: return "invalid service ID";
        case CmRejectReason::kInvalidTransport: return "invalid transport service type";
        case CmRejectReason::kStaleConnection: return "stale connection";
        case CmRejectReason::kNoRdc: return "RDC does not exist";
        case CmRejectReason::kPrimaryGid: return "primary remote port GID rejected";
        case CmRejectReason::kPrimaryLid: return "primary remote port LID rejected";
        case CmRejectReason::kPrimarySl: return "invalid primary SL";
        case CmRejectReason::kPrimaryTrafficClass: return "invalid primary traffic class";
        case CmRejectReason::kPrimaryHopLimit: return "invalid primary hop limit";
        case CmRejectReason::kPrimaryPacketRate: return "invalid primary packet rate";
        case CmRejectReason::kAlternateGid: return "alternate remote port GID rejected";
        case CmRejectReason::kAlternateLid: return "alternate remote port LID rejected";
        case CmRejectReason::kAlternateSl: return "invalid alternate SL";
        case CmRejectReason::kAlternateTrafficClass: return "invalid alternate traffic class";
        case CmRejectReason::kAlternateHopLimit: return "invalid alternate hop limit";
        case CmRejectReason::kAlternatePacketRate: return "invalid alternate packet rate";
        case CmRejectReason::kCmRedirect: return "port and CM redirection";
        case CmRejectReason::kPortRedirect: return "port redirection";
        case CmRejectReason::kInvalidMtu: return "invalid path MTU";
        case CmRejectReason::kResponderResources: return "insufficient responder resources";
        case CmRejectReason::kConsumer: return "consumer reject";
        case CmRejectReason::kRnrRetryCount: return "RNR retry count reject";
        case CmRejectReason::kDuplicateCommId: return "duplicate local communication ID";
        case CmRejectReason::kInvalidClassVersion: return "invalid class version";
        case CmRejectReason::kPrimaryFlowLabel: return "invalid flow label";
        case CmRejectReason::kAlternateFlowLabel: return "invalid alternate flow label";
    }
    return "unknown";
}

}  // namespace rvt::protocol
