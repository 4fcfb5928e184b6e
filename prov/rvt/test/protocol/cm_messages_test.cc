// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of the communication manager: those of kernel rxe decode and encode again to the same
// bytes, every message survives the way there and back, and nonsense is refused.
#include "protocol/cm_messages.h"

#include "common/check.h"
#include "protocol/capture.h"
#include "protocol/headers.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

using namespace rvt;
using namespace rvt::protocol;

namespace {

using Mad = std::array<std::byte, kMadBytes>;

template <std::size_t kBytes>
void fill(std::array<std::byte, kBytes>& bytes, unsigned seed) {
    for (std::size_t i = 0; i < kBytes; ++i) {
        bytes[i] = static_cast<std::byte>(seed + i);
    }
}
std::array<std::uint8_t, 16> gid(std::uint8_t seed) {
    std::array<std::uint8_t, 16> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::uint8_t>(seed + i);
    }
    return bytes;
}

CmPath full_path(std::uint8_t seed) {
    return {.local_lid = 0x1234,
            .remote_lid = 0x5678,
            .local_gid = gid(seed),
            .remote_gid = gid(seed + 0x40),
            .flow_label = 0xabcde,
            .packet_rate = 0x2a,
            .traffic_class = 0x91,
            .hop_limit = 0x3f,
            .service_level = 9,
            .is_subnet_local = true,
            .local_ack_timeout = 0x15};
}

// One of each message, in which every member differs from its default and, where it has a
// neighbour, from that.
CmReq full_req() {
    CmReq req{.local_comm_id = 0x01020304,
              .service_id = 0x1112131415161718,
              .ca_guid = 0x2122232425262728,
              .qkey = 0x31323334,
              .qpn = 0x414243,
              .responder_resources = 0x51,
              .initiator_depth = 0x52,
              .remote_response_timeout = 0x13,
              .transport = CmTransport::kExtended,
              .has_flow_control = true,
              .starting_psn = 0x616263,
              .local_response_timeout = 0x0d,
              .retry_count = 5,
              .pkey = 0x7fff,
              .path_mtu = 3,
              .rnr_retry = 6,
              .max_cm_retries = 11,
              .has_srq = true,
              .extended_transport = 1,
              .primary = full_path(1),
              .alternate = full_path(0x80)};
    fill(req.private_data, 0x10);
    return req;
}
CmMra full_mra() {
    CmMra mra{.local_comm_id = 0x01020304,
              .remote_comm_id = 0x05060708,
              .subject = CmSubject::kRep,
              .service_timeout = 0x16};
    fill(mra.private_data, 0x20);
    return mra;
}
CmRej full_rej() {
    CmRej rej{.local_comm_id = 0x01020304,
              .remote_comm_id = 0x05060708,
              .subject = CmSubject::kOther,
              .reason = CmRejectReason::kStaleConnection,
              .info_bytes = 72};
    fill(rej.info, 0x30);
    fill(rej.private_data, 0x40);
    return rej;
}
CmRep full_rep() {
    CmRep rep{.local_comm_id = 0x01020304,
              .remote_comm_id = 0x05060708,
              .qkey = 0x31323334,
              .qpn = 0x414243,
              .starting_psn = 0x616263,
              .responder_resources = 0x51,
              .initiator_depth = 0x52,
              .target_ack_delay = 0x13,
              .failover = CmFailover::kRejected,
              .has_flow_control = true,
              .rnr_retry = 5,
              .has_srq = true,
              .ca_guid = 0x2122232425262728};
    fill(rep.private_data, 0x50);
    return rep;
}
CmRtu full_rtu() {
    CmRtu rtu{.local_comm_id = 0x01020304, .remote_comm_id = 0x05060708};
    fill(rtu.private_data, 0x60);
    return rtu;
}
CmDreq full_dreq() {
    CmDreq dreq{.local_comm_id = 0x01020304, .remote_comm_id = 0x05060708, .remote_qpn = 0x414243};
    fill(dreq.private_data, 0x70);
    return dreq;
}
CmDrep full_drep() {
    CmDrep drep{.local_comm_id = 0x01020304, .remote_comm_id = 0x05060708};
    fill(drep.private_data, 0x80);
    return drep;
}
CmSidrReq full_sidr_req() {
    CmSidrReq req{.request_id = 0x01020304, .pkey = 0x7fff, .service_id = 0x1112131415161718};
    fill(req.private_data, 0x90);
    return req;
}
CmSidrRep full_sidr_rep() {
    CmSidrRep rep{.request_id = 0x01020304,
                  .status = SidrStatus::kUnsupportedVersion,
                  .info_bytes = 71,
                  .qpn = 0x414243,
                  .service_id = 0x1112131415161718,
                  .qkey = 0x31323334};
    fill(rep.info, 0xa0);
    fill(rep.private_data, 0xb0);
    return rep;
}

