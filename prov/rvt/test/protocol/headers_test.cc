// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Headers: every packet of kernel rxe decodes and encodes again to the same bytes, every opcode
// survives the way there and back, and nonsense is refused.
#include "protocol/headers.h"

#include "common/check.h"
#include "protocol/capture.h"
#include "protocol/feth.h"
#include "protocol/syndrome.h"

#include <array>
#include <set>
#include <vector>

using namespace rvt;
using namespace rvt::protocol;

namespace {

/// A header in which every member differs from its default.
PacketHeader full_header(Opcode opcode) {
    return {.opcode = opcode,
            .solicited = true,
            .migrated = false,
            .ack_request = true,
            .pad = 0,
            .reserved = 0x81,
            .pkey = 0x1234,
            .dest_qpn = 0xabcdef,
            .psn = Psn(0x123456),
            .qkey = 0x11223344,
            .src_qpn = 0x55aa55,
            .flush = 0x01020304,
            .remote_addr = 0x0102030405060708,
            .rkey = 0x99887766,
            .dma_bytes = 0x00abcdef,
            .swap_add = 0x1112131415161718,
            .compare = 0x2122232425262728,
            .syndrome = 0x61,
            .msn = 0x654321,
            .original = 0x3132333435363738,
            .imm = 0xcafef00d};
}

std::vector<std::byte> encoded(const PacketHeader& header, std::size_t payload = 0) {
    std::vector<std::byte> packet(kMaxHeaderBytes);
    packet.resize(encode(header, packet.data()));
    packet.resize(packet.size() + payload, std::byte{0x5a});
    return packet;
}

template <class Each>
void for_each_opcode(Each each) {
    for (unsigned number = 0; number < 256; ++number) {
        if (const OpcodeInfo* info = opcode_info(static_cast<std::uint8_t>(number))) {
            each(static_cast<Opcode>(number), *info);
        }
    }
}

}  // namespace

Test(headers, packets_of_kernel_rxe_decode_and_encode_to_the_same_bytes) {
    std::set<Opcode> seen;
    for (const test::CapturedPacket& captured : test::reference_capture()) {
        auto decoded = decode(captured.packet);
        RVT_OK(decoded);
        const DecodedPacket& packet = decoded.value();
        std::vector<std::byte> again = encoded(packet.header);
        again.insert(again.end(), packet.payload.begin(), packet.payload.end());
        again.resize(again.size() + packet.header.pad);
        cr_assert(again == captured.packet, "%s differs", packet.header.info().name);
        seen.insert(packet.header.opcode);
    }
    for (const Opcode opcode :
         {Opcode::kRcSendFirst, Opcode::kRcWriteOnly, Opcode::kRcReadRequest, Opcode::kRcAck,
          Opcode::kRcAtomicAck, Opcode::kRcCompareSwap, Opcode::kUdSendOnly}) {
        cr_assert(seen.contains(opcode), "%s is not in the capture", opcode_info(opcode).name);
    }
}

Test(headers, every_opcode_survives_the_way_there_and_back) {
    for_each_opcode([](Opcode opcode, const OpcodeInfo& info) {
        const std::vector<std::byte> packet = encoded(full_header(opcode));
        RVT_EQ(packet.size(), info.header_bytes);
        auto decoded = decode(packet);
        RVT_OK(decoded);
        cr_assert(encoded(decoded.value().header) == packet, "%s", info.name);
        RVT_EQ(decoded.value().header.psn.value(), 0x123456);
        RVT_EQ(decoded.value().header.dest_qpn, 0xabcdef);
    });
}

Test(headers, a_packet_shorter_than_its_headers_is_refused) {
    for_each_opcode([](Opcode opcode, const OpcodeInfo&) {
        const std::vector<std::byte> packet = encoded(full_header(opcode));
        for (std::size_t bytes = 0; bytes < packet.size(); ++bytes) {
            RVT_EQ(decode(std::span(packet).first(bytes)), EBADMSG);
        }
    });
}

Test(headers, payload_stands_only_behind_packets_that_carry_some) {
    for_each_opcode([](Opcode opcode, const OpcodeInfo& info) {
        const auto decoded = decode(encoded(full_header(opcode), 8));
        RVT_EQ(decoded.status(), info.has_payload ? 0 : EBADMSG);
    });
}

Test(headers, padding_is_taken_off_and_must_be_there) {
    PacketHeader header = full_header(Opcode::kRcSendOnly);
    header.pad = 3;
    const auto decoded = decode(encoded(header, 8));
    RVT_OK(decoded);
    RVT_EQ(decoded.value().payload.size(), 5);
    RVT_EQ(decode(encoded(header, 2)), EBADMSG);
}

Test(headers, unknown_opcodes_and_versions_are_refused) {
    std::vector<std::byte> packet = encoded(full_header(Opcode::kRcSendOnly));
    packet[1] |= std::byte{1};
    RVT_EQ(decode(packet), EBADMSG);
    packet[1] &= std::byte{0xf0};
    RVT_OK(decode(packet));
    for (const unsigned opcode : {0x15u, 0x18u, 0x2cu, 0x40u, 0x66u, 0x81u, 0xffu}) {
        packet[0] = static_cast<std::byte>(opcode);
        RVT_EQ(decode(packet), EBADMSG);
    }
}

Test(headers, opcodes_are_found_by_what_they_mean) {
    RVT_EQ(opcode_of(QpType::kRc, Kind::kSend, Part::kLast, Ext::kIeth), Opcode::kRcSendLastInv);
    RVT_EQ(opcode_of(QpType::kRc, Kind::kReadResponse, Part::kMiddle),
           Opcode::kRcReadResponseMiddle);
    RVT_EQ(opcode_of(QpType::kUc, Kind::kWrite, Part::kOnly, Ext::kImm), Opcode::kUcWriteOnlyImm);
    RVT_EQ(opcode_of(QpType::kUd, Kind::kSend, Part::kOnly, Ext::kImm), Opcode::kUdSendOnlyImm);
    RVT_EQ(opcode_of(QpType::kRc, Kind::kSend, Part::kFirst), Opcode::kRcSendFirst);
}

Test(headers, syndromes_survive_the_way_there_and_back) {
    for (const Syndrome syndrome : {ack(), rnr_nak(14), nak(NakCode::kRemoteAccess)}) {
        RVT_ASSERT(syndrome_of(to_wire(syndrome)) == syndrome);
    }
    RVT_EQ(to_wire(ack()), 0x1f);
    RVT_EQ(to_wire(rnr_nak(1)), 0x21);
    RVT_EQ(to_wire(nak(NakCode::kInvalidRequest)), 0x61);
}
Test(headers, the_word_of_a_flush_survives_the_way_there_and_back) {
    using enum FlushType;
    RVT_EQ(feth_of(kGlobal, FlushLevel::kRange), 0x01);
    RVT_EQ(feth_of(kGlobal | kPersistent, FlushLevel::kRegion), 0x13);
    RVT_EQ(flush_type(0xffffff13), kGlobal | kPersistent);
    RVT_EQ(flush_level(0xffffffd3), FlushLevel::kRegion);
}
