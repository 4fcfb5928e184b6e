// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A peer whose rvt has another version of the frames: neither end opens a flow with it, and each
// knows at once.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "core/cm_agent.h"
#include "core/flow_pair.h"
#include "core/mad.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::byte kOtherVersion{2};  // why it is refused, in the private data

/// What an endpoint of the former version said of itself; docs/roce.md, section 5.
std::vector<std::byte> former_greeting() {
    std::vector<std::byte> bytes(24);
    std::memcpy(bytes.data(), "rvtD\1", 5);
    bytes[7] = std::byte{1};  // 256 bytes of payload in a packet
    return bytes;
}

/// An endpoint of that version, as far as connections go.
class FormerPeer final : private MadSink, private CmWire {
  public:
    explicit FormerPeer(fake::Wire& wire) : wire_(wire) {
        const DeviceInfo info{.name = "former",
                              .grade = Grade::kPacket,
                              .address = host_address(9),
                              .payload_bytes = 256,
                              .now_us = []() noexcept { return now_us; }};
        RVT_OK(wire.attach(registry_, port_, info));
        port_.device->set_mad_sink(this);
        CmWire& own = *this;
        agent_.emplace(CmConfig{.local = info.address, .ca_guid = 9, .secret = {1, 2}}, own);
    }
    ~FormerPeer() {
        port_.device->set_mad_sink(nullptr);
        wire_.detach(port_);
        RVT_OK(registry_.remove_device(port_.device));
    }
    FormerPeer(const FormerPeer&) = delete;
    FormerPeer& operator=(const FormerPeer&) = delete;

    CmAgent& agent() { return *agent_; }
    /// What happens until something does; nothing in a second.
    std::optional<CmEvent> next(FlowTalker& other) {
        for (const std::uint64_t end_us = now_us + 1'000'000; now_us < end_us; now_us += 20) {
            other.poll();
            port_.device->progress();
            agent_->run_timers(now_us);
            if (auto event = agent_->poll_event()) {
                return event;
            }
        }
        return std::nullopt;
    }

  private:
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override {
        agent_->take_mad(source, mad, now_us);
    }
    void peer_refused(const Address&, std::uint32_t) noexcept override {}
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override {
        core::send_mad(*port_.device, to.dest, mad.first<protocol::kMadBytes>());
    }

    fake::Wire& wire_;
    Registry registry_;
    fake::Port port_;
    std::optional<CmAgent> agent_;
};

}  // namespace

Test(rd_flows_version, a_request_of_another_one_is_refused_with_the_reason) {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    FormerPeer former(wire);
    const auto greeting = former_greeting();
    RVT_OK(former.agent().connect({.service_id = kRdServiceId,
                                   .dest = {.dest = a.address()},
                                   .own = {.qpn = 77},
                                   .private_data = greeting},
                                  now_us));
    const auto event = former.next(a);
    RVT_ASSERT(event.has_value());
    RVT_ASSERT(event->type == CmEventType::kRejected);
    RVT_ASSERT(event->reason == protocol::CmRejectReason::kConsumer);
    RVT_ASSERT(event->private_data()[0] == kOtherVersion);
    RVT_EQ(a.opens, 0);
}

Test(rd_flows_version, a_refusal_of_another_one_is_an_error_at_once) {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    FormerPeer former(wire);
    RVT_OK(former.agent().listen(kRdServiceId, 0));
    a.flows->connect(host_address(9));
    const auto event = former.next(a);
    RVT_ASSERT(event.has_value());
    RVT_ASSERT(event->type == CmEventType::kRequest);
    RVT_OK(former.agent().reject(event->handle, protocol::CmRejectReason::kConsumer,
                                 std::span(&kOtherVersion, 1), now_us));
    for (int turn = 0; turn < 100 && a.failure == 0; ++turn, now_us += 20) {
        a.poll();
    }
    RVT_EQ(a.failure, EPROTO);
}