std::vector<CmMad> full_mads() {
    const CmMessage messages[] = {full_req(),  full_mra(),      full_rej(),
                                  full_rep(),  full_rtu(),      full_dreq(),
                                  full_drep(), full_sidr_req(), full_sidr_rep()};
    std::vector<CmMad> mads;
    for (const CmMessage& message : messages) {
        mads.push_back({.transaction_id = 0xa1a2a3a4a5a6a7a8, .message = message});
    }
    return mads;
}

Mad encoded(const CmMad& mad) {
    Mad bytes;
    bytes.fill(std::byte{0xee});
    encode_cm(mad, bytes);
    return bytes;
}
Mad encoded(const CmMessage& message) {
    return encoded(CmMad{.transaction_id = 7, .message = message});
}

/// The MADs of queue pair 1 in the reference capture: an rping that connects and disconnects.
std::vector<Mad> captured_mads() {
    std::vector<Mad> mads;
    for (const test::CapturedPacket& captured : test::reference_capture()) {
        const DecodedPacket packet = decode(captured.packet).value();
        if (packet.header.dest_qpn == kGsiQpn) {
            RVT_EQ(packet.header.qkey, kGsiQkey);
            RVT_EQ(packet.payload.size(), kMadBytes);
            std::copy(packet.payload.begin(), packet.payload.end(), mads.emplace_back().begin());
        }
    }
    return mads;
}
template <class Message>
Message captured() {
    for (const Mad& mad : captured_mads()) {
        const CmMad decoded = decode_cm(mad).value();
        if (const Message* message = std::get_if<Message>(&decoded.message)) {
            return *message;
        }
    }
    cr_fatal("not in the capture");
    return {};
}

void refuse(Mad mad, std::size_t at, std::initializer_list<unsigned> values) {
    RVT_OK(decode_cm(mad));
    for (const unsigned value : values) {
        mad[at] = static_cast<std::byte>(value);
        cr_assert(decode_cm(mad).error() == EBADMSG, "byte %zu, value %u", at, value);
    }
}

}  // namespace

Test(cm, mads_of_kernel_rxe_decode_and_encode_to_the_same_bytes) {
    std::vector<std::size_t> seen;
    for (const Mad& mad : captured_mads()) {
        const auto decoded = decode_cm(mad);
        RVT_OK(decoded);
        cr_assert(encoded(decoded.value()) == mad, "message %zu differs",
                  decoded.value().message.index());
        seen.push_back(decoded.value().message.index());
    }
    // REQ, REP, RTU, DREQ, DREP
    RVT_ASSERT(seen == std::vector<std::size_t>({0, 3, 4, 5, 6}));
}

Test(cm, request_of_kernel_rxe_says_what_rping_asked_for) {
    const auto req = captured<CmReq>();
    RVT_EQ(req.service_id, ip_service_id(PortSpace::kTcp, 7174));
    RVT_EQ(req.qpn, 0x14);
    RVT_EQ(req.starting_psn, 0x071d60);
    RVT_EQ(req.responder_resources, 1);
    RVT_EQ(req.initiator_depth, 1);
    RVT_EQ(req.remote_response_timeout, 20);
    RVT_EQ(req.local_response_timeout, 20);
    RVT_EQ(req.retry_count, 7);
    RVT_EQ(req.rnr_retry, 7);
    RVT_EQ(req.max_cm_retries, 15);
    RVT_EQ(mtu_bytes(req.path_mtu), 1024);
    RVT_EQ(req.primary.local_lid, kPermissiveLid);
    RVT_EQ(req.primary.remote_lid, kPermissiveLid);
    RVT_EQ(req.primary.hop_limit, 64);
    RVT_EQ(req.primary.local_ack_timeout, 17);
    RVT_ASSERT(req.transport == CmTransport::kRc && !req.has_srq && !req.has_flow_control);
    RVT_ASSERT(req.alternate == CmPath{});
}

Test(cm, request_of_kernel_rxe_names_ip_addresses) {
    const auto req = captured<CmReq>();
    const auto ip = decode_ip_cm(std::span(req.private_data).first<kIpCmHeaderBytes>());
    RVT_OK(ip);
    RVT_EQ(ip.value().source_port, 0xbb12);
    RVT_ASSERT(ip.value().source == req.primary.local_gid);
    RVT_ASSERT(ip.value().dest == req.primary.remote_gid);
    RVT_EQ(ip.value().dest[15], 1);
    RVT_EQ(ip.value().dest[12], 10);
}

