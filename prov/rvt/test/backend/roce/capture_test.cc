// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Captures of two devices on the loopback interface: every packet once as it leaves and once as it
// arrives, with the headers and the ICRC of the wire.
#include "protocol/capture.h"
#include "conform/fixture.h"
#include "protocol/headers.h"

#include <algorithm>
#include <string>
#include <vector>

using namespace rvt;
using namespace rvt::conform;
using test::CapturedPacket;

namespace {

constexpr std::uint32_t kIn = 1;  // as pcapng has them
constexpr std::uint32_t kOut = 2;
constexpr std::uint32_t kCrcError = 1u << 24;

/// A capture in memory of what the devices of RoceAs send and receive from now on.
class Recording {
  public:
    explicit Recording(const util::SockAddr& address) {
        RoceAs::attr.address = address;
        RoceAs::attr.capture = protocol::PcapWriter::open(file_.name).take();
    }
    /// Ends it.
    test::Capture take() {
        RoceAs::attr.capture.reset();
        return test::read_capture(file_.name);
    }

  private:
    test::CaptureFile file_;
};

const util::SockAddr kV4{.family = AF_INET, .ip = {127, 0, 0, 1}};
const util::SockAddr kV6{.family = AF_INET6,
                         .ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

std::vector<CapturedPacket> on(const test::Capture& capture, std::uint32_t interface,
                               std::uint32_t direction) {
    std::vector<CapturedPacket> some;
    std::copy_if(capture.packets.begin(), capture.packets.end(), std::back_inserter(some),
                 [&](const CapturedPacket& packet) {
                     return packet.interface == interface && (packet.flags & 3) == direction;
                 });
    return some;
}

/// How many of the next `count` packets of a plan get through.
int spared(const protocol::FaultPlan& plan, int count) {
    protocol::FaultInjector injector(plan);
    int spared = 0;
    for (int i = 0; i < count; ++i) {
        spared += injector.next().is_dropped ? 0 : 1;
    }
    return spared;
}

/// Several packets each way, large and small, in runs and alone.
void talk() {
    Pair<RoceAs> pair;
    pair.a().fill(0, 100'000, 1);
    RVT_OK(pair.b().post_recv(1, 0, 100));
    RVT_OK(pair.post_send({.bytes = 99}));
    RVT_EQ(pair.received().byte_len, 99);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 100'000}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .bytes = 20'000}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(0, 100'000, 1));
    RVT_ASSERT(pair.is_silent(pair.a().send_cq));
}

void expect_same(const std::vector<CapturedPacket>& left, const std::vector<CapturedPacket>& came) {
    RVT_EQ(left.size(), came.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
        RVT_ASSERT(left[i].headers == came[i].headers && left[i].packet == came[i].packet);
        RVT_EQ(left[i].icrc, came[i].icrc);
        RVT_ASSERT(left[i].at <= came[i].at);
    }
}

void every_packet_is_captured(const util::SockAddr& address) {
    Recording recording(address);
    talk();
    const test::Capture capture = recording.take();
    RVT_ASSERT(capture.interfaces == std::vector<std::string>({"conform0", "conform1"}));
    for (const CapturedPacket& packet : capture.packets) {
        RVT_OK(protocol::decode(packet.packet));
        RVT_EQ(packet.icrc, protocol::icrc_of(packet.path, packet.packet, packet.identification));
        RVT_EQ(packet.flags & kCrcError, 0);
        RVT_ASSERT(packet.comment.empty());
    }
    // 98 packets of the write, and 20 of what the read fetches.
    RVT_ASSERT(on(capture, 0, kOut).size() >= 100);
    RVT_ASSERT(on(capture, 1, kOut).size() >= 20);
    expect_same(on(capture, 0, kOut), on(capture, 1, kIn));
    expect_same(on(capture, 1, kOut), on(capture, 0, kIn));
}

}  // namespace

Test(roce_capture, has_every_packet_over_ipv4, .timeout = 30) {
    every_packet_is_captured(kV4);
}

Test(roce_capture, has_every_packet_over_ipv6, .timeout = 30) {
    every_packet_is_captured(kV6);
}

// Who posts several and then polls pays for one message to the kernel, which numbers its packets.
Test(roce_capture, messages_of_a_packet_leave_together, .timeout = 30) {
    constexpr std::size_t kMessages = 12;
    for (const std::size_t bytes : {1000, 300}) {
        Recording recording(kV4);
        {
            Pair<RoceAs> pair;
            for (std::size_t i = 0; i < kMessages; ++i) {
                RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = bytes}));
            }
            for (std::size_t i = 0; i < kMessages; ++i) {
                RVT_EQ(pair.sent().status, WcStatus::kSuccess);
            }
        }
        const auto left = on(recording.take(), 0, kOut);
        const auto joined = std::count_if(left.begin(), left.end(), [](const auto& packet) {
            return packet.identification != 0;
        });
        RVT_ASSERT(joined >= 8);
    }
}

Test(roce_capture, marks_what_arrives_damaged, .timeout = 30) {
    constexpr unsigned kDatagrams = 20;
    Recording recording(kV4);
    RoceAs::attr.faults = {.corrupt = 1'000'000};
    {
        Pair<RoceAs> pair({.type = QpType::kUd});
        for (unsigned i = 0; i < kDatagrams; ++i) {
            RVT_OK(pair.post_send());
        }
        while (pair.backend().packet_device(kB).receive_queue().corrupted() < kDatagrams) {
            pair.pass_us(5);
        }
    }
    const auto arrived = on(recording.take(), 1, kIn);
    RVT_EQ(arrived.size(), kDatagrams);
    for (const CapturedPacket& packet : arrived) {
        RVT_EQ(packet.flags & kCrcError, kCrcError);
        RVT_ASSERT(packet.comment == "wrong ICRC");
        RVT_NE(packet.icrc, protocol::icrc_of(packet.path, packet.packet, packet.identification));
    }
}

Test(roce_capture, misses_each_packet_of_a_run_that_a_fault_took, .timeout = 30) {
    constexpr int kPackets = 64;
    Recording recording(kV4);
    RoceAs::attr.faults = {.drop = 500'000, .seed = 3};
    {
        Pair<RoceAs> pair({.type = QpType::kUc});
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = std::size_t{kPackets} * 1024}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    }
    const test::Capture capture = recording.take();
    RVT_EQ(on(capture, 0, kOut).size(), kPackets);
    RVT_EQ(on(capture, 1, kIn).size(), spared(RoceAs::attr.faults, kPackets));
}
