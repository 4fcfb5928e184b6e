// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Segments in a capture are the packets of RoCEv2 that mean the same.
#include "core/segment_capture.h"

#include <cstring>
#include <string>
#include <vector>

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/responder.h"
#include "core/segment_wire.h"
#include "protocol/capture.h"
#include "protocol/headers.h"
#include "protocol/syndrome.h"

using namespace rvt;
using namespace rvt::core;
using protocol::Opcode;

namespace {

constexpr Address address_of(std::uint16_t port) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, .port = port};
}

SegmentHeader segment(SegmentKind kind, WrOpcode opcode, QpType type = QpType::kRc) {
    SegmentHeader header{};
    header.version = SegmentHeader::kVersion;
    header.kind = kind;
    header.qp_type = static_cast<std::uint8_t>(type);
    header.opcode = static_cast<std::uint8_t>(opcode);
    header.src_qpn = 0x11;
    header.dest_qpn = 0x22;
    header.msn = 7;
    header.remote_addr = 0x1000;
    header.rkey = 0x33;
    return header;
}

struct Shown {
    test::CapturedPacket captured;
    protocol::DecodedPacket packet;
};

/// Captures one segment and reads it back. Returns: nothing when it was left out.
std::vector<Shown> show(SegmentHeader header, std::size_t bytes,
                        std::optional<std::uint64_t> sent_ns = 5) {
    static std::vector<test::Capture> kept;  // decoded packets point into it
    const test::CaptureFile file;
    std::vector<std::byte> payload(bytes, std::byte{0x5a});
    {
        const protocol::PcapInterface capture(protocol::PcapWriter::open(file.name).take(), "shm");
        const iovec one{payload.data(), payload.size()};
        capture_segment(capture, sent_ns, {.source = address_of(1000), .dest = address_of(2000)},
                        std::as_bytes(std::span(&header, 1)), {&one, 1});
    }
    kept.push_back(test::read_capture(file.name));
    std::vector<Shown> shown;
    for (const test::CapturedPacket& one : kept.back().packets) {
        shown.push_back({one, protocol::decode(one.packet).take()});
    }
    return shown;
}

Shown show_one(const SegmentHeader& header, std::size_t bytes) {
    const auto all = show(header, bytes);
    RVT_EQ(all.size(), 1);
    return all[0];
}

}  // namespace

Test(segment_capture, the_parts_of_a_message_are_its_first_middle_and_last_packet) {
    SegmentHeader part = segment(SegmentKind::kRequest, WrOpcode::kSendImm);
    part.message_bytes = 300;
    part.imm = 9;
    const Opcode opcodes[] = {Opcode::kRcSendFirst, Opcode::kRcSendMiddle, Opcode::kRcSendLastImm};
    for (const Opcode opcode : opcodes) {
        const Shown shown = show_one(part, 100);
        RVT_ASSERT(shown.packet.header.opcode == opcode);
        RVT_EQ(shown.packet.header.dest_qpn, 0x22);
        RVT_EQ(shown.packet.header.psn.value(), 7);
        RVT_EQ(shown.packet.payload.size(), 100);
        RVT_EQ(shown.packet.header.ack_request, opcode == Opcode::kRcSendLastImm);
        part.offset += 100;
    }
}

Test(segment_capture, a_packet_has_the_addresses_and_a_right_icrc) {
    SegmentHeader whole = segment(SegmentKind::kRequest, WrOpcode::kSend, QpType::kUd);
    whole.message_bytes = 5;
    whole.qkey = 0x1234;
    const Shown shown = show_one(whole, 5);
    RVT_ASSERT(shown.packet.header.opcode == Opcode::kUdSendOnly);
    RVT_EQ(shown.packet.header.qkey, 0x1234);
    RVT_EQ(shown.packet.header.src_qpn, 0x11);
    RVT_EQ(shown.packet.payload.size(), 5);
    RVT_EQ(shown.captured.path.source_port, 1000);
    RVT_EQ(shown.captured.path.dest_port, 2000);
    RVT_EQ(shown.captured.icrc, protocol::icrc_of(shown.captured.path, shown.captured.packet));
    RVT_EQ(shown.captured.at, 5);
    RVT_EQ(shown.captured.flags, 2);
    RVT_EQ(show(whole, 5, std::nullopt)[0].captured.flags, 1);
}

Test(segment_capture, requests_for_memory_name_it) {
    SegmentHeader read = segment(SegmentKind::kRequest, WrOpcode::kRead);
    read.message_bytes = 4000;
    const Shown asked = show_one(read, 0);
    RVT_ASSERT(asked.packet.header.opcode == Opcode::kRcReadRequest);
    RVT_EQ(asked.packet.header.remote_addr, 0x1000);
    RVT_EQ(asked.packet.header.rkey, 0x33);
    RVT_EQ(asked.packet.header.dma_bytes, 4000);
    SegmentHeader swap = segment(SegmentKind::kRequest, WrOpcode::kCas);
    swap.compare_add = 1;
    swap.swap = 2;
    const Shown swapped = show_one(swap, 0);
    RVT_EQ(swapped.packet.header.compare, 1);
    RVT_EQ(swapped.packet.header.swap_add, 2);
    SegmentHeader add = segment(SegmentKind::kRequest, WrOpcode::kFetchAdd);
    add.compare_add = 3;
    RVT_EQ(show_one(add, 0).packet.header.swap_add, 3);
}

Test(segment_capture, answers_say_what_has_become_of_a_request) {
    SegmentHeader answer = segment(SegmentKind::kAck, WrOpcode::kFetchAdd);
    answer.compare_add = 44;
    const Shown atomic = show_one(answer, 0);
    RVT_ASSERT(atomic.packet.header.opcode == Opcode::kRcAtomicAck);
    RVT_EQ(atomic.packet.header.original, 44);
    answer = segment(SegmentKind::kNak, WrOpcode::kSend);
    const auto syndrome = [&](Nak nak) {
        answer.nak = static_cast<std::uint8_t>(nak);
        return protocol::syndrome_of(show_one(answer, 0).packet.header.syndrome);
    };
    RVT_ASSERT(syndrome(Nak::kAccess) == protocol::nak(protocol::NakCode::kRemoteAccess));
    RVT_ASSERT(syndrome(Nak::kTooLong) == protocol::nak(protocol::NakCode::kInvalidRequest));
    answer.retry_after_us = rnr_timer_us(12);
    RVT_ASSERT(syndrome(Nak::kNotReady) == protocol::rnr_nak(12));
}

Test(segment_capture, what_is_no_segment_is_left_out) {
    RVT_EQ(show(segment(SegmentKind::kRequest, WrOpcode::kBindMw), 0).size(), 0);
    RVT_EQ(show(segment(SegmentKind::kRequest, WrOpcode::kRead, QpType::kUd), 0).size(), 0);
    RVT_EQ(show(segment(SegmentKind::kRequest, WrOpcode::kSend, QpType::kRd), 0).size(), 0);
    SegmentHeader unknown = segment(SegmentKind::kRequest, WrOpcode::kSend);
    unknown.kind = static_cast<SegmentKind>(99);
    RVT_EQ(show(unknown, 0).size(), 0);
    unknown.kind = SegmentKind::kRequest;
    unknown.opcode = 99;
    RVT_EQ(show(unknown, 0).size(), 0);
    // A datagram is one packet, whatever it says of itself.
    SegmentHeader part = segment(SegmentKind::kRequest, WrOpcode::kSend, QpType::kUd);
    part.message_bytes = 300;
    RVT_EQ(show(part, 100).size(), 0);
}