Test(cm, reply_of_kernel_rxe_says_what_it_accepted) {
    const auto rep = captured<CmRep>();
    RVT_EQ(rep.remote_comm_id, captured<CmReq>().local_comm_id);
    RVT_EQ(rep.qpn, 0x14);
    RVT_EQ(rep.starting_psn, 0xc87281);
    RVT_EQ(rep.responder_resources, 1);
    RVT_EQ(rep.initiator_depth, 1);
    RVT_EQ(rep.target_ack_delay, 15);
    RVT_EQ(rep.rnr_retry, 7);
    RVT_ASSERT(rep.failover == CmFailover::kAccepted && !rep.has_srq);
}

Test(cm, every_message_survives_the_way_there_and_back) {
    for (const CmMad& mad : full_mads()) {
        const auto decoded = decode_cm(encoded(mad));
        RVT_OK(decoded);
        cr_assert(decoded.value() == mad, "message %zu differs", mad.message.index());
    }
}

Test(cm, attribute_tells_the_message) {
    std::uint16_t attribute = 0x0010;
    for (const CmMad& mad : full_mads()) {
        const Mad bytes = encoded(mad);
        RVT_EQ(bytes[16], 0);
        RVT_EQ(bytes[17], attribute++);
    }
    RVT_EQ(attribute, 0x0019);
}

Test(cm, reserved_bits_are_written_as_zero_and_not_looked_at) {
    struct Reserved {
        std::size_t message;
        std::size_t at;  // in the MAD
        unsigned mask;
    };
    static constexpr Reserved kReserved[] = {
        {0, 4, 0xff},   {0, 6, 0xff},   {0, 18, 0xff},  {0, 20, 0xff}, {0, 28, 0xff},
        {0, 48, 0xff},  {0, 60, 0xff},  {0, 64, 0xff},  {0, 74, 0x08}, {0, 114, 0x0f},
        {0, 118, 0x07}, {0, 119, 0x07}, {0, 163, 0x07}, {1, 32, 0x3f}, {1, 33, 0x07},
        {2, 32, 0x3f},  {2, 33, 0x01},  {3, 39, 0xff},  {3, 40, 0xff}, {3, 47, 0xff},
        {3, 51, 0x0f},  {5, 35, 0xff},  {7, 30, 0xff},  {8, 30, 0xff}, {8, 35, 0xff}};
    const std::vector<CmMad> mads = full_mads();
    for (const Reserved& bits : kReserved) {
        Mad bytes = encoded(mads[bits.message]);
        const unsigned written = static_cast<unsigned>(bytes[bits.at]) & bits.mask;
        cr_assert(written == 0, "message %zu, byte %zu", bits.message, bits.at);
        bytes[bits.at] |= static_cast<std::byte>(bits.mask);
        const auto decoded = decode_cm(bytes);
        RVT_OK(decoded);
        cr_assert(decoded.value() == mads[bits.message], "message %zu, byte %zu", bits.message,
                  bits.at);
    }
}

Test(cm, value_too_wide_for_its_field_leaves_the_others_alone) {
    CmReq req = full_req();
    req.qpn |= 0xff000000;
    req.path_mtu |= 0xf0;
    req.primary.flow_label |= 0xfff00000;
    RVT_ASSERT(decode_cm(encoded(req)).value().message == CmMessage(full_req()));
}

Test(cm, what_is_no_such_mad_is_refused) {
    for (const CmMad& full : full_mads()) {
        const Mad mad = encoded(full);
        refuse(mad, 0, {0, 2});        // base version
        refuse(mad, 1, {0x03, 0x81});  // class
        refuse(mad, 2, {1, 3});        // its version
        refuse(mad, 3, {0x01, 0x81});  // method
        refuse(mad, 16, {1, 0x80});    // attribute
        refuse(mad, 17, {0x0f, 0x19, 1});
    }
}

Test(cm, another_length_is_refused) {
    std::vector<std::byte> bytes(kMadBytes + 1);
    const Mad mad = encoded(full_req());
    std::copy(mad.begin(), mad.end(), bytes.begin());
    for (std::size_t length = 0; length <= bytes.size(); ++length) {
        // Copied, so that a reader behind the end is one behind an allocation.
        const std::vector<std::byte> part(bytes.begin(),
                                          bytes.begin() + static_cast<std::ptrdiff_t>(length));
        RVT_EQ(decode_cm(part), length == kMadBytes ? 0 : EBADMSG);
    }
}

