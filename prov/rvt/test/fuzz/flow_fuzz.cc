// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The flows of an endpoint, to which somebody sends packets in the name of a peer, while a flow to
// that peer opens or is open: whole ones, and SENDs that are right but for their frames.
#include <array>
#include <memory>
#include <vector>

#include "backend/fake/wire.h"
#include "core/plain_flow_user.h"
#include "core/qp.h"
#include "core/rd_flows.h"
#include "core/registry.h"
#include "fuzz/input.h"
#include "fuzz/mad.h"
#include "protocol/cm_messages.h"
#include "protocol/headers.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)

namespace {

std::uint64_t now_us = 1000;

Address address_of(std::uint8_t host) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host}, .port = 5000};
}

class Node final : public test::PlainFlowUser, public RdFlowsUser {
  public:
    Node(fake::Wire& wire, std::uint8_t host) : wire_(wire) {
        const DeviceInfo info{.name = "node",
                              .grade = Grade::kPacket,
                              .address = address_of(host),
                              .payload_bytes = 256,
                              .now_us = []() noexcept { return now_us; }};
        fuzz::must(wire.attach(registry_, port_, info).is_ok());
        flows = RdFlows::open({.device = port_.device,
                               .taker = this,
                               .user = this,
                               .own = {.incarnation = host},
                               .linger_silence_ms = 0,
                               .is_hot = &is_hot_})
                    .take();
    }
    ~Node() {
        wire_.detach(port_);
        flows.reset();
        fuzz::must(registry_.remove_device(port_.device).is_ok());
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void poll() {
        flows->poll();
        for (RdFlow* const each : ended_) {
            each->close();
        }
        ended_.clear();
    }
    [[nodiscard]] Device& device() const { return *port_.device; }

    void take_message(void* /*peer*/, const RdMessage& message) noexcept override {
        sum_ += fuzz::touch({message.payload, message.payload_bytes});
        sum_ += has_run(message.op) ? fuzz::touch({message.run, message.length}) : 0;
    }
    void take_malformed(void* /*peer*/) noexcept override { ended_.push_back(flow); }
    bool is_idle(void* /*peer*/) noexcept override { return true; }
    void flow_opened(RdFlow& opened) noexcept override {
        flow = &opened;
        opened.start(this);
    }
    void connect_failed(const Address& /*peer*/, int /*error*/) noexcept override {}
    void flow_ended(RdFlow& over) noexcept override { ended_.push_back(&over); }
    void flow_left(RdFlow& over) noexcept override { ended_.push_back(&over); }
    void work_waits() noexcept override {}

    std::unique_ptr<RdFlows> flows;
    RdFlow* flow = nullptr;

  private:
    fake::Wire& wire_;
    core::Registry registry_;
    fake::Port port_;
    std::atomic<bool> is_hot_{false};
    std::vector<RdFlow*> ended_;
    unsigned sum_ = 0;
};

class World {
  public:
    World() { a_.flows->connect(address_of(2)); }

    void step(fuzz::Input& input) {
        const std::uint8_t what = input.u8();
        const std::size_t bytes = input.u8();
        switch (what % 5) {
            case 0:
                a_.poll();
                b_.poll();
                now_us += std::uint64_t{100} * bytes;
                break;
            case 1: deliver(input.take(4 * bytes)); break;
            case 2: deliver(send(what / 5, input.take(bytes))); break;
            case 3: deliver(mad(bytes, input)); break;
            default:
                a_.poll();
                b_.poll();
                break;
        }
    }

  private:
    void deliver(std::span<const std::byte> packet) {
        deliver_packet(a_.device(), address_of(2), address_of(1), packet);
    }
    /// The pair of a flow, while there is one.
    Qp* pair() {
        Qp* found = nullptr;
        for (std::uint32_t qpn = 0; qpn < kMostQpn; ++qpn) {
            Qp* const one = a_.device().qps().find(qpn);
            found = one != nullptr && one->type() == QpType::kRc ? one : found;
        }
        return found;
    }
    /// A packet that the pair takes for the next of its peer.
    std::vector<std::byte> send(unsigned how, std::span<const std::byte> frame) {
        Qp* const qp = pair();
        if (qp == nullptr) {
            return {};
        }
        using enum protocol::Opcode;
        static constexpr protocol::Opcode kSends[] = {kRcSendOnly, kRcSendFirst, kRcSendMiddle,
                                                      kRcSendLast};
        const protocol::PacketHeader header{.opcode = kSends[how % 4],
                                            .pad = static_cast<std::uint8_t>(-frame.size() & 3),
                                            .dest_qpn = qp->qpn(),
                                            .psn = protocol::Psn(qp->query().rq_psn) + sent_++};
        std::vector<std::byte> packet(protocol::kMaxHeaderBytes);
        packet.resize(encode(header, packet.data()));
        packet.insert(packet.end(), frame.begin(), frame.end());
        packet.resize(packet.size() + header.pad);
        return packet;
    }
    static std::vector<std::byte> mad(std::size_t kind, fuzz::Input& input) {
        const protocol::PacketHeader header{.opcode = protocol::Opcode::kUdSendOnly,
                                            .dest_qpn = protocol::kGsiQpn,
                                            .qkey = protocol::kGsiQkey,
                                            .src_qpn = protocol::kGsiQpn};
        std::vector<std::byte> packet(protocol::kMaxHeaderBytes);
        packet.resize(encode(header, packet.data()));
        const fuzz::Mad mad = fuzz::mad_of(static_cast<unsigned>(kind), input);
        packet.insert(packet.end(), mad.begin(), mad.end());
        return packet;
    }

    static constexpr std::uint32_t kMostQpn = 64;
    fake::Wire wire_;
    Node a_{wire_, 1};
    Node b_{wire_, 2};
    std::uint32_t sent_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::explore<World>(data, size);
}
