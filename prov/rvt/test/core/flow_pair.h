// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What tests of flows between two endpoints have in common: endpoints on the wire of backend/fake
// that say something to each other and write down what they hear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/fake/wire.h"
#include "common/check.h"
#include "core/flow_host.h"
#include "core/plain_flow_user.h"
#include "core/rd_flows.h"

namespace rvt::test {

/// What a peer said, with its run put together again.
struct Heard {
    core::RdOp op;
    std::uint64_t tag;
    std::string text;
};

/// An endpoint that writes down what it is told.
class FlowTalker final : public FlowHost, public PlainFlowUser, public core::RdFlowsUser {
  public:
    FlowTalker(fake::Wire& wire, std::uint8_t number, std::uint64_t incarnation,
               std::uint32_t payload_bytes = 256)
        : FlowHost(wire, number, payload_bytes), number_(number) {
        open({.taker = this,
              .user = this,
              .own = {.incarnation = incarnation},
              .connect_timeout_ms = 5000});
    }
    ~FlowTalker() { kill(); }  // the flows go before what they call
    FlowTalker(const FlowTalker&) = delete;
    FlowTalker& operator=(const FlowTalker&) = delete;

    void poll() {
        packets += flows->poll();
        for (core::RdFlow* const ended : std::exchange(ended_, {})) {
            ended->close();
        }
    }
    [[nodiscard]] Address address() const { return host_address(number_); }

    bool say(std::uint64_t tag, const std::string& text) {
        if (text.size() <= core::kMaxRecordPayload) {
            return flow->put({.op = core::RdOp::kEager,
                              .tag = tag,
                              .payload = reinterpret_cast<const std::byte*>(text.data()),
                              .payload_bytes = text.size()},
                             core::RdFlow::Room::kAny);
        }
        if (tag % 2 == 0) {
            lent.push_back(text);
            return lend(tag, lent.back());
        }
        std::byte* const run = flow->reserve_run(text.size(), sizeof(core::RdHeader));
        if (run == nullptr) {
            return false;
        }
        std::memcpy(run, text.data(), text.size());
        const core::RdHeader header{.total = text.size(), .operation = 0, .address = 0};
        flow->put_run({.op = core::RdOp::kEagerFirst,
                       .tag = tag,
                       .payload = reinterpret_cast<const std::byte*>(&header),
                       .payload_bytes = sizeof header},
                      text.size());
        return true;
    }
    /// The same from memory that stays in use.
    bool lend(std::uint64_t tag, std::string_view run, bool has_more = false) const {
        const core::RdHeader header{.total = run.size(), .operation = 0, .address = 0};
        return flow->put_borrowed({.op = core::RdOp::kEagerFirst,
                                   .tag = tag,
                                   .payload = reinterpret_cast<const std::byte*>(&header),
                                   .payload_bytes = sizeof header},
                                  {const_cast<char*>(run.data()), run.size()}, has_more);
    }

    void take_message(void* peer, const core::RdMessage& message) noexcept override {
        RVT_ASSERT(peer == this);
        has_sent_held = flows->send_held();
        const bool is_run = core::has_run(message.op);
        const auto* bytes = reinterpret_cast<const char*>(is_run ? message.run : message.payload);
        if (message.op == core::RdOp::kEagerMore) {
            heard.back().text.append(bytes, message.length);
        } else {
            heard.push_back({message.op, message.tag, std::string(bytes, message.length)});
        }
        if (on_message) {
            on_message();
        }
    }
    void take_malformed(void*) noexcept override { is_malformed = true; }
    bool is_idle(void* peer) noexcept override { return peer == this && !is_owed; }
    void flow_opened(core::RdFlow& opened) noexcept override {
        flow = &opened;
        flow->start(this);
        ++opens;
    }
    void connect_failed(const Address&, int error) noexcept override { failure = error; }
    void flow_ended(core::RdFlow& ended) noexcept override {
        ended_.push_back(&ended);
        flow = flow == &ended ? nullptr : flow;
        ++ends;
    }
    void flow_left(core::RdFlow& left) noexcept override { flow_ended(left); }
    void work_waits() noexcept override { ++wakes; }

    core::RdFlow* flow = nullptr;
    std::vector<Heard> heard;
    std::function<void()> on_message;  // has been heard
    std::deque<std::string> lent;      // to the flow
    int opens = 0;
    int ends = 0;
    int failure = 0;
    int wakes = 0;
    std::uint64_t packets = 0;  // that arrived
    bool is_malformed = false;
    bool is_owed = false;       // something, by its peer
    bool has_sent_held = true;  // another thread, amid the last poll that brought a message

  private:
    const std::uint8_t number_;
    std::vector<core::RdFlow*> ended_;  // to be closed
};

/// Two of them on one wire.
struct FlowPair {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    FlowTalker b{wire, 2, 12};

    template <class IsDone>
    bool run_until(IsDone is_done, int turns = 200'000) {
        for (int turn = 0; turn < turns && !is_done(); ++turn) {
            a.poll();
            b.poll();
            now_us += 20;
        }
        return is_done();
    }
    void connect() {
        a.flows->connect(b.address());
        RVT_ASSERT(run_until([&] { return a.flow != nullptr && b.flow != nullptr; }));
    }
};

/// Two endpoints of which nobody owes the other an acknowledgement.
struct Quiet : FlowPair {
    Quiet() {
        connect();
        settle();
    }
    void settle() {
        run_until([] { return false; }, 1000);
    }
    /// B has a message of A's, of memory that stays in use.
    void hear(const std::string& text) {
        a.lent.push_back(text);
        RVT_ASSERT(a.lend(1, a.lent.back()));
        b.poll();
        RVT_ASSERT(b.heard.back().text == text);
    }
    /// B stays so often that acknowledgements wait for it.
    void stay() {
        for (int time = 0; time < 8; ++time) {
            hear("stays");
            now_us += 10;
            b.poll();
            settle();
        }
        b.heard.clear();
        a.heard.clear();
    }
};

/// One that has a flow with each of two others, of which nobody owes another an acknowledgement.
struct FlowTrio {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11};
    FlowTalker b{wire, 2, 12};
    FlowTalker c{wire, 3, 13};
    std::vector<core::RdFlow*> flows;  // of A, to B and to C

    FlowTrio() {
        for (FlowTalker* peer : {&b, &c}) {
            a.flow = nullptr;
            a.flows->connect(peer->address());
            RVT_ASSERT(run_until([&] { return a.flow != nullptr && peer->flow != nullptr; }));
            flows.push_back(a.flow);
        }
        run_until([turns = 0]() mutable { return ++turns == 1000; });
    }
    FlowTrio(const FlowTrio&) = delete;
    FlowTrio& operator=(const FlowTrio&) = delete;
    ~FlowTrio() = default;

    template <class IsDone>
    bool run_until(IsDone is_done) {
        for (int turn = 0; turn < 200'000 && !is_done(); ++turn, now_us += 20) {
            for (FlowTalker* talker : {&a, &b, &c}) {
                talker->poll();
            }
        }
        return is_done();
    }
};

}  // namespace rvt::test