Test(cm, queue_pairs_that_no_consumer_owns_are_refused) {
    for (const std::uint32_t qpn : {0u, 1u, kQpnMask}) {
        CmReq req = full_req();
        CmRep rep = full_rep();
        CmDreq dreq = full_dreq();
        CmSidrRep found = full_sidr_rep();
        found.status = SidrStatus::kOk;
        req.qpn = rep.qpn = dreq.remote_qpn = found.qpn = qpn;
        for (const CmMessage& message :
             {CmMessage(req), CmMessage(rep), CmMessage(dreq), CmMessage(found)}) {
            RVT_EQ(decode_cm(encoded(message)), EBADMSG);
        }
    }
    CmSidrRep refusal = full_sidr_rep();
    refusal.qpn = 0;
    RVT_OK(decode_cm(encoded(refusal)));
}

Test(cm, values_that_do_not_exist_are_refused) {
    refuse(encoded(full_req()), 74, {0x06, 0x66, 0xf6});  // path MTU 0, 6 and 15
    refuse(encoded(full_mra()), 32, {0xc0});              // subject 3
    refuse(encoded(full_rej()), 32, {0xc0});
    refuse(encoded(full_rej()), 33, {73 << 1, 0xfe});  // information bytes
    refuse(encoded(full_sidr_rep()), 29, {73, 0xff});
    refuse(encoded(full_rep()), 50, {0x06});  // failover 3
}

Test(cm, random_bytes_are_refused_or_make_sense) {
    std::mt19937 random(1);
    unsigned taken = 0;
    for (int i = 0; i < 20'000; ++i) {
        Mad mad = encoded(full_mads()[random() % 9]);
        const std::size_t keep = i % 2 == 0 ? 18 : 0;  // the header, or not even that
        for (std::size_t at = keep; at < mad.size(); ++at) {
            mad[at] = static_cast<std::byte>(random());
        }
        if (const auto decoded = decode_cm(mad); decoded.is_ok()) {
            const auto again = decode_cm(encoded(decoded.value()));
            RVT_OK(again);
            RVT_ASSERT(again.value() == decoded.value());
            ++taken;
        }
    }
    RVT_ASSERT(taken > 1000);
}

Test(cm, ip_header_survives_the_way_there_and_back) {
    IpCmHeader v6{.source_port = 0x1234, .source = gid(0x20), .dest = gid(0x60)};
    IpCmHeader v4 = v6;
    for (auto* address : {&v4.source, &v4.dest}) {
        std::fill_n(address->begin(), 10, std::uint8_t{0});
        (*address)[10] = (*address)[11] = 0xff;
    }
    for (const auto& [header, version] : {std::pair(v4, 0x40), std::pair(v6, 0x60)}) {
        std::array<std::byte, kIpCmHeaderBytes> bytes;
        encode_ip_cm(header, bytes);
        RVT_EQ(bytes[0], 0);
        RVT_EQ(bytes[1], version);
        RVT_EQ(bytes[14], version == 0x40 ? 0 : 0x2a);
        RVT_ASSERT(decode_ip_cm(bytes).value() == header);
    }
}

Test(cm, ip_header_of_another_version_is_refused) {
    std::array<std::byte, kIpCmHeaderBytes> bytes{};
    for (unsigned value = 0; value < 256; ++value) {
        bytes[0] = static_cast<std::byte>(value);
        bytes[1] = std::byte{0x40};
        RVT_EQ(decode_ip_cm(bytes), value == 0 ? 0 : EBADMSG);
        bytes[0] = std::byte{0};
        bytes[1] = static_cast<std::byte>(value);
        RVT_EQ(decode_ip_cm(bytes), value >> 4 == 4 || value >> 4 == 6 ? 0 : EBADMSG);
    }
}

Test(cm, service_of_the_ip_cm_is_a_port) {
    RVT_EQ(ip_service_id(PortSpace::kTcp, 7174), 0x01061c06);
    RVT_EQ(ip_service_id(PortSpace::kUdp, 0xffff), 0x0111ffff);
    RVT_ASSERT(is_ip_service(0x01060000) && is_ip_service(0x0111ffff));
    for (const std::uint64_t other : {0x0105ffffu, 0x01070000u, 0x01120000u}) {
        RVT_EQ(is_ip_service(other), false);
    }
    RVT_EQ(is_ip_service(std::uint64_t{1} << 32 | 0x01061c06), false);
    RVT_EQ(ip_service_port(0x01061c06), 7174);
}

Test(cm, every_mtu_has_a_code) {
    for (std::uint8_t code = 1; code <= 5; ++code) {
        RVT_EQ(mtu_code(mtu_bytes(code)), code);
    }
    RVT_EQ(mtu_bytes(5), 4096);
}

Test(cm, reasons_have_names) {
    RVT_ASSERT(to_string(CmRejectReason::kConsumer) == std::string_view("consumer reject"));
    for (std::uint16_t reason = 0; reason <= 34; ++reason) {
        const std::string_view name = to_string(static_cast<CmRejectReason>(reason));
        RVT_EQ(name == "unknown", reason == 0 || reason == 34);
    }
}
