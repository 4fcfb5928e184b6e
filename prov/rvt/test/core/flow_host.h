// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What tests of flows have in common: a clock that they move on, addresses, and an endpoint's
// device on the wire of backend/fake with its flows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/fake/wire.h"
#include "common/check.h"
#include "core/rd_flows.h"
#include "core/registry.h"
#include "rvt/backend.h"

namespace rvt::test {

inline std::uint64_t now_us = 1000;

/// 10.0.0.NUMBER.
inline Address host_address(std::uint8_t number) {
    Address address{.port = 5000};
    address.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number};
    return address;
}

/// The wire outlives it, and so does who is named in open().
class FlowHost {
  public:
    FlowHost(fake::Wire& wire, std::uint8_t number, std::uint32_t payload_bytes = 256)
        : wire_(wire) {
        const DeviceInfo info{.name = "host",
                              .grade = Grade::kPacket,
                              .address = host_address(number),
                              .payload_bytes = payload_bytes,
                              .now_us = []() noexcept { return now_us; }};
        RVT_OK(wire.attach(registry_, port_, info));
    }
    ~FlowHost() { kill(); }
    FlowHost(const FlowHost&) = delete;
    FlowHost& operator=(const FlowHost&) = delete;

    /// @param attr  Its device and its flag are set here.
    void open(core::RdFlowsAttr attr) {
        attr.device = port_.device;
        attr.is_hot = &is_hot_;
        attr.linger_silence_ms = 1;  // its peers are mostly not polled any more
        flows = core::RdFlows::open(attr).take();
    }
    /// From now on nothing reaches it; while it is not polled it says nothing either.
    void cut_off() { wire_.detach(port_); }
    /// From now on it does not answer; it tells its peers so.
    void kill() {
        if (port_.device != nullptr) {
            wire_.detach(port_);
            flows.reset();
            RVT_OK(registry_.remove_device(port_.device));
            port_.device = nullptr;
        }
    }

    /// Its host is told that nobody has the port that a packet was for.
    void hear_of_no_port(const Address& peer, std::uint32_t dest_qpn) const {
        peer_refused(*port_.device, peer, dest_qpn);
    }

    std::unique_ptr<core::RdFlows> flows;

  private:
    fake::Wire& wire_;
    core::Registry registry_;
    fake::Port port_;
    std::atomic<bool> is_hot_{false};
};

}  // namespace rvt::test
