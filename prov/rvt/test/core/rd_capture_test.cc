// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of RDM endpoints in a capture are frames of a flow.
#include "core/rd_capture.h"

#include <string>
#include <vector>

#include <criterion/criterion.h>

#include "common/check.h"
#include "protocol/capture.h"
#include "protocol/headers.h"

using namespace rvt;
using namespace rvt::core;
using protocol::Opcode;

namespace {

constexpr Address address_of(std::uint16_t port) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, .port = port};
}

/// The packets that a message is shown as.
std::vector<test::CapturedPacket> show(const RdMessage& message) {
    const test::CaptureFile file;
    {
        RdCapture capture(protocol::PcapWriter::open(file.name).take(), "rdm", address_of(2000));
        RVT_ASSERT(capture.is_on());
        capture.received(address_of(1000), message);
    }
    return test::read_capture(file.name).packets;
}

}  // namespace

Test(rd_capture, a_small_message_is_one_packet_with_its_record) {
    const std::string text = "hello";
    const auto* const payload = reinterpret_cast<const std::byte*>(text.data());
    const auto packets = show({.op = RdOp::kEager,
                               .length = 5,
                               .tag = 77,
                               .payload = payload,
                               .payload_bytes = text.size()});
    RVT_EQ(packets.size(), 1);
    RVT_EQ(packets[0].path.source_port, 1000);
    RVT_EQ(packets[0].path.dest_port, 2000);
    RVT_EQ(packets[0].icrc, protocol::icrc_of(packets[0].path, packets[0].packet));
    const auto decoded = protocol::decode(packets[0].packet).take();
    RVT_ASSERT(decoded.header.opcode == Opcode::kRcSendOnly);
    const auto record = decode_record(decoded.payload);
    RVT_ASSERT(record.has_value());
    RVT_ASSERT(record->message.op == RdOp::kEager);
    RVT_EQ(record->message.tag, 77);
    RVT_ASSERT(std::equal(payload, payload + 5, record->message.payload));
}

Test(rd_capture, a_long_run_goes_on_in_the_packets_behind) {
    const std::vector<std::byte> run(10'000, std::byte{0x5a});
    const auto packets = show({.op = RdOp::kPullData,
                               .length = static_cast<std::uint32_t>(run.size()),
                               .run = run.data()});
    RVT_EQ(packets.size(), 3);
    const Opcode opcodes[] = {Opcode::kRcSendFirst, Opcode::kRcSendMiddle, Opcode::kRcSendLast};
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < packets.size(); ++i) {
        const auto decoded = protocol::decode(packets[i].packet).take();
        RVT_ASSERT(decoded.header.opcode == opcodes[i]);
        RVT_EQ(decoded.header.psn.value(), i);
        bytes += decoded.payload.size();
    }
    RVT_EQ(bytes, run_record_bytes(0) + run.size());
}
