// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices for the conformance suite.
#include "conform/policies.h"

#include <chrono>
#include <iterator>
#include <numeric>

#include "common/check.h"
#include "common/seeds.h"
#include "protocol/headers.h"
#include "protocol/syndrome.h"

namespace rvt::conform {
namespace {

constexpr const char* kNames[] = {"conform0", "conform1"};
constexpr std::uint32_t kSegmentBytes = 1000;  // so that most messages are of several

Address address_of(int i) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1},
            .port = static_cast<std::uint16_t>(7000 + i)};
}

core::Device* add_device(core::Registry& registry, TestPort& port, int i) {
    const DeviceInfo info{
        .name = kNames[i],
        .grade = Grade::kSegment,
        .address = address_of(i),
        .limits = {.max_qp = 64, .max_mr = 255, .max_segment_bytes = kSegmentBytes},
        .now_us = fake_now};
    port.device = registry.add_device(info, test_segment_ops(), &port).value();
    return port.device;
}

}  // namespace

std::uint64_t fake_now() noexcept {
    // relaxed: a clock orders nothing.
    return fake_now_us.load(std::memory_order_relaxed);
}

Loopback::Loopback() : device_(add_device(registry_, port_, 0)) {}

Segments::Segments() {
    for (int i : {0, 1}) {
        ports_[i].net = &net_;
        devices_[i] = add_device(registry_, ports_[i], i);
        net_.add(ports_[i]);
    }
}

void Segments::break_channels() {
    net_.break_all();
}

Packets::Packets() {
    for (int i : {0, 1}) {
        RVT_OK(wire_.attach(registry_, ports_[i],
                            {.name = kNames[i],
                             .grade = Grade::kPacket,
                             .address = address_of(i),
                             .limits = {.max_qp = 64, .max_mr = 255},
                             .payload_bytes = 256,
                             .now_us = fake_now}));
    }
}

Packets::~Packets() {
    for (fake::Port& port : ports_) {
        wire_.detach(port);
    }
}

namespace {

/// A responder refuses for good but once, and says nothing more in the error state. Where that gets
/// lost, the requester only ever finds silence.
bool is_final_refusal(std::span<const std::byte> packet) {
    const auto decoded = protocol::decode(packet);
    if (!decoded.is_ok() || decoded.value().header.opcode != protocol::Opcode::kRcAck) {
        return false;
    }
    const auto [type, value] = protocol::syndrome_of(decoded.value().header.syndrome);
    return type == protocol::Syndrome::Type::kNak &&
           value != static_cast<std::uint8_t>(protocol::NakCode::kPsnSequence);
}

}  // namespace

LossyPackets::LossyPackets() {
    // Whatever steps a test's seeds make (test::kSeedStep), all of these have their turns.
    static constexpr const char* kMixtures[] = {
        "drop=2%,duplicate=2%,reorder=2%,corrupt=2%,delay=2%:100us",
        "drop=0.5%",
        "drop=10%",
        "drop=1%,duplicate=20%",
        "drop=1%,reorder=20%",
        "drop=1%,delay=20%:300us",
        "corrupt=8%",
    };
    static_assert(std::gcd(std::size(kMixtures), test::kSeedStep) == 1);
    const std::uint64_t seed = test::seed_in_play;
    protocol::FaultPlan faults =
        protocol::parse_faults(kMixtures[seed % std::size(kMixtures)]).value();
    faults.seed = seed;
    wire().spares = is_final_refusal;
    wire().set_faults(faults);
}

Roce::Roce(const roce::PacketDeviceAttr& attr) {
    for (int i : {0, 1}) {
        roce::PacketDeviceAttr own = attr;
        own.name = kNames[i];
        own.payload_bytes = 1024;
        own.limits = {.max_qp = 64, .max_mr = 255};
        own.now_us = fake_now;
        if (attr.address.family == AF_UNSPEC) {
            own.address = {.family = AF_INET, .ip = {127, 0, 0, 1}};
        }
        devices_[i] = roce::PacketDevice::open(registry_, own).take();
    }
}

Roce::~Roce() {
    for (auto& device : devices_) {
        [[maybe_unused]] const Status closed = device->close();
    }
}

#ifdef RVT_HAVE_RDMACM
Nic::Nic() {
    const std::vector<verbs::NicAddress> nics = verbs::find_nics();
    if (nics.empty()) {
        cr_skip_test("this host has no NIC");
    }
    nic_ = verbs::Nic::open(registry_, nics.front()).take();
}

void Nic::settle() {
    nic_->take_events();
    side(0).progress();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}
#endif

Shm::Shm() {
    for (int i : {0, 1}) {
        devices_[i] =
            shm::SegmentDevice::open(
                registry_,
                {.name = kNames[i],
                 .address = {.family = AF_INET, .ip = {127, 0, 0, 1}},
                 .limits = {.max_qp = 64, .max_mr = 255, .max_segment_bytes = kSegmentBytes},
                 .now_us = fake_now})
                .take();
    }
    for (int i : {0, 1}) {
        channels_[i] = devices_[i]->open_channel(side(1 - i).address()).value();
    }
    await_connection();
}

/// The clock of the suite stands still, that of the handshake does not.
void Shm::await_connection() {
    using State = shm::SegmentChannel::State;
    for (int i : {0, 1}) {
        const auto& channel = static_cast<shm::SegmentChannel&>(*channels_[i]);
        for (settle(); channel.state() == State::kConnecting; settle()) {
            side(i).sleep_on(-1, 1000);
        }
        RVT_EQ(channel.state(), State::kOpen);
    }
}

Shm::~Shm() {
    for (int i : {0, 1}) {
        devices_[i]->close_channel(*channels_[i]);
    }
    for (int i : {0, 1}) {
        [[maybe_unused]] const Status closed = devices_[i]->close();
    }
}

}  // namespace rvt::conform
