// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint of tests of flows over NICs: endpoints of one process find each other over the wire
// of backend/fake.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/fake/wire.h"
#include "common/check.h"
#include "core/plain_flow_user.h"
#include "core/rd_flows.h"
#include "core/registry.h"

namespace rvt::test {

/// An endpoint that writes down what it is told.
class FlowNode final : public PlainFlowUser, public core::RdFlowsUser {
  public:
    /// @param nic  nullptr: it has none.
    /// @param registrations  Of memory with the NIC.
    FlowNode(fake::Wire& wire, const Address& address, core::Device* nic,
             const core::RegCacheAttr& registrations = {}, std::uint32_t max_flows = 1u << 16)
        : wire_(wire) {
        RVT_OK(wire.attach(registry_, port_,
                           {.name = "node", .grade = Grade::kPacket, .address = address}));
        flows = core::RdFlows::open({.device = port_.device,
                                     .nic = nic,
                                     .taker = this,
                                     .user = this,
                                     .own = {.incarnation = address.port},
                                     .registrations = registrations,
                                     .linger_silence_ms = 1,
                                     .max_flows = max_flows,
                                     .is_hot = &is_hot_})
                    .take();
    }
    ~FlowNode() {
        flows.reset();
        wire_.detach(port_);
        RVT_OK(registry_.remove_device(port_.device));
    }
    FlowNode(const FlowNode&) = delete;
    FlowNode& operator=(const FlowNode&) = delete;

    void poll() {
        flows->poll();
        if (is_watched && flows->take_quiet()) {
            flows->note_packets();  // as who watches the socket does when something has come
        }
        for (core::RdFlow* const ended : std::exchange(ended_, {})) {
            ended->close();
        }
    }
    [[nodiscard]] bool is_hot() const {
        return is_hot_.load(std::memory_order_relaxed);  // relaxed: of this thread
    }
    [[nodiscard]] Address address() const { return port_.device->address(); }

    bool say(const std::string& text) { return say(text, *flow); }
    static bool say(const std::string& text, core::RdFlow& flow) {
        if (text.size() <= core::kMaxRecordPayload) {
            return flow.put({.op = core::RdOp::kEager,
                             .payload = reinterpret_cast<const std::byte*>(text.data()),
                             .payload_bytes = text.size()},
                            core::RdFlow::Room::kAny);
        }
        const core::RdHeader header{.total = text.size(), .operation = 0, .address = 0};
        return flow.put_borrowed({.op = core::RdOp::kEagerFirst,
                                  .payload = reinterpret_cast<const std::byte*>(&header),
                                  .payload_bytes = sizeof header},
                                 {const_cast<char*>(text.data()), text.size()}, false);
    }

    void take_message(void*, const core::RdMessage& message) noexcept override {
        if (message.op == core::RdOp::kRdmaDone) {
            fetched.push_back(message.data);
            return;
        }
        const auto* bytes = reinterpret_cast<const char*>(
            core::has_run(message.op) ? message.run : message.payload);
        heard.emplace_back(bytes, message.length);
        heard_ops.push_back(message.op);
    }
    void take_malformed(void* peer) noexcept override {
        is_malformed = true;
        flow_ended(*static_cast<core::RdFlow*>(peer));
    }
    bool is_idle(void*) noexcept override { return !is_owed; }
    void rdma_ended(std::uint64_t name, core::WcStatus) noexcept override { lost.push_back(name); }
    void flow_opened(core::RdFlow& opened) noexcept override {
        flow = &opened;
        if (starts_flows) {
            flow->start(flow);
        }
        all.push_back(flow);
    }
    void connect_failed(const Address&, int error) noexcept override { failure = error; }
    void flow_ended(core::RdFlow& ended) noexcept override {
        ended_.push_back(&ended);
        std::erase(all, &ended);
        flow = all.empty() ? nullptr : all.back();
        ++ends;
    }
    void flow_left(core::RdFlow& left) noexcept override { flow_ended(left); }
    void work_waits() noexcept override {}

    std::unique_ptr<core::RdFlows> flows;
    core::RdFlow* flow = nullptr;       // the latest
    std::vector<core::RdFlow*> all;     // that are open
    bool starts_flows = true;           // else they wait for RdFlow::start()
    std::vector<std::string> heard;     // the run of each record, or its payload where it has none
    std::vector<core::RdOp> heard_ops;  // of the same records
    std::vector<std::uint64_t> fetched;
    std::vector<std::uint64_t> lost;  // that were to be fetched
    int ends = 0;
    int failure = 0;
    bool is_watched = true;
    bool is_malformed = false;
    bool is_owed = false;  // something, by its peers

  private:
    fake::Wire& wire_;
    core::Registry registry_;
    fake::Port port_;
    std::atomic<bool> is_hot_{false};
    std::vector<core::RdFlow*> ended_;  // to be closed
};

}  // namespace rvt::test
